//! Snapshots are untrusted: whatever is in the file, opening it and reading the host from it gives facts or one
//! clear line of error.

use nearpath_host::{Root, Wanted};
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::fs;
use tar::{EntryType, Header};

/// An entry of a tar archive with any name, type and link target, including those that tar rejects.
fn entry(kind: EntryType, name: &[u8], link: &[u8], content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    let old = header.as_old_mut();
    old.name.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
    old.linkname.iter_mut().zip(link).for_each(|(to, from)| *to = *from);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, content: &str) -> Vec<u8> {
    entry(EntryType::Regular, name.as_bytes(), b"", content.as_bytes())
}

/// The tar archive of a host with one CPU and one NIC.
fn host() -> Vec<u8> {
    [
        file("proc/sys/kernel/osrelease", "6.1.0\n"),
        file("proc/interrupts", "     CPU0\n 0:  5  IO-APIC  2-edge  timer\n"),
        file("sys/devices/system/cpu/possible", "0\n"),
        file("sys/devices/system/cpu/present", "0\n"),
        file("sys/devices/system/cpu/online", "0\n"),
        file("sys/devices/virtual/net/lo/ifindex", "1\n"),
        file("sys/devices/virtual/net/lo/mtu", "65536\n"),
        entry(EntryType::Symlink, b"sys/class/net/lo", b"../../devices/virtual/net/lo", b""),
    ]
    .concat()
}

/// The archive with its end marker, compressed.
fn packed(mut tar: Vec<u8>) -> Vec<u8> {
    tar.resize(tar.len() + 1024, 0);
    compress_to_vec(tar.as_slice(), CompressionLevel::Fastest)
}

fn open(packed: &[u8]) -> Result<Root, String> {
    Root::snapshot_from_bytes(packed, "x.tar.zst").map_err(|error| error.to_string())
}

/// Opens an archive and reads all of the host; it only has to return.
fn exhaust(packed: &[u8]) {
    if let Ok(root) = open(packed) {
        let wanted = Wanted { sockets: true, memory_of: vec![1, 12] };
        let _ = nearpath_host::read(&root, &wanted);
    }
}

#[test]
fn a_valid_archive_is_read() {
    let root = open(&packed(host())).unwrap();
    assert_eq!(root.text("/sys/class/net/lo/mtu").unwrap(), "65536");
    assert!(root.read("/sys/class/net/lo/speed").unwrap_err().absent);
}

#[test]
fn paths_outside_are_rejected_in_one_line() {
    for (bad, reason) in [
        (file("../outside", "x"), "points outside the snapshot"),
        (file("/etc/passwd", "x"), "points outside the snapshot"),
        (file("sys/../../outside", "x"), "points outside the snapshot"),
        (file("sys/class/net/lo/mtu", "x"), "both a directory and another kind of entry"),
        (file("sys/devices/virtual/net/lo/mtu", "x"), "occurs twice"),
        (entry(EntryType::Char, b"sys/null", b"", b""), "not a file, directory or symbolic link"),
        (entry(EntryType::Fifo, b"sys/fifo", b"", b""), "not a file, directory or symbolic link"),
        (
            entry(EntryType::Link, b"sys/l", b"/etc/passwd", b""),
            "not a file, directory or symbolic",
        ),
    ] {
        let error = open(&packed([host(), bad].concat())).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert!(!error.contains('\n') && error.starts_with("x.tar.zst: "), "{error}");
    }
}

#[test]
fn links_do_not_leave_the_snapshot() {
    let links = [
        entry(EntryType::Symlink, b"proc/absolute", b"/etc/passwd", b""),
        entry(EntryType::Symlink, b"proc/climb", b"../../../../../../etc/passwd", b""),
        entry(EntryType::Symlink, b"proc/loop", b"loop", b""),
        entry(EntryType::Symlink, b"proc/long", b"self/../long/../long", b""),
    ]
    .concat();
    assert!(fs::metadata("/etc/passwd").is_ok(), "the test needs something to escape to");
    let root = open(&packed([host(), links].concat())).unwrap();
    for path in ["/proc/absolute", "/proc/climb", "/etc/passwd", "/../etc/passwd"] {
        assert!(root.read(path).unwrap_err().absent, "{path}");
    }
    assert_eq!(root.read("/proc/loop").unwrap_err().reason, "symbolic link loop");
    assert!(root.read("/proc/long").is_err());
}

#[test]
fn a_truncated_archive_is_rejected() {
    let (tar, whole) = (host(), packed(host()));
    for tenth in 0..10 {
        let error = open(&whole[..whole.len() * tenth / 10]).unwrap_err();
        assert!(!error.contains('\n') && error.starts_with("x.tar.zst: "), "{error}");
        // The same for the inner tar archive, which may have been truncated before compression.
        let inner = &tar[..tar.len() * tenth / 10];
        let error = open(&compress_to_vec(inner, CompressionLevel::Fastest)).unwrap_err();
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn files_without_a_host_are_rejected() {
    for (bytes, reason) in [
        (b"hello".to_vec(), "not a snapshot"),
        (Vec::new(), "empty file"),
        (packed(file("etc/passwd", "x")), "no /sys and no /proc in x.tar.zst"),
        (packed([host(), file("nearpath/manifest.json", "{")].concat()), "damaged manifest.json"),
        (
            packed([host(), file("nearpath/manifest.json", NEWER_MANIFEST)].concat()),
            "format 99 is not supported",
        ),
    ] {
        let error = open(&bytes).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

const NEWER_MANIFEST: &str = r#"{"schema": 99, "nearpath": "9", "time_unix_s": 0, "kernel": null,
    "refused": {}, "absent": [], "folders": {}}"#;

#[test]
fn a_small_file_does_not_exhaust_memory() {
    let zeros = vec![0; 65 << 20];
    let error = open(&compress_to_vec(zeros.as_slice(), CompressionLevel::Fastest)).unwrap_err();
    assert!(error.contains("unpacks to more than 64 MiB"), "{error}");
}

#[test]
fn deep_and_endless_paths_are_rejected() {
    let deep = "d/".repeat(46) + "f";
    let long_link = "x/../".repeat(19);
    let mut tar = host();
    for n in 0..39 {
        // Each link loops and continues to the next: steps grow, links stay below the bound.
        let link = format!("{long_link}l{}", n + 1);
        tar.extend(entry(
            EntryType::Symlink,
            format!("proc/l{n}").as_bytes(),
            link.as_bytes(),
            b"",
        ));
    }
    tar.extend(entry(EntryType::Directory, b"proc/x", b"", b""));
    tar.extend(file("proc/l39", "end"));
    tar.extend(file(&format!("proc/{deep}"), "shallow enough"));
    let root = open(&packed(tar)).unwrap();
    assert_eq!(root.text("/proc/l30").unwrap(), "end");
    assert_eq!(root.read("/proc/l0").unwrap_err().reason, "symbolic link loop");
    assert_eq!(root.text(&format!("/proc/{deep}")).unwrap(), "shallow enough");
    // The name of an entry may be longer through an extension of GNU tar.
    let name = "d/".repeat(70);
    let longer = entry(EntryType::GNULongName, b"././@LongLink", b"", name.as_bytes());
    let error = open(&packed([host(), longer, file("x", "x")].concat())).unwrap_err();
    assert!(error.contains("too deeply"), "{error}");
}

/// Names and link targets near the limits.
fn name() -> impl Strategy<Value = String> {
    let component = prop_oneof![
        Just("sys"),
        Just("proc"),
        Just("class"),
        Just("net"),
        Just("eth0"),
        Just("devices"),
        Just(".."),
        Just("."),
        Just(""),
        Just("nearpath"),
        Just("manifest.json"),
        Just("self"),
        Just("mtu"),
        Just("cpu0"),
        Just("system"),
        Just("cpu"),
        Just("online"),
        Just("queues"),
    ];
    prop::collection::vec(component, 0..7).prop_map(|components| components.join("/"))
}

fn any_entry() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        6 => Just(EntryType::Regular), 3 => Just(EntryType::Symlink),
        1 => Just(EntryType::Directory), 1 => any::<u8>().prop_map(EntryType::new),
    ];
    let content = prop_oneof!["[0-9,:/ a-f-]{0,40}", "\\PC{0,20}"];
    (kind, name(), name(), content).prop_map(|(kind, name, link, content)| {
        let content = if kind == EntryType::Regular { content.as_bytes() } else { &[] };
        entry(kind, name.as_bytes(), link.as_bytes(), content)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_do_not_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = packed(host());
        for (at, byte) in &damage {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        exhaust(&bytes);
        exhaust(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn a_damaged_tar_does_not_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut tar = host();
        for (at, byte) in &damage {
            let at = at.index(tar.len());
            tar[at] = *byte;
        }
        exhaust(&packed(tar));
    }

    #[test]
    fn arbitrary_entries_do_not_panic(entries in prop::collection::vec(any_entry(), 0..20)) {
        exhaust(&packed([host(), entries.concat()].concat()));
    }
}
