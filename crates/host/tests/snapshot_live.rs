//! This machine, recorded: its snapshot gives exactly the same host.

use nearpath_host::{Root, Wanted};
use std::process::Command;

#[test]
fn the_snapshot_of_this_machine_gives_the_same_host() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("this.tar.zst");
    let wanted = Wanted { sockets: true, memory_of: vec![std::process::id()] };

    let recording = Root::live().recording();
    let host = nearpath_host::read(&recording, &wanted).unwrap();
    recording.save(&file).unwrap();
    assert!(!host.topology.online.is_empty() && host.kernel.release.is_some());

    let snapshot = Root::snapshot(&file).unwrap();
    assert!(!snapshot.is_live());
    assert_eq!(nearpath_host::read(&snapshot, &wanted).unwrap(), host);
}

#[test]
fn tar_and_zstd_unpack_it() {
    if !nearpath_testing::require_program("zstd") || !nearpath_testing::require_program("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("this.tar.zst");
    let recording = Root::live().recording();
    let host = nearpath_host::read(&recording, &Wanted::default()).unwrap();
    recording.save(&file).unwrap();

    let unpacked = dir.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&unpacked).args(["--zstd", "-xf"]).arg(&file);
    assert!(tar.status().unwrap().success());
    let tree = Root::tree(&unpacked).unwrap();
    assert_eq!(nearpath_host::read(&tree, &Wanted::default()).unwrap(), host);
}
