//! The journal after interrupted writes, with other versions, with two writers, and after many changes.

use super::file::NEW;
use super::*;
use nearpath_model::{Persistence, Program, ReuseportGroup, SocketProtocol, State, Target, Value};
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddr};

/// A change of the group on a port.
pub fn change(port: u16) -> Change {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let group =
        ReuseportGroup { protocol: SocketProtocol::Tcp, local, netns: Some(1), sockets: vec![] };
    Change {
        target: Target::ReuseportGroup(group),
        before: Value::Default,
        after: Value::Program(Program::cpu_modulo(2)),
        why: "a test".to_owned(),
        persistence: Persistence::WhileOpen,
        snapshot: Vec::new(),
    }
}

#[test]
fn entries_that_were_not_undone_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made/for/it");
    assert_eq!(Journal::read(&folder).unwrap(), []);
    let mut journal = Journal::open(&folder, "boot").unwrap();
    let ids: Vec<u64> = (80..83).map(|port| journal.begin(&change(port), None).unwrap()).collect();
    journal.done(ids[0]).unwrap();
    journal.done(ids[1]).unwrap();
    journal.undone(ids[0]).unwrap();
    let entries = Journal::read(&folder).unwrap();
    assert_eq!(entries, journal.entries());
    let states: Vec<_> = entries.iter().map(|entry| (entry.id, entry.state)).collect();
    assert_eq!(states, [(ids[1], State::Done), (ids[2], State::Begun)]);
    assert!(entries.iter().all(|entry| entry.boot == "boot" && entry.time_s > 0));
    // Numbers are not reused.
    drop(journal);
    let mut journal = Journal::open(&folder, "later").unwrap();
    assert!(journal.begin(&change(84), None).unwrap() > ids[2]);
}

#[test]
fn a_line_cut_at_any_byte_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    Journal::open(dir.path(), "b").unwrap().begin(&change(80), None).unwrap();
    let first = std::fs::read(&path).unwrap();
    Journal::open(dir.path(), "b").unwrap().begin(&change(81), None).unwrap();
    let both = std::fs::read(&path).unwrap();
    for cut in first.len()..both.len() {
        std::fs::write(&path, &both[..cut]).unwrap();
        assert_eq!(Journal::read(dir.path()).unwrap().len(), 1, "at {cut}");
        let mut journal = Journal::open(dir.path(), "b").unwrap();
        assert_eq!(journal.begin(&change(81), None).unwrap(), 2);
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
    // Reading still works.
    first.begin(&change(80), None).unwrap();
    assert_eq!(Journal::read(dir.path()).unwrap().len(), 1);
    drop(first);
    assert!(Journal::open(dir.path(), "b").is_ok());
}

#[test]
fn unknown_versions_and_garbage_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let newer = JOURNAL_VERSION + 1;
    for (text, line) in [
        (format!("{{\"version\":{newer},\"event\":\"unheard of\"}}\n"), 1),
        (format!("garbage\n{{\"version\":{newer}}}\n"), 2),
    ] {
        let said = format!("line {line} was written by a newer nearpath (version {newer})");
        std::fs::write(&path, &text).unwrap();
        for error in [
            Journal::read(dir.path()).unwrap_err(),
            Journal::open(dir.path(), "b").map(drop).unwrap_err(),
        ] {
            assert!(error.to_string().contains(&said), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "unchanged");
    }
}

/// The lines of a journal with three applied changes.
fn lines_of_three(folder: &Path) -> Vec<Vec<u8>> {
    let mut journal = Journal::open(folder, "b").unwrap();
    for port in 80..83 {
        let id = journal.begin(&change(port), None).unwrap();
        journal.done(id).unwrap();
    }
    let bytes = std::fs::read(folder.join(FILE)).unwrap();
    let lines: Vec<Vec<u8>> = bytes.split_inclusive(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
    assert_eq!(lines.len(), 6);
    lines
}

#[test]
fn a_damaged_last_line_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let mut lines = lines_of_three(dir.path());
    // Change 82 as it begins.
    lines.pop();
    let last = lines.last().unwrap().clone();
    let place = last.windows(2).position(|bytes| bytes == b"82").unwrap();
    let zeroes = [vec![0; last.len() - 1], b"\n".to_vec()].concat();
    // JSON still, but not what was written.
    let mut other = last.clone();
    other[place] = b'9';
    for damaged in [zeroes, other, b"garbage\n".to_vec(), b"\n\xff\n".to_vec()] {
        *lines.last_mut().unwrap() = damaged.clone();
        std::fs::write(&path, lines.concat()).unwrap();
        let contents = Journal::contents(dir.path()).unwrap();
        assert_eq!((contents.entries.len(), contents.damaged.len()), (2, 0), "{damaged:?}");
        assert!(contents.warnings().concat().contains("damaged last line"), "{contents:?}");
        assert!(Journal::check(dir.path()).is_ok());
        let mut journal = Journal::open(dir.path(), "b").unwrap();
        assert_eq!(journal.begin(&change(82), None).unwrap(), 3);
        drop(journal);
        let contents = Journal::contents(dir.path()).unwrap();
        assert_eq!((contents.entries.len(), contents.torn), (3, None), "{damaged:?}");
    }
}

#[test]
fn a_damaged_line_before_others_hides_only_its_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let lines = lines_of_three(dir.path());
    let whole = lines.concat();
    for at in 0..lines.len() - 1 {
        let mut damaged = lines.clone();
        let place = damaged[at].len() / 2;
        damaged[at][place] ^= 1;
        std::fs::write(&path, damaged.concat()).unwrap();
        let contents = Journal::contents(dir.path()).unwrap();
        // Whether a change was applied can be seen on the host.
        assert_eq!(contents.entries.len(), if at % 2 == 0 { 2 } else { 3 }, "{at}");
        let said = format!("line {} is damaged (wrong checksum)", at + 1);
        assert!(contents.warnings().concat().contains(&said), "{:?}", contents.warnings());
        let mut journal = Journal::open(dir.path(), "b").unwrap();
        for error in
            [Journal::check(dir.path()).unwrap_err(), journal.begin(&change(84), None).unwrap_err()]
        {
            assert!(error.to_string().contains(&said), "{error}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), damaged.concat(), "unchanged");
        for entry in contents.entries {
            journal.undone(entry.id).unwrap();
        }
        drop(journal);
        assert_eq!(Journal::read(dir.path()).unwrap(), [], "{at}");
        std::fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn lines_of_older_versions_have_no_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let lines = lines_of_three(dir.path());
    let entries = Journal::read(dir.path()).unwrap();
    let older: Vec<u8> = lines
        .iter()
        .flat_map(|line| {
            let at = line.windows(9).position(|bytes| bytes == b",\"crc32\":").unwrap();
            [&line[..at], b"}\n"].concat()
        })
        .collect();
    std::fs::write(dir.path().join(FILE), older).unwrap();
    let contents = Journal::contents(dir.path()).unwrap();
    assert_eq!(contents, JournalContents { entries, ..JournalContents::default() });
}

#[test]
fn a_full_disk_leaves_complete_lines() {
    let mut journal = Journal {
        path: "/dev/full".into(),
        file: JournalFile::full(),
        boot: "b".into(),
        next: 1,
        long: SHORT,
        entries: vec![],
        damaged: vec![],
    };
    let error = journal.begin(&change(80), None).unwrap_err().to_string();
    assert!(error.contains("/dev/full") && error.contains("No space left"), "{error}");
    assert_eq!(journal.entries(), []);
}

#[test]
fn a_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    std::fs::write(&other, "").unwrap();
    std::os::unix::fs::symlink(&other, dir.path().join(FILE)).unwrap();
    for error in [
        Journal::open(dir.path(), "b").unwrap_err().to_string(),
        Journal::read(dir.path()).unwrap_err().to_string(),
    ] {
        assert!(error.contains("symbolic links"), "{error}");
    }
    assert_eq!(std::fs::read(&other).unwrap(), b"");
}

#[test]
fn special_and_oversized_files_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let refused = |said: &str| {
        let read = Journal::read(dir.path()).unwrap_err().to_string();
        let opened = Journal::open(dir.path(), "b").unwrap_err().to_string();
        assert!(read.contains(said) && opened.contains(said), "{read}; {opened}");
    };
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    refused("not a regular file");
    std::fs::remove_file(&path).unwrap();
    std::fs::File::create(&path).unwrap().set_len(LONGEST + 1).unwrap();
    refused("longer than 64 MiB");
    std::fs::write(
        &path,
        "{\"version\":1,\"id\":18446744073709551615,\"time_s\":0,\
        \"boot\":\"b\",\"event\":\"undone\"}\n",
    )
    .unwrap();
    let error = Journal::open(dir.path(), "b").unwrap_err().to_string();
    assert!(error.contains("no change numbers left"), "{error}");
}

#[test]
fn the_fuzz_seed_is_a_journal() {
    let seed = include_bytes!("../../../../fuzz/corpus/journal/changes");
    let Parsed { entries, last, whole, .. } = parse(seed).unwrap();
    let states: Vec<_> = entries.iter().map(|entry| (entry.id, entry.state)).collect();
    assert_eq!((states, last), (vec![(1, State::Done), (2, State::Begun)], 3));
    assert!(whole < seed.len(), "the last line is cut");
    fuzzing(seed);
}

/// A change so long that three of them exceed the compaction threshold.
fn long_change(port: u16) -> Change {
    Change { why: "x".repeat(30_000), ..change(port) }
}

fn length(folder: &Path) -> u64 {
    std::fs::metadata(folder.join(FILE)).unwrap().len()
}

#[test]
fn undone_changes_are_dropped_eventually() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), "first").unwrap();
    let kept = journal.begin(&change(80), None).unwrap();
    journal.done(kept).unwrap();
    let begun = journal.begin(&change(81), None).unwrap();
    let entries = journal.entries().to_vec();
    drop(journal);
    let mut last = 0;
    for round in 0..200 {
        // Reopened now and then, as by successive commands.
        let mut journal = Journal::open(dir.path(), "later").unwrap();
        for _ in 0..=round % 3 {
            let id = journal.begin(&long_change(82), None).unwrap();
            assert!(id > last && id > begun);
            journal.done(id).unwrap();
            journal.undone(id).unwrap();
            last = id;
        }
        assert_eq!(journal.entries(), entries);
        assert_eq!(Journal::read(dir.path()).unwrap(), entries);
        assert!(length(dir.path()) < SHORT + 40_000, "{} in round {round}", length(dir.path()));
    }
    assert!(!dir.path().join(NEW).exists());
}

#[test]
fn numbers_are_not_reused_when_the_journal_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for _ in 0..20 {
        let mut journal = Journal::open(dir.path(), "b").unwrap();
        let id = journal.begin(&long_change(80), None).unwrap();
        assert_eq!(id, last + 1);
        journal.undone(id).unwrap();
        last = id;
    }
}

#[test]
fn a_journal_of_many_changes_is_rarely_rewritten() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), "b").unwrap();
    let mut files = std::collections::BTreeSet::new();
    for port in 0..400 {
        let id = journal.begin(&Change { why: "x".repeat(1000), ..change(port) }, None).unwrap();
        journal.done(id).unwrap();
        files.insert(std::fs::metadata(dir.path().join(FILE)).unwrap().ino());
    }
    assert_eq!(Journal::read(dir.path()).unwrap().len(), 400);
    assert_eq!(files.len(), 1, "nothing can be dropped");
}

#[test]
fn an_obstacle_to_compaction_is_removed_or_tolerated() {
    let dir = tempfile::tempdir().unwrap();
    let (new, other) = (dir.path().join(NEW), dir.path().join("other"));
    std::fs::write(&other, "as it was").unwrap();
    let rounds = |folder: &Path, wanted: std::ops::Range<u64>| {
        let mut journal = Journal::open(folder, "b").unwrap();
        for _ in 0..8 {
            let id = journal.begin(&long_change(80), None).unwrap();
            journal.undone(id).unwrap();
        }
        assert!(wanted.contains(&length(folder)), "{}", length(folder));
    };
    // Left by a crash.
    std::fs::write(&new, "half a li").unwrap();
    rounds(dir.path(), 0..SHORT + 40_000);
    std::os::unix::fs::symlink(&other, &new).unwrap();
    rounds(dir.path(), 0..SHORT + 40_000);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "as it was");
    assert!(new.symlink_metadata().is_err(), "neither file nor link is left");
    // It cannot be removed: the journal stays long but correct.
    std::fs::create_dir(&new).unwrap();
    rounds(dir.path(), 8 * 30_000..u64::MAX);
    assert_eq!(Journal::read(dir.path()).unwrap(), []);
    std::fs::remove_dir(&new).unwrap();
    rounds(dir.path(), 0..SHORT + 40_000);
}

#[test]
fn writers_alternate_while_files_are_replaced() {
    const EACH: u16 = 40;
    let dir = tempfile::tempdir().unwrap();
    let work = |port: u16| {
        for round in 0..EACH {
            let mut journal = loop {
                match Journal::open(dir.path(), "b") {
                    Ok(journal) => break journal,
                    Err(error) if error.to_string().contains("another nearpath") => {
                        std::thread::yield_now();
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            let id = journal.begin(&long_change(port), None).unwrap();
            journal.done(id).unwrap();
            if round + 1 < EACH {
                journal.undone(id).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        (1..4).for_each(|port| drop(scope.spawn(move || work(port))));
    });
    let entries = Journal::read(dir.path()).unwrap();
    assert_eq!(entries.len(), 3);
    let next = Journal::open(dir.path(), "b").unwrap().begin(&change(80), None).unwrap();
    assert_eq!(next, u64::from(3 * EACH) + 1, "each number once");
}

proptest! {
    /// Any bytes in the file.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzzing(&bytes);
    }

    /// One byte of a real journal changed.
    #[test]
    fn a_changed_byte_is_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "b").unwrap();
        let id = journal.begin(&change(80), None).unwrap();
        journal.done(id).unwrap();
        let mut bytes = std::fs::read(dir.path().join(FILE)).unwrap();
        let whole = parse(&bytes).unwrap().entries;
        *at.get_mut(&mut bytes) = byte;
        fuzzing(&bytes);
        if let Ok(parsed) = parse(&bytes) {
            // Never a change other than the one written.
            let same = |entry: &Entry| entry.change == whole[0].change && entry.id == whole[0].id;
            prop_assert!(parsed.entries.len() <= 1 && parsed.entries.iter().all(same));
        }
    }
}
