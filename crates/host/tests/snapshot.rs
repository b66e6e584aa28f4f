//! Facts read from a machine, from its recording, from the snapshot made of it, and from the unpacked snapshot
//! are the same.

use nearpath_host::{ReadError, Root};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, Permissions};
use std::io::Cursor;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// A small machine: a NIC behind a link, an unreadable file, answers, and files that are not read.
fn machine(dir: &Path) {
    let write = |path: &str, text: &str| {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("sys/devices/pci0/net/eth0/mtu", "1500\n");
    write("sys/devices/pci0/net/eth0/uevent", "INTERFACE=eth0\n");
    write("sys/devices/pci0/numa_node", "1\n");
    write("sys/class/net/bonding_masters", "\n");
    for cpu in [0, 2, 10] {
        write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_id"), "0\n");
    }
    write("proc/sys/kernel/osrelease", "6.1.0\n");
    write("proc/12/net/dev", "eth0: 1 2 3\n");
    write("nearpath/answers/ethtool%2Feth0%2Frings.json", r#"{"given": [256, 4096]}"#);
    write(
        "nearpath/answers/ethtool%2Feth0%2Frss.json",
        r#"{"refused": {"what": "eth0", "reason": "not supported", "absent": false}}"#,
    );
    fs::create_dir_all(dir.join("sys/devices/pci0/net/eth0/queues")).unwrap();
    symlink("../../pci0", dir.join("sys/devices/pci0/net/device")).unwrap();
    symlink("../../devices/pci0/net/eth0", dir.join("sys/class/net/eth0")).unwrap();
    symlink("../../devices/gone", dir.join("sys/class/net/gone")).unwrap();
    symlink("12", dir.join("proc/self")).unwrap();
    symlink("self/net", dir.join("proc/net")).unwrap();
    symlink("/etc/passwd", dir.join("proc/escape")).unwrap();
    symlink("../../../../../../../etc/passwd", dir.join("proc/climb")).unwrap();
    symlink("loop", dir.join("proc/loop")).unwrap();
    // An entry that cannot be read by anyone.
    let speed = dir.join("sys/devices/pci0/net/eth0/speed");
    mknodat(CWD, speed, FileType::Fifo, Mode::RUSR, 0).unwrap();
}

/// All queries to the machine, with the answers.
fn interview(root: &Root) -> Vec<String> {
    let mut said = Vec::new();
    for path in [
        "/sys/class/net/eth0/mtu",
        "/sys/class/net/eth0/speed",
        "/sys/class/net/eth0/no_such_file",
        "/sys/class/net/none/mtu",
        "/sys/class/net/gone/mtu",
        "/sys/class/net/eth0",
        "/sys/class/net/eth0/mtu/below",
        "/sys/class/net/eth0/../../numa_node",
        "sys/devices/system/cpu/cpu10/topology/core_id",
        "/proc/net/dev",
        "/proc/sys/kernel/osrelease",
        "/proc/escape",
        "/proc/climb",
        "/proc/loop",
        "/../../etc/passwd",
        "/etc/passwd",
    ] {
        said.push(format!("read {path}: {:?}", root.read(path)));
    }
    for path in [
        "/sys/class/net",
        "/sys/class/net/eth0",
        "/sys/class/net/eth0/queues",
        "/sys/class/net/none",
        "/sys/devices/system/cpu",
        "/proc",
    ] {
        said.push(format!("list {path}: {:?}", root.list(path)));
    }
    for path in ["/sys/class/net/eth0", "/proc/self", "/proc/escape", "/sys/class/net", "/proc/x"] {
        said.push(format!("link {path}: {:?}", root.link(path)));
        said.push(format!("resolve {path}: {:?}", root.resolve(path)));
    }
    for key in ["ethtool/eth0/rings", "ethtool/eth0/rss", "ethtool/eth0/none"] {
        let answer = root.answer(key, || -> Result<Vec<u32>, ReadError> { unreachable!() });
        said.push(format!("answer {key}: {answer:?}"));
    }
    said
}

/// The tar archive in a snapshot's file.
fn unzipped(file: &Path) -> Vec<u8> {
    let packed = fs::read(file).unwrap();
    let mut tar = Vec::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed.as_slice()).unwrap();
    std::io::Read::read_to_end(&mut decoder, &mut tar).unwrap();
    tar
}

#[test]
fn all_forms_of_a_machine_give_the_same_answers() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    machine(&tree);
    let expected = interview(&Root::tree(&tree).unwrap());
    assert!(expected[0].contains("Ok([49, 53, 48, 48, 10])"), "{}", expected[0]);
    assert!(expected[1].contains("is not a regular file or directory"), "{}", expected[1]);
    assert!(expected.iter().all(|said| !said.contains("root:")), "read outside the tree");

    let recording = Root::tree(&tree).unwrap().recording();
    assert_eq!(interview(&recording), expected);
    assert_eq!(interview(&recording), expected, "second query");
    let file = dir.path().join("machine.tar.zst");
    let summary = recording.save(&file).unwrap();
    assert_eq!((summary.answers, summary.bytes as u64), (3, fs::metadata(&file).unwrap().len()));

    let snapshot = Root::snapshot(&file).unwrap();
    assert_eq!(interview(&snapshot), expected);

    let unpacked = dir.path().join("unpacked");
    tar::Archive::new(Cursor::new(unzipped(&file))).unpack(&unpacked).unwrap();
    assert_eq!(interview(&Root::tree(&unpacked).unwrap()), expected);

    let again = snapshot.recording();
    assert_eq!(interview(&again), expected);
    let second = dir.path().join("second.tar.zst");
    again.save(&second).unwrap();
    assert_eq!(interview(&Root::snapshot(&second).unwrap()), expected);
}

#[test]
fn unread_files_are_not_reported_as_absent() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    machine(&tree);
    let recording = Root::tree(&tree).unwrap().recording();
    interview(&recording);
    let file = dir.path().join("machine.tar.zst");
    recording.save(&file).unwrap();
    let root = Root::snapshot(&file).unwrap();
    // Listed, not read.
    let unread = root.read("/sys/class/net/eth0/uevent").unwrap_err();
    assert!(!unread.absent && unread.reason.contains("was not read"), "{unread}");
    // Neither listed nor read.
    let unread = root.read("/sys/devices/pci0/vendor").unwrap_err();
    assert!(!unread.absent && unread.reason.contains("was not read"), "{unread}");
    let unlisted = root.list("/sys/devices/pci0").unwrap_err();
    assert!(!unlisted.absent && unlisted.reason.contains("was not listed"), "{unlisted}");
    // The directory was listed, and has no such name.
    assert!(root.read("/sys/class/net/eth7/mtu").unwrap_err().absent);
}

/// A process ends between two looks at its folder; whatever is asked later is answered as it was then.
#[test]
fn what_vanishes_while_it_is_read_is_absent_in_the_snapshot_too() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    machine(&tree);
    let process = tree.join("proc/77");
    fs::create_dir_all(process.join("fd")).unwrap();
    fs::write(process.join("comm"), "x\n").unwrap();
    symlink("socket:[5]", process.join("fd/3")).unwrap();
    let recording = Root::tree(&tree).unwrap().recording();
    recording.list("/proc").unwrap();
    for path in ["/proc/77/fd", "/proc/77/comm"] {
        recording.resolve(path).unwrap();
    }
    fs::remove_dir_all(&process).unwrap();
    let asked = |root: &Root| {
        let of_folder = root.list("/proc/77/fd").map(|entries| entries.len());
        (
            of_folder,
            root.read("/proc/77/comm"),
            root.link("/proc/77/fd/3"),
            root.list("/proc/77/task").is_ok(),
        )
    };
    let then = asked(&recording);
    assert!(then.0.as_ref().is_err_and(|error| error.absent), "{then:?}");
    assert!(then.1.as_ref().is_err_and(|error| error.absent), "{then:?}");
    let file = dir.path().join("machine.tar.zst");
    recording.save(&file).unwrap();
    assert_eq!(asked(&Root::snapshot(&file).unwrap()), then);
}

#[test]
fn a_snapshot_is_private_and_replaces_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    machine(&tree);
    let victim = dir.path().join("victim");
    fs::write(&victim, "keep").unwrap();
    let file = dir.path().join("out.tar.zst");
    symlink(&victim, &file).unwrap();
    let recording = Root::tree(&tree).unwrap().recording();
    recording.save(&file).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "keep");
    let written = fs::symlink_metadata(&file).unwrap();
    assert!(written.is_file());
    assert_eq!(written.mode() & 0o777, 0o600);
}

#[test]
fn a_snapshot_that_cannot_be_written_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    machine(&tree);
    let not_recording = Root::tree(&tree).unwrap();
    assert!(not_recording.save(&dir.path().join("x")).is_err());
    let recording = not_recording.recording();
    let missing = recording.save(&dir.path().join("none/x.tar.zst")).unwrap_err();
    assert!(missing.to_string().contains("cannot be written"), "{missing}");
    // Renaming a file over a directory fails after everything was written.
    let out = dir.path().join("out");
    fs::create_dir_all(out.join("x.tar.zst/full")).unwrap();
    assert!(recording.save(&out.join("x.tar.zst")).is_err());
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
}

#[test]
fn a_file_without_permission_keeps_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    machine(&tree);
    let secret = tree.join("proc/secret");
    fs::write(&secret, "x").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o000)).unwrap();
    let recording = Root::tree(&tree).unwrap().recording();
    let direct = recording.read("/proc/secret");
    let file = dir.path().join("machine.tar.zst");
    recording.save(&file).unwrap();
    // Root may read it; then the content must come back instead of the reason.
    assert_eq!(Root::snapshot(&file).unwrap().read("/proc/secret"), direct);
}
