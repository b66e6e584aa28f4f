//! The journal after interrupted writes, with other versions, and with two writers.

use super::*;
use crate::steering::{Group, Program};
use crate::{Persistence, Target, Value};
use nearpath_host::SocketProtocol;
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddr};

/// A change of the group on a port.
pub fn change(port: u16) -> Change {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let group = Group { protocol: SocketProtocol::Tcp, local, netns: Some(1), sockets: vec![] };
    Change {
        target: Target::ReuseportGroup(group),
        before: Value::Default,
        after: Value::Program(Program::cpu_modulo(2)),
        why: "a test".to_owned(),
        persistence: Persistence::WhileOpen,
    }
}

#[test]
fn what_was_not_undone_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made/for/it");
    assert_eq!(Journal::read(&folder).unwrap(), []);
    let mut journal = Journal::open(&folder, "boot").unwrap();
    let ids: Vec<u64> = (80..83).map(|port| journal.begin(&change(port)).unwrap()).collect();
    journal.done(ids[0]).unwrap();
    journal.done(ids[1]).unwrap();
    journal.undone(ids[0]).unwrap();
    let entries = Journal::read(&folder).unwrap();
    assert_eq!(entries, journal.entries());
    let states: Vec<_> = entries.iter().map(|entry| (entry.id, entry.state)).collect();
    assert_eq!(states, [(ids[1], State::Done), (ids[2], State::Begun)]);
    assert!(entries.iter().all(|entry| entry.boot == "boot" && entry.time_s > 0));
    // Numbers are not given twice.
    drop(journal);
    let mut journal = Journal::open(&folder, "later").unwrap();
    assert!(journal.begin(&change(84)).unwrap() > ids[2]);
}

#[test]
fn a_line_cut_at_any_byte_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    Journal::open(dir.path(), "b").unwrap().begin(&change(80)).unwrap();
    let first = std::fs::read(&path).unwrap();
    Journal::open(dir.path(), "b").unwrap().begin(&change(81)).unwrap();
    let both = std::fs::read(&path).unwrap();
    for cut in first.len()..both.len() {
        std::fs::write(&path, &both[..cut]).unwrap();
        assert_eq!(Journal::read(dir.path()).unwrap().len(), 1, "at {cut}");
        let mut journal = Journal::open(dir.path(), "b").unwrap();
        assert_eq!(journal.begin(&change(81)).unwrap(), 2);
        drop(journal);
        assert_eq!(Journal::read(dir.path()).unwrap().len(), 2, "at {cut}");
    }
}

#[test]
fn one_process_writes_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Journal::open(dir.path(), "b").unwrap();
    let error = Journal::open(dir.path(), "b").unwrap_err().to_string();
    assert!(error.contains("another nearpath is changing this host"), "{error}");
    // Reading goes on meanwhile.
    first.begin(&change(80)).unwrap();
    assert_eq!(Journal::read(dir.path()).unwrap().len(), 1);
    drop(first);
    assert!(Journal::open(dir.path(), "b").is_ok());
}

#[test]
fn what_is_not_understood_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    for (text, said) in [
        ("{\"version\":2,\"event\":\"unheard of\"}\n", "line 1 is of a newer nearpath (version 2)"),
        ("garbage\n", "line 1 is not understood"),
    ] {
        std::fs::write(&path, text).unwrap();
        for error in [
            Journal::read(dir.path()).unwrap_err(),
            Journal::open(dir.path(), "b").map(drop).unwrap_err(),
        ] {
            assert!(error.to_string().contains(said), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "left as it was");
    }
}

#[test]
fn a_full_disk_leaves_whole_lines() {
    let mut journal = Journal {
        path: "/dev/full".into(),
        file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
        boot: "b".into(),
        next: 1,
        length: 0,
        entries: vec![],
    };
    let error = journal.begin(&change(80)).unwrap_err().to_string();
    assert!(error.contains("/dev/full") && error.contains("No space left"), "{error}");
    assert_eq!(journal.entries(), []);
}

#[test]
fn a_link_is_not_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    std::fs::write(&other, "").unwrap();
    std::os::unix::fs::symlink(&other, dir.path().join(FILE)).unwrap();
    let error = Journal::open(dir.path(), "b").unwrap_err().to_string();
    assert!(error.contains("symbolic links"), "{error}");
    assert_eq!(std::fs::read(&other).unwrap(), b"");
}

proptest! {
    /// Whatever stands in the file.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes, Path::new("journal"));
    }

    /// The same with one byte of a real journal changed.
    #[test]
    fn a_changed_byte_is_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "b").unwrap();
        let id = journal.begin(&change(80)).unwrap();
        journal.done(id).unwrap();
        let mut bytes = std::fs::read(dir.path().join(FILE)).unwrap();
        *at.get_mut(&mut bytes) = byte;
        if let Ok(parsed) = parse(&bytes, Path::new("journal")) {
            prop_assert!(parsed.entries.len() <= 1);
        }
    }
}
