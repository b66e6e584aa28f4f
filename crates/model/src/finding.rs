//! Findings: what a check returns.

use crate::accepts::AcceptMeasurement;
use crate::locality::Locality;
use crate::memory::MemoryMeasurement;
use crate::tcp::TcpMeasurement;
use crate::{CpuId, CpuSet, Measurement, ProposedChange, shell};
use serde::{Deserialize, Serialize};

/// Version of the JSON form of [`Diagnosis`].
pub const DIAGNOSIS_SCHEMA: u32 = 1;

/// All that `diagnose` found: the JSON of `diagnose --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// [`DIAGNOSIS_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Ranked: the most expensive first.
    pub findings: Vec<Finding>,
    /// Checks that could not be made, or only in part.
    pub not_checked: Vec<NotChecked>,
    /// Number of checks that there are; 0 in a diagnosis of a nearpath that did not report it.
    #[serde(default)]
    pub checks: usize,
    /// Summary of the host.
    pub host: HostSummary,
    /// The measurement of stages that the findings are based on; `None` if there was none.
    pub measurement: Option<Measurement>,
    /// If stages were measured twice, first coarsely and then in detail: the one that the findings are not
    /// based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_look: Option<Measurement>,
    /// The measurement of packet locality; `None` if there was none.
    #[serde(default)]
    pub locality: Option<Locality>,
    /// The measurement of accepts; `None` if there was none.
    #[serde(default)]
    pub accepts: Option<AcceptMeasurement>,
    /// The measurement of TCP connections; `None` if there was none.
    #[serde(default)]
    pub tcp: Option<TcpMeasurement>,
    /// Where the memory of processes is; `None` on hosts with one node.
    #[serde(default)]
    pub memory: Option<MemoryMeasurement>,
    /// The workers of DPDK and Open vSwitch; `None` on hosts without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<crate::Workers>,
    /// The way of packets into virtual machines; `None` if none had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<crate::vm::VmMeasurement>,
}

/// A diagnosed problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the check: `rps_placement`.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// One line that names the object and the problem.
    pub title: String,
    /// Facts and figures, one sentence each.
    pub evidence: Vec<String>,
    /// What it costs.
    pub cost: FindingCost,
    /// What it is about; used to merge findings of one cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<Subject>,
    /// Findings of other checks that this one explains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symptoms: Vec<Finding>,
    /// Who can do something about it.
    #[serde(default, skip_serializing_if = "Whose::is_host")]
    pub whose: Whose,
    /// Changes that would fix it, in the order in which to make them; one marked as an alternative replaces
    /// those that are not.
    pub changes: Vec<ProposedChange>,
    /// Shell commands that would fix it and that nearpath does not run itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manual: Vec<String>,
}

/// Who can do something about a finding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    /// Who configures this host.
    #[default]
    Host,
    /// The application: what it does between two packets, how long it holds a lock.
    Application,
    /// The other end of the connections.
    Peer,
    /// The network in between.
    Network,
    /// The hypervisor.
    Hypervisor,
    /// The owner of a CPU quota.
    Quota,
    /// The owner of a shaper or a queueing discipline.
    Shaper,
    /// nearpath: it takes most of that time itself, and only while it measures.
    Nearpath,
}

impl Whose {
    /// Whether it is who configures this host.
    pub fn is_host(&self) -> bool {
        *self == Self::Host
    }
}

/// What a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A CPU.
    Cpu(CpuId),
    /// A network interface.
    Nic(String),
    /// A span of the path, between two stages.
    Span(String, String),
    /// The hypervisor.
    Hypervisor,
    /// A local port that packets are received on.
    Port(u16),
}

/// Severity of a finding, in ranking order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth fixing; no effect was observed.
    Info,
    /// It costs something or is likely to.
    Warning,
    /// It makes packets late or loses them, as measured or counted.
    Critical,
}

/// The cost of a finding, as far as it is known. Ranking is by severity, then `seconds_per_second`, then
/// `share_percent`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FindingCost {
    /// Seconds that packets waited per second measured, summed over packets.
    pub seconds_per_second: Option<f64>,
    /// Share of the packets (or of what the check counts) that is affected, 0 to 100.
    pub share_percent: Option<f64>,
    /// What it is a share of: `369k packets`, `its interrupts`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub share_of: String,
    /// Extra latency of one affected packet, at the median.
    pub per_packet_ns: Option<u64>,
    /// The longest latency observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
}

/// A check that could not be made, or only in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotChecked {
    /// Name of the check.
    pub check: String,
    /// What was missing.
    pub reason: String,
}

/// Summary of the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSummary {
    /// Kernel release.
    pub kernel: Option<String>,
    /// Hypervisor, `none`, or unknown.
    pub virtualisation: Option<String>,
    /// CPUs that are online.
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

impl Subject {
    /// Each one of several CPUs.
    pub fn cpus(cpus: &CpuSet) -> impl Iterator<Item = Self> {
        cpus.iter().map(Self::Cpu)
    }
}

impl Finding {
    /// A finding without evidence, cost and changes; the check adds those.
    pub fn new(severity: Severity, title: impl Into<String>) -> Self {
        Self {
            check: String::new(),
            severity,
            title: title.into(),
            evidence: Vec::new(),
            cost: FindingCost::default(),
            subjects: Vec::new(),
            symptoms: Vec::new(),
            whose: Whose::default(),
            changes: Vec::new(),
            manual: Vec::new(),
        }
    }

    /// Adds a sentence of evidence.
    #[must_use]
    pub fn evidence(mut self, sentence: impl Into<String>) -> Self {
        self.evidence.push(sentence.into());
        self
    }

    /// Sets the affected share, from a fraction of 0 to 1, and what it is of; NaN leaves it unknown.
    #[must_use]
    pub fn share(mut self, share: Option<f64>, of: impl Into<String>) -> Self {
        self.cost.share_percent =
            share.filter(|s| s.is_finite()).map(|s| s.clamp(0.0, 1.0) * 100.0);
        self.cost.share_of = of.into();
        self
    }

    /// Sets who can do something about it.
    #[must_use]
    pub fn of(mut self, whose: Whose) -> Self {
        self.whose = whose;
        self
    }

    /// Adds a subject.
    #[must_use]
    pub fn about(mut self, subjects: impl IntoIterator<Item = Subject>) -> Self {
        for subject in subjects {
            if !self.subjects.contains(&subject) {
                self.subjects.push(subject);
            }
        }
        self
    }

    /// Adds a shell command that nearpath does not run itself; names in it must be quoted ([`crate::shell::word`]).
    #[must_use]
    pub fn manual(mut self, command: impl Into<String>) -> Self {
        self.manual.push(command.into());
        self
    }

    /// Adds a change.
    #[must_use]
    pub fn change(mut self, change: ProposedChange) -> Self {
        self.changes.push(change);
        self
    }

    fn set_netns(&mut self, netns: &str) {
        self.changes.iter_mut().for_each(|change| change.set_netns(netns));
        // What iproute2 changes is that of a network namespace; all else is the host's.
        for command in self.manual.iter_mut().filter(|command| command.starts_with("ip ")) {
            *command = shell::in_netns(netns, command);
        }
        self.symptoms.iter_mut().for_each(|symptom| symptom.set_netns(netns));
    }
}

impl Diagnosis {
    /// The diagnosis of another network namespace than that of its readers, as for `--netns`.
    #[must_use]
    pub fn in_netns(mut self, netns: &str) -> Self {
        self.findings.iter_mut().for_each(|finding| finding.set_netns(netns));
        self
    }

    /// Reports, first, that nothing was measured, and why.
    #[must_use]
    pub fn not_measured(mut self, reason: &str) -> Self {
        self.not_checked.insert(0, missing("nothing was", reason));
        self
    }

    /// Reports that an instrument's part of the evidence is missing, and why: `stages`.
    #[must_use]
    pub fn not_measured_by(mut self, instrument: &str, reason: &str) -> Self {
        self.not_checked.insert(0, missing(&format!("{instrument} were not"), reason));
        self
    }
}

/// The reason as one line without control characters.
fn missing(what: &str, reason: &str) -> NotChecked {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let reason: String = reason.chars().take(200).map(plain).collect();
    let reason = format!("{what} measured: {reason}");
    NotChecked { check: "measurement".to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_iproute2_enter_the_namespace() {
        let mut finding = Finding::new(Severity::Info, "x")
            .manual("ip link set dev bond0 type bond xmit_hash_policy layer3+4")
            .manual("cpupower -c 1 frequency-set -g performance");
        finding.set_netns("blue");
        assert_eq!(
            finding.manual,
            [
                "ip netns exec blue ip link set dev bond0 type bond xmit_hash_policy layer3+4",
                "cpupower -c 1 frequency-set -g performance"
            ]
        );
    }
}
