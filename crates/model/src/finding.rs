//! Findings: what a check returns.

use crate::accepts::AcceptMeasurement;
use crate::locality::Locality;
use crate::{
    Ethtool, FileOf, Measurement, NicSetting, SettingFile, SocketProtocol, Target, Value,
    is_interface_name,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Version of the JSON form of [`Diagnosis`].
pub const DIAGNOSIS_SCHEMA: u32 = 1;

/// All that `diagnose` found: the JSON of `diagnose --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// [`DIAGNOSIS_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Ranked: what costs most comes first.
    pub findings: Vec<Finding>,
    /// Checks that could not be made, or only in part.
    pub not_checked: Vec<NotChecked>,
    /// The host in short.
    pub host: HostSummary,
    /// The measurement of stages that the findings rest on; `None` when there was none.
    pub measurement: Option<Measurement>,
    /// Where stages were measured twice, coarsely and then closer: the one that the findings do not rest on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_look: Option<Measurement>,
    /// The measurement of packets' locality; `None` when there was none.
    #[serde(default)]
    pub locality: Option<Locality>,
    /// The measurement of accepts; `None` when there was none.
    #[serde(default)]
    pub accepts: Option<AcceptMeasurement>,
}

/// A diagnosed problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the check: `rps_placement`.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// One line that names the thing and the problem.
    pub title: String,
    /// Facts and figures that show it, a sentence each.
    pub evidence: Vec<String>,
    /// What it costs.
    pub cost: FindingCost,
    /// Changes that would mend it, in the order to make them; one that is marked as an
    /// alternative is made instead of those that are not.
    pub changes: Vec<ProposedChange>,
}

/// How bad a finding is; the order is that of the ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing was seen to suffer from it.
    Info,
    /// It costs something or is likely to.
    Warning,
    /// It makes packets late or loses them, as measured or counted.
    Critical,
}

/// What a finding costs, as far as it is known. Ranking goes by severity, then by
/// `seconds_per_second`, then by `share_percent`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FindingCost {
    /// Seconds of packets' waiting in each second measured, summed over packets.
    pub seconds_per_second: Option<f64>,
    /// Share of the packets (or of what the check counts) that is affected, 0 to 100.
    pub share_percent: Option<f64>,
    /// Extra latency of one affected packet, at the median.
    pub per_packet_ns: Option<u64>,
}

/// A change that would mend a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedChange {
    /// What is changed. In JSON it is text: a path under /sys or /proc
    /// (`/sys/class/net/eth0/queues/rx-0/rps_cpus`), a sysctl (`sysctl net.core.netdev_budget`), an option of
    /// ethtool (`ethtool -X eth0`), the affinity of a process or a thread (`affinity pid 4711`, `affinity pid
    /// 4711 tid 4712`), a command of nearpath (`nearpath steer --port 80`).
    pub target: Proposal,
    /// The value now, in the form that the target takes; `None` when it is unknown.
    #[serde(with = "optional_text")]
    pub before: Option<Value>,
    /// The value that would mend it.
    #[serde(with = "text")]
    pub after: Value,
    /// Why, in one sentence.
    pub why: String,
    /// Whether it stands in for the changes before it, instead of being made after them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alternative: bool,
}

/// A value as its text.
mod text {
    use super::{Deserialize, Deserializer, Serializer, Value};

    pub fn serialize<S: Serializer>(value: &Value, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&value.to_plan())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
        String::deserialize(from).map(Value::Text)
    }
}

/// A value that may be missing, as its text.
mod optional_text {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Value};

    pub fn serialize<S: Serializer>(value: &Option<Value>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Value::to_plan).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
        Option::<String>::deserialize(from).map(|text| text.map(Value::Text))
    }
}

/// What a finding proposes to change: a target as it is, or something that a planner makes one or several
/// targets of, as a check does not know all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Proposal {
    /// A setting.
    Setting(Target),
    /// The CPUs of all threads of a process, or of one of them.
    Affinity {
        /// The process.
        pid: u32,
        /// One of its threads; `None` means all.
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
    /// The interrupts that irqbalance leaves alone.
    IrqbalanceBans,
}

impl<T: Into<Target>> From<T> for Proposal {
    fn from(target: T) -> Self {
        Self::Setting(target.into())
    }
}

impl Proposal {
    /// The setting, if it is one as it is.
    pub fn setting(&self) -> Option<&Target> {
        match self {
            Self::Setting(target) => Some(target),
            _ => None,
        }
    }

    /// The name of the sysctl that it is.
    pub fn sysctl(&self) -> Option<String> {
        match self.setting()? {
            Target::File(file) => match file.of()? {
                FileOf::Sysctl(name) => Some(name),
                _ => None,
            },
            _ => None,
        }
    }
}

const SYSCTL: &str = "sysctl ";
const PORT: &str = "nearpath steer --port ";
const UDP: &str = " --udp";
const PAGES: &str = "migratepages pid ";
const AFFINITY: &str = "affinity pid ";
const TID: &str = " tid ";
const BANS: &str = "irqbalance banned";
/// The options of ethtool by which a finding calls a setting.
const OPTIONS: [(&str, Ethtool); 4] = [
    ("-L", Ethtool::Channels),
    ("-G", Ethtool::Rings),
    ("-C", Ethtool::Coalesce),
    ("-X", Ethtool::Rss),
];

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.sysctl() {
            return write!(f, "{SYSCTL}{name}");
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
        Self::parse(&text).ok_or_else(|| format!("{text:?} is nothing that a finding proposes"))
    }
}

impl Proposal {
    fn parse(text: &str) -> Option<Self> {
        if let Some(name) = text.strip_prefix(SYSCTL) {
            return Some(SettingFile::sysctl(name).into());
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

/// A check that could not be made, or only in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotChecked {
    /// Name of the check.
    pub check: String,
    /// What was missing.
    pub reason: String,
}

/// The host in short.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSummary {
    /// Kernel release.
    pub kernel: Option<String>,
    /// Hypervisor, `none`, or unknown.
    pub virtualisation: Option<String>,
    /// CPUs that run.
    pub online_cpus: usize,
    /// Packages.
    pub packages: usize,
    /// NUMA nodes.
    pub nodes: usize,
    /// Last-level caches.
    pub llcs: usize,
    /// Interfaces, in a few words each: `eth0 virtio_net node 0, 2 rx queues`.
    pub nics: Vec<String>,
}

impl Finding {
    /// A finding without evidence, cost and changes, to which the check adds them.
    pub fn new(severity: Severity, title: impl Into<String>) -> Self {
        Self {
            check: String::new(),
            severity,
            title: title.into(),
            evidence: Vec::new(),
            cost: FindingCost::default(),
            changes: Vec::new(),
        }
    }

    /// Adds a sentence of evidence.
    #[must_use]
    pub fn evidence(mut self, sentence: impl Into<String>) -> Self {
        self.evidence.push(sentence.into());
        self
    }

    /// Sets the share that is affected, from a fraction of 0 to 1; what is no number stays unknown.
    #[must_use]
    pub fn share(mut self, share: Option<f64>) -> Self {
        self.cost.share_percent =
            share.filter(|s| s.is_finite()).map(|s| s.clamp(0.0, 1.0) * 100.0);
        self
    }

    /// Adds a change.
    #[must_use]
    pub fn change(mut self, change: ProposedChange) -> Self {
        self.changes.push(change);
        self
    }
}

impl ProposedChange {
    /// A change that is made in its turn.
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
        }
    }

    /// The same change, to be made instead of those before it.
    #[must_use]
    pub fn instead(self) -> Self {
        Self { alternative: true, ..self }
    }
}

impl Diagnosis {
    /// Says first of all that nothing was measured, and why.
    #[must_use]
    pub fn not_measured(mut self, reason: &str) -> Self {
        self.not_checked.insert(0, missing("nothing was", reason));
        self
    }

    /// Says that an instrument's part of the evidence is missing, and why: `stages`.
    #[must_use]
    pub fn not_measured_by(mut self, instrument: &str, reason: &str) -> Self {
        self.not_checked.insert(0, missing(&format!("{instrument} were not"), reason));
        self
    }
}

/// The reason in one harmless line, whoever gave it.
fn missing(what: &str, reason: &str) -> NotChecked {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let reason: String = reason.chars().take(200).map(plain).collect();
    let reason = format!("{what} measured: {reason}");
    NotChecked { check: "measurement".to_owned(), reason }
}
