//! Requirements of tests on the machine.
//!
//! Each `require_*` function tries the operation itself, not an indication
//! of it (root in a container may not be allowed to load BPF). It returns `true` if the test
//! can continue. Otherwise it records the skip with its reason and returns `false`.
//!
//! Tests on the kernel share one kernel, with its load and its namespaces. Starting with its first
//! `require_root`, `require_bpf` or `require_netns`, a test therefore runs alone among
//! those of its program that called one, until its thread ends. Call them on the test's own
//! thread.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::skip;

/// Effective user id 0.
pub fn require_root() -> bool {
    met(root()) && hold_kernel()
}

/// BPF programs on raw tracepoints can be loaded, and the kernel has BTF for CO-RE.
pub fn require_bpf() -> bool {
    met(root().and_then(|()| bpf())) && hold_kernel()
}

/// Network namespaces can be created, and `ip` is available to configure them.
pub fn require_netns() -> bool {
    met(root().and_then(|()| netns()).and_then(|()| program("ip", &search_path()))) && hold_kernel()
}

/// The program `name` is on the `PATH`.
pub fn require_program(name: &str) -> bool {
    met(program(name, &search_path()))
}

/// The kernel has this version or a newer one, which `what` needs.
pub fn require_kernel(version: (u32, u32), what: &str) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    met(newer_kernel(&release, version, what))
}

/// Whether tests may take minutes: `make test-all` sets `NEARPATH_LENGTHY`.
pub fn lengthy() -> bool {
    std::env::var_os("NEARPATH_LENGTHY").is_some()
}

/// The test may take longer than 20 s.
pub fn require_lengthy() -> bool {
    met(if lengthy() { Ok(()) } else { Err("lengthy: run by `make test-all`".into()) })
}

/// The directory of captured hosts: archives of /proc and /sys of real machines, with the output of
/// `lscpu` on them (`NAME.tar.gz`, `NAME.lscpu.txt`).
///
/// They are not part of the repository. The directory is `NEARPATH_HOSTS`,
/// else the first `shared/hosts` in a parent of the workspace. With neither, records the skip
/// and returns `None`.
///
/// # Panics
/// If `NEARPATH_HOSTS` is not a directory: the requested tests would
/// silently not run.
pub fn hosts_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("NEARPATH_HOSTS").map(PathBuf::from) {
        assert!(dir.is_dir(), "NEARPATH_HOSTS: {} is not a directory", dir.display());
        return Some(dir);
    }
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let found = above.map(|dir| dir.join("shared/hosts")).find(|dir| dir.is_dir());
    if found.is_none() {
        skip("no captured hosts (NEARPATH_HOSTS is not set)");
    }
    found
}

fn newer_kernel(release: &str, version: (u32, u32), what: &str) -> Result<(), String> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let mut number = || numbers.next().and_then(Result::ok).unwrap_or(0);
    let ((major, minor), running) = (version, (number(), number()));
    if running >= version {
        return Ok(());
    }
    Err(format!("{what} needs Linux {major}.{minor} (this is {}.{})", running.0, running.1))
}

/// Records the skip if the requirement is unmet.
fn met(requirement: Result<(), String>) -> bool {
    requirement.inspect_err(|reason| skip(reason)).is_ok()
}

/// Locks the kernel until the calling thread ends, which is when
/// the test ends; always `true`.
fn hold_kernel() -> bool {
    static KERNEL: Mutex<()> = Mutex::new(());
    thread_local! {
        static HELD: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
    }
    HELD.with_borrow_mut(|held| {
        held.get_or_insert_with(|| KERNEL.lock().unwrap_or_else(PoisonError::into_inner));
    });
    true
}

fn root() -> Result<(), String> {
    // SAFETY: geteuid takes nothing and always succeeds.
    if unsafe { libc::geteuid() } == 0 { Ok(()) } else { Err("no root".into()) }
}

fn bpf() -> Result<(), String> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err("no BPF (the kernel has no BTF)".into());
    }
    crate::bpf::load().map(drop).map_err(|error| format!("no BPF ({error})"))
}

/// Creates a network namespace in a thread that ends immediately, and the namespace with it.
fn netns() -> Result<(), String> {
    let probe = std::thread::spawn(|| {
        // SAFETY: unshare changes only the namespace of this thread.
        match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    match probe.join() {
        Ok(made) => made.map_err(|error| format!("no network namespaces ({error})")),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn search_path() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default()
}

fn program(name: &str, search_path: &[PathBuf]) -> Result<(), String> {
    let found = search_path.iter().any(|dir| dir.join(name).is_file());
    if found { Ok(()) } else { Err(format!("{name} is not on the PATH")) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        let path = ["/nowhere".into(), "/bin".into(), "/usr/bin".into()];
        assert_eq!(program("sh", &path), Ok(()));
        assert_eq!(program("sh", &path[..1]), Err("sh is not on the PATH".into()));
        assert_eq!(program("sh", &[]), Err("sh is not on the PATH".into()));
    }

    #[test]
    fn kernel_releases_are_compared_by_version() {
        for release in ["5.15.0-25-generic\n", "5.15", "5.100.1", "6.1.0", "10.0-rc1+"] {
            assert_eq!(newer_kernel(release, (5, 15), "it"), Ok(()), "{release}");
        }
        for release in ["5.10.0-30-amd64", "4.19", "5.9.99", ""] {
            let error = newer_kernel(release, (5, 15), "it").unwrap_err();
            assert!(error.starts_with("it needs Linux 5.15 (this is "), "{error}");
        }
    }

    #[test]
    fn tests_on_the_kernel_are_serialised() {
        let running = Arc::new(AtomicUsize::new(0));
        let tests = (0..8).map(|_| {
            let running = Arc::clone(&running);
            std::thread::spawn(move || {
                assert!(hold_kernel() && hold_kernel(), "a second call does not wait for itself");
                assert_eq!(running.fetch_add(1, SeqCst), 0);
                (0..1000).for_each(|_| std::thread::yield_now());
                assert_eq!(running.fetch_sub(1, SeqCst), 1);
            })
        });
        for test in tests.collect::<Vec<_>>() {
            test.join().unwrap();
        }
    }

    #[test]
    fn a_test_thread_has_the_name_of_its_test() {
        let name = std::thread::current().name().map(str::to_owned);
        assert_eq!(name.as_deref(), Some("require::tests::a_test_thread_has_the_name_of_its_test"));
    }
}
