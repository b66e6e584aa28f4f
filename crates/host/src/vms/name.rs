//! The name of a virtual machine, from the command line of QEMU: `-name guest=NAME,debug-threads=on`, as libvirt starts
//! it, or `-name NAME` (system/vl.c, `qemu_name_opts`). A comma in a value is written twice (util/keyval.c).

use crate::cpu_table::printable;

/// Maximum length of a name in characters.
const MAX_NAME: usize = 128;

/// The name in `/proc/PID/cmdline`; `None` if there is none, or another program runs.
pub fn parse_vm_name(cmdline: &[u8]) -> Option<String> {
    let mut words = cmdline.split(|&b| b == 0);
    let program = words.next()?;
    // A relocated QEMU may be started through the dynamic loader (ld.so(8)), whose options stand before it.
    if !is_qemu(program) {
        let is_loader = base(program).starts_with(b"ld-") || base(program) == b"ld.so";
        words.find(|word| is_loader && is_qemu(word))?;
    }
    words.find(|word| *word == b"-name" || *word == b"--name")?;
    let options = options(words.next()?);
    let guest = options.iter().find_map(|option| option.strip_prefix(b"guest=".as_slice()));
    let first = options.first().filter(|option| !option.contains(&b'=')).map(Vec::as_slice);
    let name = printable(guest.or(first)?);
    let name: String = name.chars().take(MAX_NAME).collect();
    (!name.is_empty()).then_some(name)
}

/// The name of a program without its folder.
fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

fn is_qemu(path: &[u8]) -> bool {
    let program = base(path);
    program.windows(4).any(|part| part == b"qemu" || part == b"-kvm") || program == b"kvm"
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
        assert_eq!(name(&["/bin/other", qemu, "-name", "x"]), None);
        let loader = ["/opt/lib64/ld-linux-x86-64.so.2", "--library-path", "/opt/lib"];
        assert_eq!(name(&[&loader[..], &[qemu, "-name", "x"]].concat()).as_deref(), Some("x"));
        assert_eq!(name(&[&loader[..], &["/bin/other", "-name", "x"]].concat()), None);
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
