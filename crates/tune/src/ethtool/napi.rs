//! The parameters of one NAPI instance: deferred interrupts, suspended interrupts, polling in a thread.
//!
//! Input: an instance by its place among those of the interface, in the order of their ids (the kernel assigns new ids when
//! a driver creates its queues again), and words with numbers: `defer-hard-irqs 2 irq-suspend-timeout 20000000`. Output:
//! the current values in the same syntax, and one request that sets those named.
//!
//! Rule: Documentation/networking/napi.rst. `irq_suspend_timeout` has no file in sysfs, and writing the files of the
//! others sets all instances.

use super::{NicSetting, failure};
use crate::TuneError;
use crate::setting::Setting;
use nearpath_host::{NapiInstances, interface_index, napi_parameter};
use std::collections::BTreeMap;
use std::fmt;
use std::io;

/// `NETDEV_CMD_NAPI_SET` (include/uapi/linux/netdev.h).
const NAPI_SET: u8 = 14;

/// Most words of a value: it is untrusted input.
const MOST_WORDS: usize = 8;

/// Parameters with their values, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NapiValues(pub BTreeMap<&'static str, u64>);

impl NapiValues {
    /// Parses them; `None` if a word is unknown or named twice, or a number out of its range.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').take(MOST_WORDS + 1).collect();
        let mut values = BTreeMap::new();
        for pair in words.chunks(2) {
            let [name, number] = pair else { return None };
            let name = napi_parameter(name)?;
            if !number.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            let value: u64 = number.parse().ok()?;
            if value > greatest(name) || values.insert(name, value).is_some() {
                return None;
            }
        }
        Some(Self(values))
    }

    /// What is there of the parameters in a value, before it is set; `None` if they are the same.
    pub fn before(&self, value: &str) -> Option<Self> {
        let value = Self::parse(value)?;
        let now = self.named_by(&value);
        (now != value).then_some(now)
    }

    /// Those that another names, too.
    fn named_by(&self, other: &Self) -> Self {
        let named = self.0.iter().filter(|(name, _)| other.0.contains_key(*name));
        Self(named.map(|(name, value)| (*name, *value)).collect())
    }
}

/// The greatest value of a parameter. The kernel keeps nanoseconds in 64 bits; more than an hour is a mistake.
fn greatest(name: &str) -> u64 {
    match name {
        // `napi_defer_hard_irqs_max`, net/core/netdev-genl.c.
        "defer-hard-irqs" => i32::MAX as u64,
        "threaded" => 1,
        _ => 3_600_000_000_000,
    }
}

impl fmt::Display for NapiValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{name} {value}")?;
        }
        Ok(())
    }
}

/// The instances of an interface, in the order of their ids; `None` if there is no such interface.
///
/// # Errors
/// The kernel does not have them.
pub(crate) fn instances(nic: &str) -> io::Result<Option<Vec<(u32, NapiValues)>>> {
    let Some(index) = interface_index(nic) else { return Ok(None) };
    let found = NapiInstances::open()?.of(index);
    let gone = |error: &io::Error| error.raw_os_error() == Some(libc::ENODEV);
    match found {
        Ok(found) => Ok(Some(found.into_iter().map(|(id, its)| (id, NapiValues(its))).collect())),
        Err(error) if gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The parameters of an instance.
pub(super) struct NapiSetting<'a> {
    pub target: &'a NicSetting,
    pub place: u32,
}

impl NapiSetting<'_> {
    fn instance(&self) -> Result<Option<(u32, NapiValues)>, TuneError> {
        let step = || format!("reading {}", self.target);
        let unsupported =
            |reason: &str| TuneError::Unsupported { step: step(), reason: reason.to_owned() };
        let found = instances(&self.target.nic).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => {
                unsupported("this kernel has no netdev netlink family (Linux 6.8)")
            }
            _ => failure::refusal(step(), &error, None),
        })?;
        let Some(instance) = found.and_then(|all| all.into_iter().nth(self.place as usize)) else {
            return Ok(None);
        };
        if instance.1.0.is_empty() {
            return Err(unsupported(
                "this kernel has no parameters of single NAPI instances (Linux 6.13)",
            ));
        }
        Ok(Some(instance))
    }
}

impl Setting for NapiSetting<'_> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        let must = "parameters of a NAPI instance with numbers: defer-hard-irqs 2 irq-suspend-timeout 20000000";
        match NapiValues::parse(value) {
            Some(_) => Ok(()),
            None => Err(TuneError::Refused(format!("{}: {value:?} is not {must}", self.target))),
        }
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        Ok(self.instance()?.map(|(_, values)| values.to_string()))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        let step = || format!("writing {value:?} to {}", self.target);
        let values = NapiValues::parse(value).unwrap_or_default();
        let Some((id, now)) = self.instance()? else {
            return Err(TuneError::kernel(step(), "it no longer exists"));
        };
        // The kernel rejects attributes that it does not know with its message alone.
        if let Some(name) = values.0.keys().find(|name| !now.0.contains_key(*name)) {
            let reason = format!("this kernel does not have {name} of single NAPI instances");
            return Err(TuneError::Unsupported { step: step(), reason });
        }
        let mut instances =
            NapiInstances::open().map_err(|error| failure::refusal(step(), &error, None))?;
        instances
            .send(NAPI_SET, id, &values.0)
            .map_err(|error| failure::refusal(step(), &error, instances.words()))
    }

    fn same(&self, now: &str, value: &str) -> bool {
        NapiValues::parse(now).is_some_and(|now| Some(now) == NapiValues::parse(value))
    }

    fn part(&self, now: &str, of: &str) -> String {
        match (NapiValues::parse(now), NapiValues::parse(of)) {
            (Some(now), Some(of)) => now.named_by(&of).to_string(),
            _ => now.to_owned(),
        }
    }
}

/// For fuzz targets: parses any text; valid ones must round-trip.
pub(super) fn fuzzing(text: &str) {
    if let Some(values) = NapiValues::parse(text) {
        assert_eq!(NapiValues::parse(&values.to_string()), Some(values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip() {
        for text in [
            "defer-hard-irqs 2 gro-flush-timeout 20000 irq-suspend-timeout 20000000",
            "irq-suspend-timeout 0",
            "threaded 1",
        ] {
            assert_eq!(NapiValues::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "threaded",
            "threaded 2",
            "threaded 1 ",
            "threaded 1 threaded 1",
            "irq-suspend-timeout -1",
            "irq-suspend-timeout 3600000000001",
            "defer-hard-irqs 2147483648",
            "irq 5",
            "id 5",
        ] {
            assert_eq!(NapiValues::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_named_part_is_compared() {
        let target = NicSetting::parse("napi eth0 0", None).unwrap();
        let setting = NapiSetting { target: &target, place: 0 };
        let now = "defer-hard-irqs 0 gro-flush-timeout 0 irq-suspend-timeout 5 threaded 0";
        let part = setting.part(now, "irq-suspend-timeout 7");
        assert_eq!(part, "irq-suspend-timeout 5");
        assert!(!setting.same(&part, "irq-suspend-timeout 7"));
        assert!(setting.same("threaded 0 gro-flush-timeout 1", "gro-flush-timeout 1 threaded 0"));
    }
}
