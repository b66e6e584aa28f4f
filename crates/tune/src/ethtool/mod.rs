//! Settings of an interface that ethtool(8) shows and sets: channels, rings, coalescing, receive-side
//! scaling, features, n-tuple rules; and the parameters of its NAPI instances, which another netlink family has.
//!
//! Input: a target such as `ethtool eth0 rings` and a value in ethtool's syntax, such as `rx 4096 tx 4096`. Values are read
//! and set through the kernel's netlink family, or by ioctl if that has no request: n-tuple rules on all kernels,
//! receive-side scaling before 6.17.

mod dependents;
mod failure;
mod napi;
mod numbers;
mod rss;
mod rules;
mod switch;

pub(crate) use napi::{NapiValues, instances as napi_instances};
pub(crate) use rss::{Table, key_bytes};

use crate::TuneError;
use crate::files::Files;
use crate::setting::{Dependents, Setting};
use dependents::QueueNumbers;
use nearpath_model::{Ethtool, NicSetting};
use numbers::NumbersSetting;

/// The ethtool arguments that set a value, for scripts; `None` for values that ethtool cannot set: a table that is
/// neither equal nor in order, a rule of an unknown kind.
pub(crate) fn command(target: &NicSetting, value: &str) -> Option<Vec<String>> {
    let nic = target.nic.as_str();
    let words: Vec<&str> = value.split(' ').collect();
    let all = |option: &str, words: &[&str]| {
        let first = [option, nic].into_iter();
        Some(first.chain(words.iter().copied()).map(str::to_owned).collect::<Vec<String>>())
    };
    match &target.what {
        Ethtool::Channels => all("-L", &words),
        Ethtool::Rings => all("-G", &words),
        Ethtool::Coalesce => all("-C", &words),
        Ethtool::Rss if words.first() == Some(&"table") => None,
        Ethtool::Napi(_) => None,
        Ethtool::Rss => all("-X", &words),
        Ethtool::RssKey => all("-X", &["hkey", value]),
        Ethtool::Feature(name) => all("-K", &[name, value]),
        Ethtool::Rule(place) if value == rules::NONE => all("-N", &["delete", &place.to_string()]),
        Ethtool::Rule(place) => {
            let mut command = all("-N", &[])?;
            command.extend(rules::words_of_ethtool(*place, value)?);
            Some(command)
        }
    }
}

/// The setting of a target.
///
/// # Errors
/// It belongs to another network namespace, or is invalid.
pub(crate) fn setting<'a>(
    target: &'a NicSetting,
    files: &'a Files,
) -> Result<Box<dyn Setting + 'a>, TuneError> {
    files.is_of_here(target, target.netns)?;
    // The journal is untrusted input.
    let plain = NicSetting::parse(&target.to_string(), target.netns);
    if !plain.is_some_and(|plain| plain.same_place(target)) {
        return Err(TuneError::Refused(format!(
            "{target:?} is not a setting that nearpath changes"
        )));
    }
    let inner: Box<dyn Setting + 'a> = match &target.what {
        Ethtool::Channels => Box::new(QueueNumbers::channels(target, files)),
        Ethtool::Rings => Box::new(QueueNumbers::rings(target, files)),
        Ethtool::Coalesce => Box::new(NumbersSetting::coalesce(target)),
        Ethtool::Rss => Box::new(rss::TableSetting::new(target)),
        Ethtool::RssKey => Box::new(rss::KeySetting { target }),
        Ethtool::Feature(name) => Box::new(switch::FeatureSetting { target, name }),
        Ethtool::Rule(place) => Box::new(rules::RuleSetting::live(target, *place)),
        Ethtool::Napi(place) => Box::new(napi::NapiSetting { target, place: *place }),
    };
    Ok(Box::new(OfInstance { inner, target, files }))
}

/// A setting of the changed interface, or of another one that has its name now.
struct OfInstance<'a> {
    inner: Box<dyn Setting + 'a>,
    target: &'a NicSetting,
    files: &'a Files,
}

impl Setting for OfInstance<'_> {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.inner.check(value)
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        self.inner.read()
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.inner.write(value)
    }

    fn same(&self, a: &str, b: &str) -> bool {
        self.inner.same(a, b)
    }

    fn is_another(&self) -> bool {
        self.files.is_another_interface(&self.target.nic, &self.target.id)
    }

    fn is_rounded(&self, now: &str, written: &str) -> bool {
        self.inner.is_rounded(now, written)
    }

    fn part(&self, now: &str, of: &str) -> String {
        self.inner.part(now, of)
    }

    fn dependents(&self) -> Option<&dyn Dependents> {
        self.inner.dependents()
    }
}

/// For fuzz targets: parses any text as a target and a value. Valid ones must round-trip.
#[doc(hidden)]
pub fn fuzzing(text: &str) {
    let (target, value) = text.split_once('\n').unwrap_or((text, ""));
    if let Some(setting) = NicSetting::parse(target, None) {
        assert_eq!(setting.to_string(), target);
        let _ = command(&setting, value);
    }
    if let Some(table) = Table::parse(value) {
        assert_eq!(Table::parse(&table.to_string()).as_ref(), Some(&table));
        if let Some(entries) = table.entries(128) {
            assert_eq!(Table::of(entries.clone()).entries(128), Some(entries));
        }
    }
    rules::fuzzing(value);
    napi::fuzzing(value);
    let _ = key_bytes(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_use_ethtools_syntax() {
        let command = |target: &str, value: &str| {
            let words = super::command(&NicSetting::parse(target, None).unwrap(), value)?;
            Some(words.join(" "))
        };
        for (target, value, expected) in [
            ("channels", "combined 4", Some("-L nic0 combined 4")),
            ("rings", "rx 4096 tx 512", Some("-G nic0 rx 4096 tx 512")),
            ("coalesce", "adaptive-rx off rx-usecs 8", Some("-C nic0 adaptive-rx off rx-usecs 8")),
            ("rss", "weight 1 3", Some("-X nic0 weight 1 3")),
            ("rss", "table 0 0 1", None),
            ("rss-key", "6d:5a", Some("-X nic0 hkey 6d:5a")),
            ("feature rx-ntuple-filter", "on", Some("-K nic0 rx-ntuple-filter on")),
            ("rule 5", "none", Some("-N nic0 delete 5")),
            (
                "rule 5",
                "ether vlan 40960/0xe000 queue 2",
                Some("-N nic0 flow-type ether vlan 40960 m 0x1fff action 2 loc 5"),
            ),
        ] {
            let target = format!("ethtool nic0 {target}");
            assert_eq!(command(&target, value).as_deref(), expected, "{target} {value}");
        }
    }
}
