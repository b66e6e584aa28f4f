//! Settings in Open vSwitch's database that decide which PMD thread polls which queue.
//!
//! They are keys of `other_config` in the only row of table `Open_vSwitch`, or in an interface's row
//! (ovs-vswitchd.conf.db(5)). The database keeps them across reboots.

use super::{Persistence, TargetKind};
use crate::shell;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The value of a key that is not set.
pub const OVS_UNSET: &str = "unset";

/// Maximum length of a value in bytes: a mask of 4,096 CPUs, or an affinity of some hundred queues.
const MAX_VALUE: usize = 4096;
/// Maximum length of an interface's name: of ports of DPDK, longer than the kernel's.
const MAX_NAME: usize = 63;

/// A setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OvsSetting {
    /// Its key.
    pub key: OvsKey,
    /// The interface, if it is one of an interface.
    pub interface: Option<String>,
    /// Set once it was prepared: the UUID of the row. Another interface of this name has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<String>,
}

/// A key of `other_config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OvsKey {
    /// The CPUs of PMD threads, a mask in hexadecimal digits. Without it there is one on each node.
    PmdCpuMask,
    /// MiB of hugepages by node. Read when Open vSwitch starts.
    DpdkSocketMem,
    /// The CPUs of EAL's lcores, a mask. Read when Open vSwitch starts.
    DpdkLcoreMask,
    /// Whether DPDK is started.
    DpdkInit,
    /// Of an interface: the PMD threads of its queues, `QUEUE:CPU` with commas between them.
    PmdRxqAffinity,
}

impl OvsKey {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::PmdCpuMask,
        Self::DpdkSocketMem,
        Self::DpdkLcoreMask,
        Self::DpdkInit,
        Self::PmdRxqAffinity,
    ];

    /// Its name in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::PmdCpuMask => "pmd-cpu-mask",
            Self::DpdkSocketMem => "dpdk-socket-mem",
            Self::DpdkLcoreMask => "dpdk-lcore-mask",
            Self::DpdkInit => "dpdk-init",
            Self::PmdRxqAffinity => "pmd-rxq-affinity",
        }
    }

    /// Whether it is one of an interface.
    pub fn is_of_interface(self) -> bool {
        self == Self::PmdRxqAffinity
    }

    /// Whether it is a mask of CPUs.
    pub fn is_mask(self) -> bool {
        matches!(self, Self::PmdCpuMask | Self::DpdkLcoreMask)
    }

    /// Whether Open vSwitch reads it only when it starts.
    pub fn takes_restart(self) -> bool {
        matches!(self, Self::DpdkSocketMem | Self::DpdkLcoreMask)
    }

    /// Checks the form of a value to be set.
    ///
    /// # Errors
    /// What it must be.
    pub fn check(self, value: &str) -> Result<(), &'static str> {
        if value == OVS_UNSET {
            return Ok(());
        }
        let number = |text: &str| text.len() <= 9 && text.parse::<u32>().is_ok() && is_digits(text);
        let (is_valid, must) = match self {
            Self::PmdCpuMask | Self::DpdkLcoreMask => {
                let digits = value.strip_prefix("0x").unwrap_or(value);
                let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let is_some = digits.bytes().any(|byte| byte != b'0');
                (is_hex && is_some, "must be a mask of hexadecimal digits, with a CPU in it")
            }
            Self::DpdkSocketMem => (
                value.split(',').all(number),
                "must be numbers of MiB by node, with commas between them",
            ),
            Self::DpdkInit => {
                (["true", "false", "try"].contains(&value), "must be true, try or false")
            }
            Self::PmdRxqAffinity => {
                let pair = |pair: &str| {
                    pair.split_once(':').is_some_and(|(queue, core)| number(queue) && number(core))
                };
                (value.split(',').all(pair), "must be QUEUE:CPU, with commas between them")
            }
        };
        if is_valid && value.len() <= MAX_VALUE { Ok(()) } else { Err(must) }
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl OvsSetting {
    /// A setting of the switch.
    pub fn of_switch(key: OvsKey) -> Self {
        Self { key, interface: None, row: None }
    }

    /// The affinity of an interface's queues.
    pub fn affinity(interface: &str) -> Self {
        Self { key: OvsKey::PmdRxqAffinity, interface: Some(interface.to_owned()), row: None }
    }

    /// Parses its text in a plan: `ovs pmd-cpu-mask`, `ovs pmd-rxq-affinity of p0`; `None` if it is not a setting
    /// that may be changed.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let (name, interface) = match words[..] {
            ["ovs", name] => (name, None),
            ["ovs", name, "of", interface] => (name, Some(interface)),
            _ => return None,
        };
        let key = OvsKey::ALL.into_iter().find(|key| key.name() == name)?;
        let is_valid = interface.is_some() == key.is_of_interface()
            && interface.is_none_or(Self::is_interface);
        is_valid.then(|| Self { key, interface: interface.map(str::to_owned), row: None })
    }

    /// Whether it is the name of an interface that nearpath changes: visible ASCII characters.
    pub fn is_interface(name: &str) -> bool {
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// The command of ovs-vsctl(8) that sets a value. It does not wait for ovs-vswitchd, which may not be running.
    pub fn command(&self, value: &str) -> String {
        let record = match &self.interface {
            Some(name) => format!("Interface {}", shell::word(name)),
            None => "Open_vSwitch .".to_owned(),
        };
        let key = self.key.name();
        if value == OVS_UNSET {
            return format!("ovs-vsctl --no-wait remove {record} other_config {key}");
        }
        // Of the database's own syntax: what is no word is a string in quotation marks.
        let is_word = value.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let quoted = if is_word { value.to_owned() } else { format!("\"{value}\"") };
        let argument = shell::word(&format!("other_config:{key}={quoted}"));
        format!("ovs-vsctl --no-wait set {record} {argument}")
    }
}

impl fmt::Display for OvsSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ovs {}", self.key.name())?;
        self.interface.as_ref().map_or(Ok(()), |name| write!(f, " of {name}"))
    }
}

impl TargetKind for OvsSetting {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn kind(&self) -> &'static str {
        "ovs"
    }

    fn persistence(&self) -> Persistence {
        Persistence::Kept
    }

    fn takes_effect_immediately(&self) -> bool {
        !self.key.takes_restart()
    }

    fn is_same_place(&self, other: &Self) -> bool {
        (self.key, &self.interface) == (other.key, &other.interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_round_trip() {
        for setting in [OvsSetting::of_switch(OvsKey::PmdCpuMask), OvsSetting::affinity("dpdk0")] {
            assert_eq!(OvsSetting::parse(&setting.to_string()), Some(setting));
        }
        for text in [
            "ovs",
            "ovs hw-offload",
            "ovs pmd-cpu-mask of p0",
            "ovs pmd-rxq-affinity",
            "ovs pmd-rxq-affinity of ",
            "ovs pmd-rxq-affinity of a b",
            "ovs pmd-rxq-affinity of a\nb",
        ] {
            assert_eq!(OvsSetting::parse(text), None, "{text}");
        }
    }

    #[test]
    fn values_have_a_form() {
        use OvsKey::*;
        for (key, value) in [
            (PmdCpuMask, "f0"),
            (PmdCpuMask, "0xF0"),
            (PmdCpuMask, "unset"),
            (DpdkSocketMem, "1024,0"),
            (DpdkInit, "try"),
            (PmdRxqAffinity, "0:4,1:5"),
        ] {
            assert_eq!(key.check(value), Ok(()), "{value}");
        }
        for (key, value) in [
            (PmdCpuMask, ""),
            (PmdCpuMask, "0"),
            (PmdCpuMask, "0x"),
            (PmdCpuMask, "g"),
            (PmdCpuMask, "1,2"),
            (DpdkSocketMem, ""),
            (DpdkSocketMem, "1024,"),
            (DpdkSocketMem, "+1"),
            (DpdkInit, "yes"),
            (PmdRxqAffinity, "0"),
            (PmdRxqAffinity, "0:4,"),
            (PmdRxqAffinity, "0:4\";x"),
        ] {
            assert!(key.check(value).is_err(), "{value}");
        }
    }

    #[test]
    fn commands_are_quoted_for_the_database_and_the_shell() {
        let mask = OvsSetting::of_switch(OvsKey::PmdCpuMask);
        let set = "ovs-vsctl --no-wait set Open_vSwitch . other_config:pmd-cpu-mask=30";
        assert_eq!(mask.command("30"), set);
        let affinity = OvsSetting::affinity("p$1");
        let set = "ovs-vsctl --no-wait set Interface 'p$1' 'other_config:pmd-rxq-affinity=\"0:4\"'";
        assert_eq!(affinity.command("0:4"), set);
        let remove = "ovs-vsctl --no-wait remove Interface 'p$1' other_config pmd-rxq-affinity";
        assert_eq!(affinity.command(OVS_UNSET), remove);
    }
}
