//! A setting that loses CPUs as they go offline, or is set by a driver then.

use super::tests::{driver, prepared};
use super::*;
use nearpath_model::{CpuSet, Target};
use std::cell::RefCell;

/// A mask of CPUs, of which some are offline: the kernel drops those from what is written. A driver sets it to
/// `driven` when a CPU goes.
struct Mask {
    now: RefCell<String>,
    online: RefCell<CpuSet>,
    driven: &'static str,
    cpus_changed: RefCell<bool>,
}

fn cpus(mask: &str) -> CpuSet {
    CpuSet::from_mask(mask).unwrap()
}

impl Mask {
    fn new(now: &str) -> Self {
        Self {
            now: RefCell::new(now.to_owned()),
            online: RefCell::new(cpus("f")),
            driven: "2",
            cpus_changed: RefCell::new(false),
        }
    }

    fn plug(&self, online: &str) {
        *self.online.borrow_mut() = cpus(online);
        *self.cpus_changed.borrow_mut() = true;
    }

    fn set(&self, now: &str) {
        now.clone_into(&mut self.now.borrow_mut());
    }

    fn stored(&self, value: &str) -> CpuSet {
        cpus(value).intersection(&self.online.borrow())
    }
}

impl Setting for Mask {
    fn name(&self) -> String {
        "the mask".to_owned()
    }

    fn check(&self, _: &str) -> Result<(), TuneError> {
        Ok(())
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        Ok(Some(self.now.borrow().clone()))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.set(&self.stored(value).to_mask());
        Ok(())
    }

    fn same(&self, now: &str, value: &str) -> bool {
        let stored = self.stored(value);
        cpus(now) == cpus(value) || (!stored.is_empty() && cpus(now) == stored)
    }

    fn possible(&self, value: &str) -> Possible {
        let stored = self.stored(value);
        let replaced = stored.is_empty() && !cpus(value).is_empty();
        Possible { text: stored.to_mask(), replaced }
    }

    fn cpus_changed(&self) -> bool {
        *self.cpus_changed.borrow()
    }

    fn is_left_by_kernel(&self, now: &str, was: &str) -> bool {
        let (now, was) = (cpus(now), cpus(was));
        let dropped = now != was && now.is_subset(&was) && was.difference(&now) == cpus("8");
        self.cpus_changed() && (now == cpus(self.driven) || dropped)
    }
}

fn of_mask(before: &str, after: &str) -> Change {
    let target = Target::parse("/sys/class/net/e/queues/tx-0/xps_cpus", None).unwrap();
    Change { target, before: before.into(), after: after.into(), ..prepared(&driver()) }
}

#[test]
fn a_mask_with_an_offline_cpu_is_restored_as_far_as_possible() {
    let mask = Mask::new("f");
    let change = prepare(&mask, of_mask("f", "1"), false).unwrap();
    write(&mask, &change).unwrap();
    mask.plug("7");
    undo(&mask, &change, false, false).unwrap();
    assert_eq!(cpus(&mask.now.borrow()), cpus("7"));
    // If nearpath was killed before the journal had that: while the CPU is offline, and when it is back.
    undo(&mask, &change, false, false).unwrap();
    mask.plug("f");
    undo(&mask, &change, false, false).unwrap();
    assert_eq!(cpus(&mask.now.borrow()), cpus("f"));
}

#[test]
fn a_mask_is_applied_without_a_cpu_that_went_meanwhile() {
    let mask = Mask::new("1");
    let change = prepare(&mask, of_mask("1", "c"), false).unwrap();
    mask.plug("7");
    write(&mask, &change).unwrap();
    assert_eq!(cpus(&mask.now.borrow()), cpus("4"));
    assert_eq!(look(&mask, &change).unwrap(), ObservedValue::After);
    // When it is back, it lacks.
    mask.plug("f");
    let ObservedValue::Unplugged { is_before: false, .. } = look(&mask, &change).unwrap() else {
        panic!()
    };
    undo(&mask, &change, false, false).unwrap();
    assert_eq!(cpus(&mask.now.borrow()), cpus("1"));
    // None of its CPUs is left.
    let change = prepare(&mask, of_mask("1", "8"), false).unwrap();
    mask.plug("7");
    assert!(write(&mask, &change).is_err());
    assert_eq!(cpus(&mask.now.borrow()), cpus("1"));
}

#[test]
fn what_a_driver_sets_is_nobodys_choice_though_it_was_there_before() {
    let mask = Mask::new("2");
    let change = prepare(&mask, of_mask("2", "1"), false).unwrap();
    write(&mask, &change).unwrap();
    // Before any CPU went, it was set back externally.
    mask.set("2");
    assert_eq!(look(&mask, &change).unwrap(), ObservedValue::Before);
    mask.plug("7");
    let unplugged = ObservedValue::Unplugged { now: "2".to_owned(), is_before: true };
    assert_eq!(look(&mask, &change).unwrap(), unplugged);
    undo(&mask, &change, false, false).unwrap();
    assert_eq!(*mask.now.borrow(), "2");
}

#[test]
fn what_a_driver_sets_stays_if_no_cpu_of_the_old_value_is_online() {
    let mask = Mask::new("8");
    let change = prepare(&mask, of_mask("8", "1"), false).unwrap();
    write(&mask, &change).unwrap();
    mask.plug("7");
    mask.set("2");
    undo(&mask, &change, false, false).unwrap();
    assert_eq!(*mask.now.borrow(), "2");
}
