//! `nearpath tune plan`: what would be changed, and why; nothing is changed.

use crate::failure::Failure;
use crate::output;
use crate::source::Source;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use nearpath_diagnose::diagnose;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_model::{CpuId, CpuSet, Diagnosis, Finding, Goal, Host, Plan, SocketOwner};
use nearpath_tune::planners::{
    ChannelCount, Hugepages, Request, System, Traffic, Workload, plan, workloads,
};
use nearpath_tune::steering;
use nearpath_views::text;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Bytes of a diagnosis or a plan in a file, at most.
pub(super) const MAX_FILE: u64 = 256 << 20;

const AFTER_HELP: &str = "\
GOALS
  latency     interrupts near the NIC, one queue a core; no RPS that costs a hop
  throughput  besides, RPS and RFS to CPUs near the NIC that have no queue
  isolation   interrupts only on --housekeeping CPUs (else those that are not isolated) and
              never on --cpus; the application on --cpus (else the node's isolated CPUs);
              --cpus are set apart on the kernel command line, for the next boot

EXAMPLES
  nearpath tune plan
  nearpath tune plan --nic eth0 --port 443
  nearpath tune plan --goal isolation --cpus 4-15 --housekeeping 0-3 --unit nginx
  nearpath tune plan --nic eth0 --channels near
  nearpath tune plan --nic eth0 --vlan-priority 5:2   priority 5 by a queue of its own, on CPU 2
  nearpath diagnose --json >found.json; nearpath tune plan --findings found.json
  nearpath tune plan --snapshot host.tar.zst   for another machine; it cannot be applied here";

/// What is asked of a plan.
#[derive(Debug, Args)]
pub struct Asked {
    /// What the host is tuned for
    #[arg(long, value_enum, default_value = "latency")]
    goal: GoalName,
    /// Only this interface; may be given again
    #[arg(long, value_name = "NAME")]
    nic: Vec<String>,
    /// Move this process to the node of the NIC; may be given again
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Move the processes with a socket on this port; may be given again
    #[arg(long, value_name = "PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// Move the processes of this systemd unit that have a socket, and have it start near the
    /// NIC from its next restart on; may be given again
    #[arg(long, value_name = "NAME")]
    unit: Vec<String>,
    /// The CPUs that may be used; with --goal isolation the application's
    #[arg(long, value_name = "CPULIST", value_parser = CpuSet::from_list)]
    cpus: Option<CpuSet>,
    /// CPUs that are spared; with --goal isolation those for interrupts
    #[arg(long, value_name = "CPULIST", value_parser = CpuSet::from_list)]
    housekeeping: Option<CpuSet>,
    /// Give each interface so many channels; 'near' is one for each core near it
    #[arg(long, value_name = "N|near", value_parser = channels)]
    channels: Option<ChannelCount>,
    /// Lead packets of this VLAN priority (PCP) to a queue whose interrupt goes to this CPU; may be
    /// given again
    #[arg(long, value_name = "PCP:CPU", value_parser = vlan_priority)]
    vlan_priority: Vec<(u8, CpuId)>,
    /// Say why each other sysctl of tuning guides is left alone
    #[arg(long)]
    reasons: bool,
    /// Bind the application by the cpuset of its cgroup (v2) instead of each of its threads; its
    /// memory moves to the node
    #[arg(long)]
    cpuset: bool,
    /// Stop irqbalance's service instead of telling it which interrupts to leave alone
    #[arg(long)]
    stop_irqbalance: bool,
    /// With --goal isolation: hugepages to be taken at boot, as 1G:8
    #[arg(long, value_name = "SIZE:COUNT")]
    hugepages: Option<Hugepages>,
    /// Take the findings from this file of 'nearpath diagnose --json'; else from facts alone
    #[arg(long, value_name = "FILE")]
    findings: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum GoalName {
    Latency,
    Throughput,
    Isolation,
}

/// Arguments of `tune plan`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct PlanArguments {
    #[command(flatten)]
    asked: Asked,
    /// Print one JSON document, which 'nearpath tune apply' takes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

impl PlanArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let live = self.source.is_live();
        let plan = self.source.read(|root| self.asked.plan(root, live))?;
        if self.json { output::json(&plan) } else { output::text(&text::plan(&plan)) }
    }
}

impl Asked {
    /// Plans for the host behind a root; `live` is whether that is this machine.
    pub(super) fn plan(&self, root: &Root, live: bool) -> anyhow::Result<Plan> {
        let priorities: BTreeSet<u8> = self.vlan_priority.iter().map(|(pcp, _)| *pcp).collect();
        if priorities.len() < self.vlan_priority.len() {
            bail!("--vlan-priority is given twice for one priority");
        }
        let moved = !self.pid.is_empty() || !self.port.is_empty() || !self.unit.is_empty();
        if !live && moved {
            bail!("--pid, --port and --unit take the running machine: elsewhere nothing is moved");
        }
        let wanted = Wanted { sockets: true, ..Wanted::default() };
        let host = nearpath_host::read(root, &wanted).context("cannot read the host")?;
        let (findings, traffic) = self.findings(&host)?;
        let workloads = self.workloads(root, &host)?;
        let goal = match self.goal {
            GoalName::Latency => Goal::Latency,
            GoalName::Throughput => Goal::Throughput,
            GoalName::Isolation => Goal::Isolation,
        };
        let system =
            if live { System::read(root, &workloads, &self.port) } else { System::default() };
        let request = Request {
            goal,
            nics: self.nic.clone(),
            cpus: self.cpus.clone(),
            housekeeping: self.housekeeping.clone(),
            traffic,
            channels: self.channels,
            vlan_priorities: self.vlan_priority.clone(),
            cpuset: self.cpuset,
            stop_irqbalance: self.stop_irqbalance,
            reasons: self.reasons,
            hugepages: self.hugepages.clone(),
            system,
        };
        let boot = if live { Some(steering::boot(root)?) } else { None };
        let netns = current_netns(root).inode;
        let mut plan = plan(&host, &findings, &request, &workloads, boot, netns)?;
        // After all was read: what was born before is planned for by itself.
        plan.made_ticks = if live { nearpath_tune::ticks_since_boot(root) } else { None };
        Ok(plan)
    }

    /// The interfaces that were asked for.
    pub(super) fn nics(&self) -> &[String] {
        &self.nic
    }

    /// The port that was asked for, if it is only one.
    pub(super) fn only_port(&self) -> Option<u16> {
        match self.port.as_slice() {
            [port] => Some(*port),
            _ => None,
        }
    }

    /// The findings, and the packets of the measurement that they rest on.
    fn findings(&self, host: &Host) -> anyhow::Result<(Vec<Finding>, Traffic)> {
        let Some(file) = &self.findings else {
            return Ok((diagnose(host, None, None).findings, Traffic::default()));
        };
        let name = file.display();
        let bytes = super::apply::read(file)?;
        let diagnosis: Diagnosis = serde_json::from_slice(&bytes)
            .with_context(|| format!("{name} is no JSON of 'nearpath diagnose'"))?;
        let measured = diagnosis.measurement.as_ref();
        let traffic = measured.map(|m| Traffic::of_measurement(m, &host.topology));
        Ok((diagnosis.findings, traffic.unwrap_or_default()))
    }

    fn workloads(&self, root: &Root, host: &Host) -> anyhow::Result<Vec<Workload>> {
        let mut pids: BTreeSet<u32> = self.pid.iter().copied().collect();
        let mut services: BTreeMap<u32, String> = BTreeMap::new();
        for &port in &self.port {
            let sockets = host.sockets.iter().filter(|socket| socket.port == port);
            let owners: BTreeSet<u32> = sockets.flat_map(|s| s.pids.iter().copied()).collect();
            if owners.is_empty() {
                bail!("no process is seen here that holds a socket on port {port}");
            }
            pids.extend(owners);
        }
        for unit in &self.unit {
            let owner = |owner: &SocketOwner| {
                Some((owner.pid, unit_of(owner.cgroup.as_deref()?, unit)?.to_owned()))
            };
            let owners: BTreeMap<u32, String> = host.owners.iter().filter_map(owner).collect();
            pids.extend(owners.keys());
            let none = owners.is_empty();
            services.extend(owners);
            if none {
                bail!("no process of the unit {unit} is seen here that holds a socket");
            }
        }
        let pids: Vec<u32> = pids.into_iter().collect();
        let mut workloads = workloads(root, &pids)?;
        for workload in &mut workloads {
            workload.service = services.remove(&workload.pid);
        }
        Ok(workloads)
    }
}

fn channels(text: &str) -> Result<ChannelCount, String> {
    match (text, text.parse()) {
        ("near", _) => Ok(ChannelCount::Near),
        (_, Ok(number)) if number > 0 => Ok(ChannelCount::Number(number)),
        _ => Err("a number from 1, or near".to_owned()),
    }
}

fn vlan_priority(text: &str) -> Result<(u8, CpuId), String> {
    let parts = text.split_once(':');
    let parsed = parts.and_then(|(pcp, cpu)| Some((pcp.parse().ok()?, cpu.parse().ok()?)));
    match parsed {
        Some((pcp @ 0..=7, cpu)) => Ok((pcp, CpuId(cpu))),
        _ => Err("a priority from 0 to 7 and a CPU, such as 5:2".to_owned()),
    }
}

/// The systemd unit of a name that a cgroup is that of, or below; `nginx` is `nginx.service`.
fn unit_of<'a>(cgroup: &'a str, name: &str) -> Option<&'a str> {
    let mut parts = cgroup.split('/').filter(|part| !part.is_empty());
    parts.find(|part| *part == name || part.strip_suffix(".service") == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_known_by_their_cgroup() {
        let cgroup = "/system.slice/nginx.service/worker";
        assert_eq!(unit_of(cgroup, "nginx"), Some("nginx.service"));
        assert_eq!(unit_of(cgroup, "nginx.service"), Some("nginx.service"));
        assert_eq!(unit_of(cgroup, "system.slice"), Some("system.slice"));
        for unit in ["", "ngin", "service", "nginx.servic"] {
            assert_eq!(unit_of(cgroup, unit), None, "{unit}");
        }
    }
}
