//! DAMON (Documentation/admin-guide/mm/damon), which would estimate how often regions are accessed. Output: why it is not
//! available.

use nearpath_host::Root;
use nearpath_model::memory::NotAvailable;

/// Sysfs of DAMON (Documentation/admin-guide/mm/damon/usage.rst), and the file that says whether it is running.
const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// Why accesses by region are not measured.
pub fn damon_not_available(root: &Root) -> NotAvailable {
    NotAvailable { what: "accesses by region (DAMON)".to_owned(), reason: damon(root) }
}

fn damon(root: &Root) -> String {
    match root.list(DAMON) {
        Ok(_) => {
            "DAMON must be started by writes to /sys/kernel/mm/damon, which a measurement does not \
                  make; damo record does"
                .to_owned()
        }
        Err(error) if error.absent => "this kernel has no DAMON (CONFIG_DAMON_SYSFS)".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_depends_on_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys")).unwrap();
        let reason = || damon_not_available(&Root::tree(dir.path()).unwrap()).reason;
        assert!(reason().contains("this kernel has no DAMON"), "{}", reason());
        std::fs::create_dir_all(dir.path().join(DAMON.trim_start_matches('/'))).unwrap();
        assert!(reason().contains("must be started by writes"), "{}", reason());
    }
}
