//! The name of a virtual machine, from the command line of QEMU: `-name guest=NAME,debug-threads=on`, as libvirt starts
//! it, or `-name NAME` (system/vl.c, `qemu_name_opts`). A comma in a value is written twice (util/keyval.c).

use crate::cpu_table::printable;

/// Maximum length of a name in characters.
const MAX_NAME: usize = 128;

/// The name in `/proc/PID/cmdline`; `None` if there is none, or another program runs.
pub fn parse_vm_name(cmdline: &[u8]) -> Option<String> {
    let mut words = cmdline.split(|&b| b == 0);
    let program = words.next()?.rsplit(|&b| b == b'/').next()?;
    if !program.windows(4).any(|part| part == b"qemu" || part == b"-kvm") && program != b"kvm" {
        return None;
    }
    words.find(|word| *word == b"-name" || *word == b"--name")?;
    let options = options(words.next()?);
    let guest = options.iter().find_map(|option| option.strip_prefix(b"guest=".as_slice()));
    let first = options.first().filter(|option| !option.contains(&b'=')).map(Vec::as_slice);
    let name = printable(guest.or(first)?);
    let name: String = name.chars().take(MAX_NAME).collect();
    (!name.is_empty()).then_some(name)
}

/// The options between commas, of which two stand for one in a value.
fn options(word: &[u8]) -> Vec<Vec<u8>> {
    let mut options = vec![Vec::new()];
    let mut bytes = word.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte == b',' && bytes.next_if_eq(&b',').is_none() {
            options.push(Vec::new());
        } else if let Some(option) = options.last_mut() {
            option.push(byte);
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(words: &[&str]) -> Option<String> {
        parse_vm_name((words.join("\0") + "\0").as_bytes())
    }

    #[test]
    fn names_of_qemu() {
        let qemu = "/usr/bin/qemu-system-x86_64";
        for (option, expected) in [
            ("guest=web1,debug-threads=on", Some("web1")),
            ("debug-threads=on,guest=web1", Some("web1")),
            ("web1,process=x", Some("web1")),
            ("guest=a,,b,debug-threads=on", Some("a,b")),
            ("process=x", None),
            ("guest=", None),
            ("", None),
        ] {
            assert_eq!(name(&[qemu, "-name", option, "-S"]).as_deref(), expected, "{option}");
        }
        assert_eq!(name(&["kvm", "--name", "x"]).as_deref(), Some("x"));
        assert_eq!(name(&[qemu, "-name"]), None);
        assert_eq!(name(&[qemu]), None);
        assert_eq!(name(&["/bin/other", "-name", "x"]), None);
        assert_eq!(name(&[qemu, "-name", &"x".repeat(500)]).unwrap().len(), MAX_NAME);
        assert_eq!(name(&[qemu, "-name", "guest=a\x1bb"]).as_deref(), Some("a\u{fffd}b"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_vm_name(&bytes);
            let _ = parse_vm_name(&[b"qemu\0-name\0", &bytes[..]].concat());
        }
    }
}
