//! A setting whose readings may still have the value before the last write.

use super::*;
use nearpath_model::{FileOf, IrqNumber, Persistence, SettingFile, Target};
use std::cell::{Cell, RefCell};

/// The affinity of an interrupt: what was written is pending, and so many readings still have the value before.
#[derive(Default)]
struct Interrupt {
    affinity: RefCell<String>,
    pending: RefCell<Option<String>>,
    late: Cell<u32>,
    /// Readings that are late after each write.
    lateness: u32,
}

impl Setting for Interrupt {
    fn name(&self) -> String {
        "the interrupt".to_owned()
    }

    fn check(&self, _: &str) -> Result<(), TuneError> {
        Ok(())
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        if self.late.get() == 0 {
            self.settle();
        }
        self.late.set(self.late.get().saturating_sub(1));
        Ok(Some(self.affinity.borrow().clone()))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        *self.pending.borrow_mut() = Some(value.to_owned());
        self.late.set(self.lateness);
        Ok(())
    }

    fn same(&self, a: &str, b: &str) -> bool {
        a == b
    }

    fn reads_late(&self) -> bool {
        true
    }
}

impl Interrupt {
    fn new(lateness: u32) -> Self {
        Self { affinity: RefCell::new("1".to_owned()), lateness, ..Self::default() }
    }

    fn settle(&self) {
        if let Some(pending) = self.pending.take() {
            *self.affinity.borrow_mut() = pending;
        }
    }

    fn change(&self) -> Change {
        let target = Target::from(SettingFile::from(FileOf::Irq(IrqNumber(41))));
        let value = |text: &str| Value::Text(text.to_owned());
        let why = "test".to_owned();
        let change = Change {
            target,
            before: value("1"),
            after: value("3"),
            snapshot: vec![],
            why,
            persistence: Persistence::UntilReboot,
        };
        prepare(self, change, false).unwrap()
    }
}

#[test]
fn a_value_that_is_taken_late_is_taken() {
    let interrupt = Interrupt::new(5);
    let change = interrupt.change();
    write(&interrupt, &change).unwrap();
    assert_eq!(*interrupt.affinity.borrow(), "3");
    undo(&interrupt, &change, false, false).unwrap();
    assert_eq!(*interrupt.affinity.borrow(), "1");
}

#[test]
fn a_value_that_is_never_taken_is_an_error() {
    let interrupt = Interrupt::new(u32::MAX);
    let error = write(&interrupt, &interrupt.change()).unwrap_err().to_string();
    assert!(error.contains("the kernel accepted it, but has \"1\""), "{error}");
}

#[test]
fn an_undo_is_not_overtaken_by_the_change() {
    let interrupt = Interrupt::new(2);
    let change = interrupt.change();
    write(&interrupt, &change).unwrap();
    // Written again, and the undo reads what was there before.
    *interrupt.affinity.borrow_mut() = "1".to_owned();
    interrupt.write("3").unwrap();
    undo(&interrupt, &change, false, false).unwrap();
    interrupt.settle();
    assert_eq!(*interrupt.affinity.borrow(), "1");
}
