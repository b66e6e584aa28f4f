use super::*;
use nearpath_model::{Ethtool, NicSetting, Persistence, SavedFile, Target};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A driver with a number, and parts that each write of the number sets to `wiped`; those in `recreated` are
/// there only while the number is at least 4.
#[derive(Default)]
pub(super) struct Driver {
    number: RefCell<String>,
    parts: RefCell<BTreeMap<String, String>>,
    fails: RefCell<Option<&'static str>>,
    /// Stores an odd number as the next even one, and reports that as an error.
    rounds: bool,
}

struct Part<'a>(&'a Driver, String);

impl Setting for Part<'_> {
    fn name(&self) -> String {
        self.1.clone()
    }

    fn check(&self, _: &str) -> Result<(), TuneError> {
        Ok(())
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        Ok(self.0.parts.borrow().get(&self.1).cloned())
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        if *self.0.fails.borrow() == Some(self.1.as_str()) {
            return Err(TuneError::kernel(self.1.as_str(), "it fails"));
        }
        self.0.parts.borrow_mut().insert(self.1.clone(), value.to_owned());
        Ok(())
    }

    fn same(&self, a: &str, b: &str) -> bool {
        a == b
    }

    fn is_left_by_kernel(&self, now: &str, _: &str) -> bool {
        now == "left"
    }
}

impl Dependents for Driver {
    fn take(&self) -> Result<Vec<Saved>, TuneError> {
        let saved = |(name, value): (&String, &String)| Saved {
            part: match name.as_str() {
                "rss" => SavedPart::Rss,
                name => SavedPart::QueueFile(SavedFile::try_from(name.to_owned()).unwrap()),
            },
            value: value.clone(),
        };
        Ok(self.parts.borrow().iter().map(saved).collect())
    }

    fn with(
        &self,
        part: &SavedPart,
        run: &mut dyn FnMut(&dyn Setting) -> Result<(), TuneError>,
    ) -> Result<Option<()>, TuneError> {
        if !self.parts.borrow().contains_key(&part.to_string()) {
            return Ok(None);
        }
        run(&Part(self, part.to_string())).map(Some)
    }
}

impl Setting for Driver {
    fn name(&self) -> String {
        "the driver".to_owned()
    }

    fn check(&self, _: &str) -> Result<(), TuneError> {
        Ok(())
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        Ok(Some(self.number.borrow().clone()))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let number: u32 = value.parse().unwrap();
        let kept = (if self.rounds { number.next_multiple_of(2) } else { number }).to_string();
        kept.clone_into(&mut self.number.borrow_mut());
        let mut parts = self.parts.borrow_mut();
        parts.values_mut().for_each(|part| "wiped".clone_into(part));
        match value {
            "2" => drop(parts.remove("rx-3/rps_cpus")),
            _ => drop(parts.insert("rx-3/rps_cpus".to_owned(), "wiped".to_owned())),
        }
        if kept != value {
            let reason = format!("the driver set it to {kept}");
            return Err(TuneError::ValueNotTaken { step: "writing".to_owned(), reason });
        }
        Ok(())
    }

    fn is_rounded(&self, now: &str, written: &str) -> bool {
        now.parse::<u32>().unwrap().abs_diff(written.parse().unwrap()) == 1
    }

    fn same(&self, a: &str, b: &str) -> bool {
        a == b
    }

    fn dependents(&self) -> Option<&dyn Dependents> {
        Some(self)
    }
}

pub(super) fn driver() -> Driver {
    let parts = [("rx-0/rps_cpus", "0"), ("rx-3/rps_cpus", "3"), ("rss", "equal 4")];
    let parts = parts.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Driver {
        number: RefCell::new("4".to_owned()),
        parts: RefCell::new(BTreeMap::from(parts)),
        ..Driver::default()
    }
}

pub(super) fn prepared(driver: &Driver) -> Change {
    prepared_to(driver, "2")
}

fn prepared_to(driver: &Driver, after: &str) -> Change {
    let change = Change {
        target: Target::Nic(NicSetting::new("eth0", Ethtool::Channels)),
        before: "4".into(),
        after: after.into(),
        why: "a test".to_owned(),
        persistence: Persistence::UntilReboot,
        snapshot: Vec::new(),
    };
    prepare(driver, change, false).unwrap()
}

fn state(driver: &Driver) -> (String, Vec<(String, String)>) {
    (driver.number.borrow().clone(), driver.parts.borrow().clone().into_iter().collect())
}

#[test]
fn surviving_parts_are_kept_and_all_parts_restored_by_undo() {
    let driver = driver();
    let before = state(&driver);
    let change = prepared(&driver);
    write(&driver, &change).unwrap();
    // A next step on rx-0 finds what it expects.
    assert_eq!(driver.parts.borrow().get("rx-0/rps_cpus").unwrap(), "0");
    assert_eq!(look(&driver, &change).unwrap(), ObservedValue::After);
    undo(&driver, &change, false, false).unwrap();
    assert_eq!(state(&driver), before);
    assert_eq!(look(&driver, &change).unwrap(), ObservedValue::Before);
}

#[test]
fn an_interrupted_undo_is_not_complete() {
    for fails in ["rx-0/rps_cpus", "rx-3/rps_cpus", "rss"] {
        let driver = driver();
        let before = state(&driver);
        let change = prepared(&driver);
        write(&driver, &change).unwrap();
        *driver.fails.borrow_mut() = Some(fails);
        assert!(undo(&driver, &change, false, false).is_err(), "{fails}");
        // The number is the one from before, and that is not all.
        let ObservedValue::InPart { lacks } = look(&driver, &change).unwrap() else {
            panic!("{fails}")
        };
        assert_eq!(lacks, fails);
        assert!(undo(&driver, &change, false, false).is_err(), "{fails}");
        *driver.fails.borrow_mut() = None;
        undo(&driver, &change, false, false).unwrap();
        assert_eq!(state(&driver), before);
    }
}

#[test]
fn external_changes_stay_unless_the_change_was_interrupted() {
    for interrupted in [false, true] {
        let driver = driver();
        let change = prepared(&driver);
        driver.write("2").unwrap();
        driver.parts.borrow_mut().insert("rx-0/rps_cpus".to_owned(), "7".to_owned());
        undo(&driver, &change, false, interrupted).unwrap();
        let expected = if interrupted { "0" } else { "7" };
        assert_eq!(driver.parts.borrow().get("rx-0/rps_cpus").unwrap(), expected);
        assert_eq!(driver.parts.borrow().get("rx-3/rps_cpus").unwrap(), "3");
    }
}

#[test]
fn values_set_by_the_kernel_while_a_cpu_was_offline_do_not_stay() {
    let driver = driver();
    let before = state(&driver);
    let change = prepared(&driver);
    write(&driver, &change).unwrap();
    driver.parts.borrow_mut().insert("rx-0/rps_cpus".to_owned(), "left".to_owned());
    undo(&driver, &change, false, false).unwrap();
    assert_eq!(state(&driver), before);
}

#[test]
fn a_missing_part_is_reported() {
    let driver = driver();
    let change = prepared(&driver);
    write(&driver, &change).unwrap();
    *driver.number.borrow_mut() = "4".to_owned();
    driver.parts.borrow_mut().remove("rx-3/rps_cpus");
    let error = undo(&driver, &change, false, false).unwrap_err().to_string();
    assert!(error.contains("restoring rx-3"), "{error}");
    assert_eq!(driver.parts.borrow().get("rss").unwrap(), "equal 4");
}

#[test]
fn a_rounded_value_is_taken_back_at_once() {
    let driver = Driver { rounds: true, ..driver() };
    let before = state(&driver);
    let change = prepared_to(&driver, "5");
    let error = write(&driver, &change).unwrap_err();
    assert!(matches!(error, TuneError::ValueNotTaken { .. }), "{error}");
    assert_eq!(state(&driver), before);
    undo(&driver, &change, false, true).unwrap();
    assert_eq!(state(&driver), before);
}

#[test]
fn a_rounded_value_is_ours_after_an_interruption_only() {
    let driver = Driver { rounds: true, ..driver() };
    let before = state(&driver);
    let change = prepared_to(&driver, "5");
    // Killed between the write and its check.
    assert!(driver.write("5").is_err());
    assert!(matches!(undo(&driver, &change, false, false), Err(TuneError::Drift { .. })));
    undo(&driver, &change, false, true).unwrap();
    assert_eq!(state(&driver), before);
    // Not what rounding makes of it.
    driver.write("8").unwrap();
    assert!(matches!(undo(&driver, &change, false, true), Err(TuneError::Drift { .. })));
}

#[test]
fn an_old_value_that_cannot_be_restored_at_once_is_restored_by_undo() {
    let driver = Driver { rounds: true, ..driver() };
    let before = state(&driver);
    let change = prepared_to(&driver, "5");
    *driver.fails.borrow_mut() = Some("rss");
    let error = write(&driver, &change).unwrap_err();
    assert!(matches!(error, TuneError::ValueNotTaken { .. }), "{error}");
    *driver.fails.borrow_mut() = None;
    undo(&driver, &change, false, true).unwrap();
    assert_eq!(state(&driver), before);
}
