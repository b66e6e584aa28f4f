//! The executor against a writer that is told when to fail.

use super::*;
use crate::State;
use crate::journal::tests::change;
use std::cell::RefCell;
use std::rc::Rc;

/// A host of ports that are steered or not; what it is asked for is written down.
#[derive(Default, Clone)]
struct Host {
    said: Rc<RefCell<Vec<String>>>,
    steered: Rc<RefCell<Vec<u16>>>,
    refuses: Option<u16>,
    keeps: Option<u16>,
    journal: Option<std::path::PathBuf>,
}

fn port(change: &Change) -> u16 {
    let crate::Target::ReuseportGroup(group) = &change.target;
    group.local.port()
}

impl Writer for Host {
    fn prepare(&mut self, change: Change) -> Result<Change, TuneError> {
        self.said.borrow_mut().push(format!("prepare {}", port(&change)));
        Ok(change)
    }

    fn write(&mut self, change: &Change) -> Result<(), TuneError> {
        let port = port(change);
        if let Some(folder) = &self.journal {
            let entries = Journal::read(folder).unwrap();
            let last = entries.last().unwrap();
            assert_eq!((&last.change, last.state), (change, State::Begun), "written down before");
        }
        self.said.borrow_mut().push(format!("write {port}"));
        self.steered.borrow_mut().push(port);
        if self.refuses == Some(port) { Err(TuneError::kernel("writing", "no")) } else { Ok(()) }
    }

    fn undo(&mut self, change: &Change) -> Result<(), TuneError> {
        let port = port(change);
        self.said.borrow_mut().push(format!("undo {port}"));
        if self.keeps == Some(port) {
            return Err(TuneError::kernel("undoing", "no"));
        }
        self.steered.borrow_mut().retain(|&other| other != port);
        Ok(())
    }
}

#[test]
fn changes_are_written_down_made_and_undone() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host { journal: Some(dir.path().to_owned()), ..Host::default() };
    let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
    executor.apply(vec![change(80), change(81)]).unwrap();
    assert_eq!(*host.said.borrow(), ["prepare 80", "write 80", "prepare 81", "write 81"]);
    let entries = Journal::read(dir.path()).unwrap();
    assert!(entries.len() == 2 && entries.iter().all(|entry| entry.state == State::Done));
    executor.undo(&entries[0]).unwrap();
    assert_eq!(*host.steered.borrow(), [81]);
    assert_eq!(Journal::read(dir.path()).unwrap(), entries[1..]);
}

#[test]
fn a_plan_is_made_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host { refuses: Some(82), ..Host::default() };
    let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
    let error = executor.apply(vec![change(80), change(81), change(82), change(83)]).unwrap_err();
    assert_eq!(error.to_string(), "writing: no");
    assert!(host.steered.borrow().is_empty());
    assert_eq!(Journal::read(dir.path()).unwrap(), []);
    assert_eq!(host.said.borrow()[6..], ["undo 82", "undo 81", "undo 80"]);
}

#[test]
fn what_could_not_be_taken_back_stays_in_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host { refuses: Some(81), keeps: Some(80), ..Host::default() };
    let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
    executor.apply(vec![change(80), change(81)]).unwrap_err();
    let entries = Journal::read(dir.path()).unwrap();
    assert_eq!(entries.iter().map(|entry| port(&entry.change)).collect::<Vec<_>>(), [80]);
    assert!(executor.undo(&entries[0]).is_err());
    assert_eq!(Journal::read(dir.path()).unwrap(), entries);
}

#[test]
fn a_dry_run_only_shows() {
    let shown = RefCell::new(Vec::new());
    let made = |change: &Change| shown.borrow_mut().push(port(change));
    let mut executor = Executor::dry(DryRun { made, undone: |_: &Change| {} });
    executor.apply(vec![change(80), change(81)]).unwrap();
    drop(executor);
    assert_eq!(shown.into_inner(), [80, 81]);
}
