//! The executor against a writer with configurable failures.

use super::*;
use crate::journal::tests::change;
use nearpath_model::State;
use std::cell::RefCell;
use std::rc::Rc;

/// A host of ports that are steered or not; records all calls.
#[derive(Default, Clone)]
struct Host {
    said: Rc<RefCell<Vec<String>>>,
    steered: Rc<RefCell<Vec<u16>>>,
    refuses: Option<u16>,
    keeps: Option<u16>,
    /// The second is undone only when the first is.
    after: Option<(u16, u16)>,
    journal: Option<std::path::PathBuf>,
    cannot: Option<Cannot>,
}

/// What a change is refused with.
type Cannot = Rc<dyn Fn(&Change) -> Option<TuneError>>;

fn impossible() -> TuneError {
    TuneError::Unsupported { step: "writing".to_owned(), reason: "managed".to_owned() }
}

fn port(change: &Change) -> u16 {
    change.target.group().unwrap().local.port()
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
            assert_eq!((&last.change, last.state), (change, State::Begun), "recorded before");
        }
        self.said.borrow_mut().push(format!("write {port}"));
        if let Some(error) = self.cannot.as_ref().and_then(|cannot| cannot(change)) {
            return Err(error);
        }
        self.steered.borrow_mut().push(port);
        if self.refuses == Some(port) { Err(TuneError::kernel("writing", "no")) } else { Ok(()) }
    }

    fn undo(&mut self, change: &Change, _: State) -> Result<(), TuneError> {
        let port = port(change);
        self.said.borrow_mut().push(format!("undo {port}"));
        if self.keeps == Some(port) {
            return Err(TuneError::kernel("undoing", "no"));
        }
        if self
            .after
            .is_some_and(|(first, then)| then == port && self.steered.borrow().contains(&first))
        {
            return Err(TuneError::kernel("undoing", "not yet"));
        }
        self.steered.borrow_mut().retain(|&other| other != port);
        Ok(())
    }
}

#[test]
fn changes_are_recorded_applied_and_undone() {
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
fn a_plan_is_applied_completely_or_not_at_all() {
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
fn changes_that_cannot_be_undone_stay_in_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host { refuses: Some(81), keeps: Some(80), ..Host::default() };
    let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
    let error = executor.apply(vec![change(80), change(81)]).unwrap_err().to_string();
    assert!(error.starts_with("writing: no; 1 change could not be undone: "), "{error}");
    assert!(error.contains("reuseport group 127.0.0.1:80: undoing: no"), "{error}");
    assert!(error.contains("'nearpath tune rollback' retries"), "{error}");
    let entries = Journal::read(dir.path()).unwrap();
    assert_eq!(entries.iter().map(|entry| port(&entry.change)).collect::<Vec<_>>(), [80]);
    assert!(executor.undo(&entries[0]).is_err());
    assert_eq!(Journal::read(dir.path()).unwrap(), entries);
}

#[test]
fn a_failed_plan_retries_undoing_dependent_changes() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host { after: Some((80, 81)), refuses: Some(82), ..Host::default() };
    let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
    let error = executor.apply(vec![change(80), change(81), change(82)]).unwrap_err();
    assert_eq!(error.to_string(), "writing: no");
    assert!(host.steered.borrow().is_empty() && executor.entries().is_empty());
    assert_eq!(host.said.borrow()[6..], ["undo 82", "undo 81", "undo 81", "undo 80", "undo 81"]);
}

#[test]
fn a_skipped_step_that_cannot_be_undone_fails_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let cannot = |c: &Change| (port(c) == 81).then(impossible);
    let host = Host { cannot: Some(Rc::new(cannot)), keeps: Some(81), ..Host::default() };
    let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
    let steps = [80, 81, 82].map(|port| Step { change: change(port), optional: true });
    let error = executor.apply_steps(steps.into()).unwrap_err().to_string();
    assert!(error.contains("managed; 1 change could not be undone"), "{error}");
    assert_eq!(executor.entries().iter().map(|e| port(&e.change)).collect::<Vec<_>>(), [81]);
    assert!(host.steered.borrow().is_empty());
}

#[test]
fn many_kept_changes_are_counted() {
    let kept = |port: u16, reason| Kept {
        id: Some(u64::from(port)),
        target: change(port).target.to_string(),
        reason,
    };
    let no = || TuneError::kernel("undoing", "no");
    let full = || TuneError::Journal { file: "/j".to_owned(), reason: "full".to_owned() };
    let said = NotUndone((80..85).map(|port| kept(port, no())).collect()).to_string();
    assert!(said.starts_with("5 changes could not be undone: reuseport group"), "{said}");
    assert_eq!((said.matches("undoing: no").count(), said.contains("; and 2 more;")), (3, true));
    let said = NotUndone(vec![kept(80, full()), kept(81, no())]).to_string();
    assert!(said.contains("1 change could not be undone: reuseport group"), "{said}");
    assert!(said.contains("; 1 change undone, but the journal still has it: journal /j: full"));
}

#[test]
fn only_optional_and_unsupported_steps_are_skipped() {
    let by_nature = |port| move |c: &Change| (self::port(c) == port).then(impossible);
    let apply = |optional: bool| {
        let dir = tempfile::tempdir().unwrap();
        let host = Host { cannot: Some(Rc::new(by_nature(81))), ..Host::default() };
        let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
        let steps = [80, 81, 82].map(|port| Step { change: change(port), optional });
        let outcome = executor.apply_steps(steps.into());
        (outcome, host.steered.borrow().clone(), executor.entries().len())
    };
    let (outcome, steered, entries) = apply(true);
    let outcome = outcome.unwrap();
    assert_eq!(outcome.made.iter().map(port).collect::<Vec<_>>(), [80, 82]);
    assert_eq!(outcome.skipped.iter().map(|s| port(&s.change)).collect::<Vec<_>>(), [81]);
    assert_eq!((steered, entries), (vec![80, 82], 2));
    let (outcome, steered, entries) = apply(false);
    assert!(matches!(outcome, Err(TuneError::Unsupported { .. })));
    assert_eq!((steered, entries), (vec![], 0));
}

#[test]
fn a_rollback_goes_backwards_and_continues_after_failures() {
    let dir = tempfile::tempdir().unwrap();
    // One of an earlier boot, which is dropped and not touched.
    let old = Journal::open(dir.path(), "older").unwrap();
    Executor::new(old, Host::default()).apply(vec![change(79)]).unwrap();
    let host = Host { keeps: Some(81), ..Host::default() };
    let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
    executor.apply(vec![change(80), change(81), change(82)]).unwrap();
    let first = executor.entries()[1].id;
    host.said.borrow_mut().clear();
    let undone = |undone: Vec<(Entry, Result<(), TuneError>)>| -> Vec<(u16, bool)> {
        undone.iter().map(|(entry, result)| (port(&entry.change), result.is_ok())).collect()
    };
    assert_eq!(undone(executor.rollback(Some(first), "b")), [(82, true), (81, false)]);
    assert_eq!(undone(executor.rollback(None, "b")), [(81, false), (80, true), (79, true)]);
    // 81 three times each, twice of them at once, and 79 not at all.
    let said = [82, 81, 81, 81, 81, 81, 80, 81].map(|port| format!("undo {port}"));
    assert_eq!(*host.said.borrow(), said);
    assert_eq!(executor.entries().iter().map(|e| port(&e.change)).collect::<Vec<_>>(), [81]);
}

#[test]
fn a_rollback_retries_dependent_changes() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host { after: Some((80, 82)), ..Host::default() };
    let mut executor = Executor::new(Journal::open(dir.path(), "b").unwrap(), host.clone());
    executor.apply(vec![change(80), change(81), change(82)]).unwrap();
    host.said.borrow_mut().clear();
    let ends = executor.rollback(None, "b");
    assert!(ends.iter().all(|(_, undone)| undone.is_ok()), "{ends:?}");
    assert_eq!(*host.said.borrow(), ["undo 82", "undo 82", "undo 81", "undo 80", "undo 82"]);
    assert!(executor.entries().is_empty() && host.steered.borrow().is_empty());
}

#[test]
fn a_dry_run_shows_possible_changes_and_refuses_others() {
    let shown = RefCell::new(Vec::new());
    let made = |change: &Change| shown.borrow_mut().push(port(change));
    let check = |change: Change| match port(&change) {
        81 => Err(TuneError::InPlace("81".to_owned())),
        82 => Err(impossible()),
        83 => Err(TuneError::kernel("checking", "no")),
        _ => Ok(change),
    };
    let mut executor = Executor::dry(DryRun { check, made, undone: |_: &Change| {} });
    let steps = |ports: &[u16]| -> Vec<Step> {
        ports.iter().map(|port| Step { change: change(*port), optional: true }).collect()
    };
    let outcome = executor.apply_steps(steps(&[80, 81, 82, 84])).unwrap();
    assert_eq!(outcome.made.iter().map(port).collect::<Vec<_>>(), [80, 84]);
    assert_eq!(outcome.skipped.iter().map(|s| port(&s.change)).collect::<Vec<_>>(), [81, 82]);
    let error = executor.apply_steps(steps(&[80, 83])).unwrap_err();
    assert_eq!(error.to_string(), "checking: no");
    drop(executor);
    assert_eq!(shown.into_inner(), [80, 84, 80]);
}
