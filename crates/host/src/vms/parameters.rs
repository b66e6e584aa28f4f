//! Parameters of the modules `kvm` (Documentation/virt/kvm/halt-polling.rst) and `vhost_net` (drivers/vhost/net.c).

use crate::{Notes, Root};
use nearpath_model::KvmParameters;

const HALT_POLL: &str = "/sys/module/kvm/parameters/halt_poll_ns";
const ZERO_COPY: &str = "/sys/module/vhost_net/parameters/experimental_zcopytx";

/// Reads them. Without vhost_net nothing is copied by it, which is not reported as unknown.
pub(crate) fn parameters(root: &Root, notes: &mut Notes) -> KvmParameters {
    let halt_poll = notes.take("host", "halt_poll_ns", root.text(HALT_POLL));
    let zero_copy = match root.text(ZERO_COPY) {
        Err(error) if error.absent => None,
        found => notes.take("host", "experimental_zcopytx", found),
    };
    KvmParameters {
        halt_poll_ns: halt_poll.and_then(|text| text.trim().parse().ok()),
        zero_copy_tx: zero_copy.and_then(|text| match text.trim() {
            "0" => Some(false),
            // A bit for each kind of device; it had that of the network alone.
            other => other.parse::<i32>().ok().map(|_| true),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(files: &[(&str, &str)]) -> (KvmParameters, usize) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sys/module")).unwrap();
        for (file, text) in files {
            let path = dir.path().join(&file[1..]);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut notes = Notes::default();
        let found = parameters(&Root::tree(dir.path()).unwrap(), &mut notes);
        (found, notes.unknown().len())
    }

    #[test]
    fn parameters_are_read_or_unknown() {
        let of = |halt_poll_ns, zero_copy_tx| KvmParameters { halt_poll_ns, zero_copy_tx };
        assert_eq!(
            read(&[(HALT_POLL, "200000\n"), (ZERO_COPY, "1\n")]),
            (of(Some(200_000), Some(true)), 0)
        );
        assert_eq!(read(&[(HALT_POLL, "0\n"), (ZERO_COPY, "0\n")]), (of(Some(0), Some(false)), 0));
        // vhost_net need not be loaded; kvm is.
        assert_eq!(read(&[(HALT_POLL, "0")]), (of(Some(0), None), 0));
        assert_eq!(read(&[]), (of(None, None), 1));
        assert_eq!(read(&[(HALT_POLL, "x"), (ZERO_COPY, "?")]), (of(None, None), 0));
    }
}
