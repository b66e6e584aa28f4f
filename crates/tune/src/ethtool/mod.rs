//! Settings of an interface that ethtool(8) shows and sets: channels, rings, coalescing, receive-side
//! scaling, features, n-tuple rules.
//!
//! In go a target such as `ethtool eth0 rings` and a value in ethtool's own words, such as
//! `rx 4096 tx 4096`. Each is asked and set by the kernel's netlink family, and by ioctl where that has
//! no request: n-tuple rules on all kernels, receive-side scaling before 6.17.

mod channels;
mod failure;
mod numbers;
mod rss;
mod rules;
mod switch;

pub(crate) use rss::{Table, key_bytes};

use crate::TuneError;
use crate::files::{Files, SettingFile, is_interface_name};
use crate::setting::Setting;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A setting of an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NicSetting {
    /// The interface's name.
    pub nic: String,
    /// Inode of the network namespace that it is in.
    pub netns: Option<u64>,
    /// Which of its settings.
    pub what: Ethtool,
    /// Once it was changed, the inode of the interface in sysfs: the kernel gives a new one to an
    /// interface that is set up anew under the same name, as in [`SettingFile::instance`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
}

/// What ethtool sets; by the option that does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ethtool {
    /// `-L`: numbers of channels.
    Channels,
    /// `-G`: sizes of rings.
    Rings,
    /// `-C`: interrupt coalescing.
    Coalesce,
    /// `-X`: the indirection table.
    Rss,
    /// `-X hkey`: the hash key.
    RssKey,
    /// `-K`: a feature, by its name.
    Feature(String),
    /// `-N`: the n-tuple rule at a place of the NIC's table.
    Rule(u32),
}

impl Ethtool {
    /// Its name in plans.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Channels => "channels",
            Self::Rings => "rings",
            Self::Coalesce => "coalescing",
            Self::Rss => "rss",
            Self::RssKey => "rss_key",
            Self::Feature(_) => "feature",
            Self::Rule(_) => "ntuple_rule",
        }
    }
}

impl fmt::Display for NicSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ethtool {} ", self.nic)?;
        match &self.what {
            Ethtool::Channels => f.write_str("channels"),
            Ethtool::Rings => f.write_str("rings"),
            Ethtool::Coalesce => f.write_str("coalesce"),
            Ethtool::Rss => f.write_str("rss"),
            Ethtool::RssKey => f.write_str("rss-key"),
            Ethtool::Feature(name) => write!(f, "feature {name}"),
            Ethtool::Rule(location) => write!(f, "rule {location}"),
        }
    }
}

impl NicSetting {
    /// A setting from its text in a plan: `ethtool eth0 rings`.
    #[must_use]
    pub fn parse(text: &str, netns: Option<u64>) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let (nic, what) = match words[..] {
            ["ethtool", nic, "channels"] => (nic, Ethtool::Channels),
            ["ethtool", nic, "rings"] => (nic, Ethtool::Rings),
            ["ethtool", nic, "coalesce"] => (nic, Ethtool::Coalesce),
            ["ethtool", nic, "rss"] => (nic, Ethtool::Rss),
            ["ethtool", nic, "rss-key"] => (nic, Ethtool::RssKey),
            ["ethtool", nic, "feature", name] if is_feature_name(name) => {
                (nic, Ethtool::Feature(name.to_owned()))
            }
            ["ethtool", nic, "rule", place] => (nic, Ethtool::Rule(place.parse().ok()?)),
            _ => return None,
        };
        let setting = Self { nic: nic.to_owned(), netns, what, instance: None };
        // One text for each: not `rule 03`, too.
        (is_interface_name(nic) && setting.to_string() == text).then_some(setting)
    }

    /// Whether another one is the same setting, whichever interface it belonged to.
    #[must_use]
    pub fn same_place(&self, other: &Self) -> bool {
        (&self.nic, self.netns, &self.what) == (&other.nic, other.netns, &other.what)
    }

    /// The inode of the interface that has the name now.
    pub(crate) fn instance_now(&self, files: &Files) -> Option<u64> {
        let path = format!("/sys/class/net/{}/ifindex", self.nic);
        files.instance(&SettingFile::new(path, self.netns))
    }

    /// The words behind `ethtool` that set a value, for whoever writes it into a script; `None` for
    /// what ethtool cannot set: a table that is neither equal nor in order, a rule of an unknown kind.
    #[must_use]
    pub fn command(&self, value: &str) -> Option<Vec<String>> {
        let nic = self.nic.as_str();
        let words: Vec<&str> = value.split(' ').collect();
        let all = |option: &str, words: &[&str]| {
            let first = [option, nic].into_iter();
            Some(first.chain(words.iter().copied()).map(str::to_owned).collect::<Vec<String>>())
        };
        match &self.what {
            Ethtool::Channels => {
                let (counts, _) = channels::parts(value);
                all("-L", &counts.split(' ').collect::<Vec<_>>())
            }
            Ethtool::Rings => all("-G", &words),
            Ethtool::Coalesce => all("-C", &words),
            Ethtool::Rss if words.first() == Some(&"table") => None,
            Ethtool::Rss => all("-X", &words),
            Ethtool::RssKey => all("-X", &["hkey", value]),
            Ethtool::Feature(name) => all("-K", &[name, value]),
            Ethtool::Rule(place) if value == rules::NONE => {
                all("-N", &["delete", &place.to_string()])
            }
            Ethtool::Rule(place) => {
                let mut command = all("-N", &[])?;
                command.extend(rules::words_of_ethtool(*place, value)?);
                Some(command)
            }
        }
    }

    /// The setting, as it is read and written here.
    ///
    /// # Errors
    /// It is one of another network namespace, or its name is none.
    pub(crate) fn setting<'a>(
        &'a self,
        files: &'a Files,
    ) -> Result<Box<dyn Setting + 'a>, TuneError> {
        files.is_of_here(self, self.netns)?;
        // A journal is a file that somebody may have edited.
        let plain = Self::parse(&self.to_string(), self.netns);
        if !plain.is_some_and(|plain| plain.same_place(self)) {
            return Err(TuneError::Refused(format!(
                "{self:?} is no setting that nearpath changes"
            )));
        }
        let inner: Box<dyn Setting + 'a> = match &self.what {
            Ethtool::Channels => Box::new(channels::ChannelsSetting::new(self, files)),
            Ethtool::Rings => Box::new(numbers::NumbersSetting::rings(self)),
            Ethtool::Coalesce => Box::new(numbers::NumbersSetting::coalesce(self)),
            Ethtool::Rss => Box::new(rss::TableSetting::new(self)),
            Ethtool::RssKey => Box::new(rss::KeySetting { target: self }),
            Ethtool::Feature(name) => Box::new(switch::FeatureSetting { target: self, name }),
            Ethtool::Rule(place) => Box::new(rules::RuleSetting::live(self, *place)),
        };
        Ok(Box::new(OfInstance { inner, target: self, files }))
    }
}

/// A setting of the interface that was changed, or of another one that has its name by now.
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
        let was = self.target.instance;
        was.is_some() && self.target.instance_now(self.files) != was
    }

    fn part(&self, now: &str, of: &str) -> String {
        self.inner.part(now, of)
    }

    fn keep(&self, now: String) -> Result<String, TuneError> {
        self.inner.keep(now)
    }
}

/// For fuzz targets: any text as a target and a value of it. What is understood must come back the same.
#[doc(hidden)]
pub fn fuzzing(text: &str) {
    let (target, value) = text.split_once('\n').unwrap_or((text, ""));
    if let Some(setting) = NicSetting::parse(target, None) {
        assert_eq!(setting.to_string(), target);
        let _ = setting.command(value);
    }
    if let Some(table) = Table::parse(value) {
        assert_eq!(Table::parse(&table.to_string()).as_ref(), Some(&table));
        if let Some(entries) = table.entries(128) {
            assert_eq!(Table::of(entries.clone()).entries(128), Some(entries));
        }
    }
    rules::fuzzing(value);
    let _ = (key_bytes(value), channels::parts(value).1.count());
}

/// As the kernel names features: `rx-ntuple-filter`.
fn is_feature_name(text: &str) -> bool {
    // ETH_GSTRING_LEN of include/uapi/linux/ethtool.h.
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    !text.is_empty() && text.len() < 32 && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_back() {
        for text in [
            "ethtool nic0 channels",
            "ethtool enp94s0f0np0 rings",
            "ethtool eth0.5 coalesce",
            "ethtool nic0 rss",
            "ethtool nic0 rss-key",
            "ethtool nic0 feature rx-ntuple-filter",
            "ethtool nic0 rule 1022",
        ] {
            let setting = NicSetting::parse(text, Some(5)).unwrap();
            assert_eq!((setting.to_string().as_str(), setting.netns), (text, Some(5)));
            let json = serde_json::to_string(&setting).unwrap();
            assert_eq!(serde_json::from_str::<NicSetting>(&json).unwrap(), setting);
        }
        for text in [
            "ethtool eth0 rule 03",
            "",
            "ethtool nic0",
            "ethtool  rings",
            "ethtool nic0  rings",
            "ethtool ../x rings",
            "ethtool nic0 rings 1",
            "ethtool nic0 rule -1",
            "ethtool nic0 rule 4294967296",
            "ethtool nic0 feature X;",
            "ethtool nic0 flash",
        ] {
            assert_eq!(NicSetting::parse(text, None), None, "{text}");
        }
    }

    #[test]
    fn commands_are_those_of_ethtool() {
        let command = |target: &str, value: &str| {
            let words = NicSetting::parse(target, None).unwrap().command(value)?;
            Some(words.join(" "))
        };
        for (target, value, expected) in [
            ("channels", "combined 4; rx-0/irq 3", Some("-L nic0 combined 4")),
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
