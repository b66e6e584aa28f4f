//! A process that is repeatedly killed while it changes a host: the journal stays intact, and has every change that may be
//! in effect.

use nearpath_model::{
    Change, Persistence, Program, ReuseportGroup, SocketProtocol, State, Target, Value,
};
use nearpath_tune::{Executor, Journal, TuneError, Writer};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// In the process to be killed: the journal's directory.
const FOLDER: &str = "NEARPATH_TEST_KILLED_IN";
/// The change that no process undoes.
const KEPT: u16 = 80;
/// So long that the journal is compacted at every third change.
const WHY: usize = 30_000;

/// A host without any objects.
struct Nothing;

impl Writer for Nothing {
    fn prepare(&mut self, change: Change) -> Result<Change, TuneError> {
        Ok(change)
    }

    fn write(&mut self, _: &Change) -> Result<(), TuneError> {
        Ok(())
    }

    fn undo(&mut self, _: &Change, _: State) -> Result<(), TuneError> {
        Ok(())
    }
}

fn change(port: u16) -> Change {
    let local = ([127, 0, 0, 1], port).into();
    let group =
        ReuseportGroup { protocol: SocketProtocol::Tcp, local, netns: Some(1), sockets: vec![] };
    Change {
        target: Target::ReuseportGroup(group),
        before: Value::Default,
        after: Value::Program(Program::cpu_modulo(2)),
        why: "x".repeat(WHY),
        persistence: Persistence::WhileOpen,
        snapshot: Vec::new(),
    }
}

fn executor(folder: &Path) -> Executor<Nothing> {
    Executor::new(Journal::open(folder, "boot").unwrap(), Nothing)
}

/// Applies and undoes a change until it is killed, printing a line for each.
fn change_for_ever(folder: &OsStr) -> ! {
    let (mut executor, mut out) = (executor(folder.as_ref()), std::io::stdout());
    loop {
        executor.apply(vec![change(81)]).unwrap();
        let made = executor.entries().pop().unwrap();
        executor.undo(&made).unwrap();
        writeln!(out, "undone {}", made.id).unwrap();
    }
}

#[test]
fn the_journal_is_intact_whenever_its_writer_is_killed() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        change_for_ever(&folder);
    }
    let dir = tempfile::tempdir().unwrap();
    executor(dir.path()).apply(vec![change(KEPT)]).unwrap();
    let kept = Journal::read(dir.path()).unwrap();
    let mut last = 0;
    for round in 0..40 {
        let name = std::thread::current().name().unwrap().to_owned();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact", "--nocapture"])
            .env(FOLDER, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let undone = lines.by_ref().map(Result::unwrap).filter_map(number);
        let seen = undone.take(1 + round % 7).last().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        let reported = lines.map_while(Result::ok).filter_map(number).last();
        let entries = Journal::read(dir.path()).unwrap();
        assert_eq!(entries[0], kept[0]);
        // At most the change in progress.
        for entry in &entries[1..] {
            assert!(entry.id > reported.unwrap_or(seen), "{} is there again", entry.id);
            assert!(matches!(entry.state, State::Begun | State::Done));
        }
        assert!(entries.len() <= 2 && seen > last);
        last = seen;
        let mut executor = executor(dir.path());
        entries[1..].iter().for_each(|entry| executor.undo(entry).unwrap());
        assert_eq!(executor.entries(), kept);
    }
    let length = std::fs::metadata(dir.path().join("journal.jsonl")).unwrap().len();
    assert!(length < 5 * WHY as u64, "{last} changes in {length} bytes");
}

/// Of a line of [`change_for_ever`].
fn number(line: String) -> Option<u64> {
    line.strip_prefix("undone ")?.parse().ok()
}
