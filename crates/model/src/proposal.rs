//! Changes proposed by findings. In JSON a target is text as people write it: a path, a sysctl, an ethtool
//! option.

use crate::{
    Ethtool, FileOf, NicSetting, SettingFile, SocketProtocol, Sysctl, Target, Value,
    is_interface_name,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A change that would fix a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedChange {
    /// The target. In JSON it is text: a path under /sys or /proc (`/sys/class/net/eth0/queues/rx-0/rps_cpus`),
    /// a sysctl (`sysctl net.core.netdev_budget`), an ethtool option (`ethtool -X eth0`), the affinity of a
    /// process or a thread (`affinity pid 4711`, `affinity pid 4711 tid 4712`), a nearpath command (`nearpath
    /// steer --port 80`).
    pub target: Proposal,
    /// The current value, in the format of the target; `None` if unknown.
    #[serde(with = "optional_text")]
    pub before: Option<Value>,
    /// The value that would fix it.
    #[serde(with = "text")]
    pub after: Value,
    /// Why, in one sentence.
    pub why: String,
    /// Whether it is an alternative to the changes before it, instead of following them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alternative: bool,
    /// The network namespace in which it is to be made, as for `--netns`: `blue`, `pid:4711`, `/proc/4711/ns/net`. `None`
    /// if it is that of who reads this, or the setting belongs to no namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
}

/// Serializes a value as its text.
mod text {
    use super::{Deserialize, Deserializer, Serializer, Value};

    pub fn serialize<S: Serializer>(value: &Value, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&value.to_plan())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
        String::deserialize(from).map(Value::Text)
    }
}

/// Serializes an optional value as its text.
mod optional_text {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Value};

    pub fn serialize<S: Serializer>(value: &Option<Value>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Value::to_plan).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
        Option::<String>::deserialize(from).map(|text| text.map(Value::Text))
    }
}

/// What a finding proposes to change: a complete target, or something that a planner expands into one or
/// several targets, because the check does not have all details.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Proposal {
    /// A setting.
    Setting(Target),
    /// The CPUs of all threads of a process, or of one of them.
    Affinity {
        /// The process.
        pid: u32,
        /// One of its threads; `None`: all.
        tid: Option<u32>,
    },
    /// The pages of a process, to another node.
    Pages {
        /// The process.
        pid: u32,
    },
    /// The REUSEPORT group of a port, steered to the nearest worker.
    Steering {
        /// Its protocol.
        protocol: SocketProtocol,
        /// Its port.
        port: u16,
    },
    /// The interrupts banned from irqbalance.
    IrqbalanceBans,
}

impl<T: Into<Target>> From<T> for Proposal {
    fn from(target: T) -> Self {
        Self::Setting(target.into())
    }
}

impl Proposal {
    /// The setting, if it is a complete target.
    pub fn setting(&self) -> Option<&Target> {
        match self {
            Self::Setting(target) => Some(target),
            _ => None,
        }
    }

    /// The file, if it is the setting of one.
    pub fn file(&self) -> Option<&SettingFile> {
        match self.setting()? {
            Target::File(file) => Some(file),
            _ => None,
        }
    }

    /// Whether it is another one in each network namespace.
    pub fn is_of_netns(&self) -> bool {
        match self {
            Self::Setting(Target::File(file)) => match file.of {
                FileOf::Sysctl(sysctl) => {
                    // Of net.core all but this one are the host's (net_core_table, net/core/sysctl_net_core.c).
                    let name = sysctl.name();
                    name.starts_with("net.") && !name.starts_with("net.core.")
                        || name == "net.core.somaxconn"
                }
                _ => file.of.is_of_namespace(),
            },
            Self::Setting(target) => matches!(
                target,
                Target::Nic(_) | Target::Qdiscs(_) | Target::VlanEgress(_) | Target::Xdp(_)
            ),
            Self::Steering { .. } => true,
            Self::Affinity { .. } | Self::Pages { .. } | Self::IrqbalanceBans => false,
        }
    }

    /// The sysctl, if it is one.
    pub fn sysctl(&self) -> Option<Sysctl> {
        self.file()?.sysctl()
    }
}

const SYSCTL: &str = "sysctl ";
const PORT: &str = "nearpath steer --port ";
const UDP: &str = " --udp";
const PAGES: &str = "migratepages pid ";
const AFFINITY: &str = "affinity pid ";
const TID: &str = " tid ";
const BANS: &str = "irqbalance banned";
/// The ethtool options that name a setting in findings.
const OPTIONS: [(&str, Ethtool); 4] = [
    ("-L", Ethtool::Channels),
    ("-G", Ethtool::Rings),
    ("-C", Ethtool::Coalesce),
    ("-X", Ethtool::Rss),
];

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(sysctl) = self.sysctl() {
            return write!(f, "{SYSCTL}{sysctl}");
        }
        match self {
            Self::Setting(Target::Nic(setting)) => {
                match OPTIONS.iter().find(|(_, what)| *what == setting.what) {
                    Some((option, _)) => write!(f, "ethtool {option} {}", setting.nic),
                    None => setting.fmt(f),
                }
            }
            Self::Setting(target) => f.write_str(&target.to_plan()),
            Self::Affinity { pid, tid: None } => write!(f, "{AFFINITY}{pid}"),
            Self::Affinity { pid, tid: Some(tid) } => write!(f, "{AFFINITY}{pid}{TID}{tid}"),
            Self::Pages { pid } => write!(f, "{PAGES}{pid}"),
            Self::Steering { protocol, port } => {
                let udp = if *protocol == SocketProtocol::Udp { UDP } else { "" };
                write!(f, "{PORT}{port}{udp}")
            }
            Self::IrqbalanceBans => f.write_str(BANS),
        }
    }
}

impl From<Proposal> for String {
    fn from(proposal: Proposal) -> Self {
        proposal.to_string()
    }
}

impl TryFrom<String> for Proposal {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
            .ok_or_else(|| format!("{text:?} is not a change that a finding can propose"))
    }
}

impl Proposal {
    fn parse(text: &str) -> Option<Self> {
        if let Some(name) = text.strip_prefix(SYSCTL) {
            return Sysctl::parse(name).map(Self::from);
        }
        if let Some(rest) = text.strip_prefix(PORT) {
            let (port, protocol) = match rest.strip_suffix(UDP) {
                Some(port) => (port, SocketProtocol::Udp),
                None => (rest, SocketProtocol::Tcp),
            };
            return Some(Self::Steering { protocol, port: port.parse().ok()? });
        }
        if let Some(pid) = text.strip_prefix(PAGES) {
            return Some(Self::Pages { pid: pid.parse().ok()? });
        }
        if text == BANS {
            return Some(Self::IrqbalanceBans);
        }
        if let Some(target) = Target::parse(text, None) {
            return Some(Self::Setting(target));
        }
        if let Some(rest) = text.strip_prefix(AFFINITY) {
            let (pid, tid) = match rest.split_once(TID) {
                Some((pid, tid)) => (pid, Some(tid.parse().ok()?)),
                None => (rest, None),
            };
            return Some(Self::Affinity { pid: pid.parse().ok()?, tid });
        }
        let (option, nic) = text.strip_prefix("ethtool ")?.split_once(' ')?;
        let (_, what) = OPTIONS.iter().find(|(known, _)| *known == option)?;
        is_interface_name(nic).then(|| NicSetting::new(nic, what.clone()).into())
    }
}

impl ProposedChange {
    /// A change to be made in sequence.
    pub fn new(
        target: impl Into<Proposal>,
        before: Option<String>,
        after: impl Into<Value>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            target: target.into(),
            before: before.map(Value::Text),
            after: after.into(),
            why: why.into(),
            alternative: false,
            netns: None,
        }
    }

    /// The same change as an alternative to those before it.
    #[must_use]
    pub fn instead(self) -> Self {
        Self { alternative: true, ..self }
    }

    /// The same change in another network namespace, if its target belongs to one.
    pub fn set_netns(&mut self, netns: &str) {
        if self.target.is_of_netns() {
            self.netns = Some(netns.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QueueFile, QueueId};

    #[test]
    fn proposals_round_trip() {
        for (proposal, text) in [
            (Sysctl::BusyRead.into(), "sysctl net.core.busy_read"),
            (NicSetting::new("eth0", Ethtool::Rings).into(), "ethtool -G eth0"),
            (Proposal::Affinity { pid: 7, tid: None }, "affinity pid 7"),
            (Proposal::Affinity { pid: 7, tid: Some(9) }, "affinity pid 7 tid 9"),
            (Proposal::Pages { pid: 7 }, "migratepages pid 7"),
            (Proposal::IrqbalanceBans, "irqbalance banned"),
            (
                Proposal::Steering { protocol: SocketProtocol::Udp, port: 53 },
                "nearpath steer --port 53 --udp",
            ),
            (
                SettingFile::queue("eth0", QueueId(1), QueueFile::RpsCpus).into(),
                "/sys/class/net/eth0/queues/rx-1/rps_cpus",
            ),
        ] {
            assert_eq!(String::from(proposal.clone()), text);
            assert_eq!(Proposal::try_from(text.to_owned()), Ok(proposal));
        }
        for text in ["", "affinity pid x", "ethtool -Z eth0", "ethtool -G ../x", "/etc/passwd"] {
            assert!(Proposal::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
