//! `nearpath tune plan`: shows what would be changed, and why. Nothing is changed.

use super::plan_dpdk::DpdkOptions;
use crate::failure::{Failure, say};
use crate::output;
use crate::recorded::{self, Times};
use crate::session::latency;
use crate::source::Source;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use nearpath_diagnose::diagnose;
use nearpath_host::{NetnsRef, Root, Wanted, current_netns, in_netns, unit_of_cgroup};
use nearpath_model::{
    CpuId, CpuSet, Diagnosis, Finding, Goal, Host, Plan, Proposal, ProposedChange, SocketOwner,
    TrafficClass,
};
use nearpath_monitor::recording::{Replay, replay};
use nearpath_tune::planners::{
    BootParameter, ChannelCount, Hugepages, Mode, Napi, Request, Schedule, ScheduleRule, System,
    Traffic, Workload, plan, workloads,
};
use nearpath_tune::steering;
use nearpath_views::text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Maximum size in bytes of a diagnosis or plan file.
pub(super) const MAX_FILE: u64 = 256 << 20;

const AFTER_HELP: &str = "\
GOALS
  latency     interrupts near the NIC, one queue per core; no RPS that adds a CPU hop
  throughput  also RPS and RFS to CPUs near the NIC that have no queue
  isolation   interrupts only on --irq-cpus (default: those not isolated) and never on
              --app-cpus; the application on --app-cpus (default: the node's isolated CPUs);
              --app-cpus are isolated on the kernel command line, from the next boot

MODES
  mq          interrupts and the application on all CPUs near the NIC
  sq_split    interrupts on one core, the application on the others
  split       interrupts on one core in 16 (more under load), the application on the others
  auto        mq for throughput, without an application, up to 4 cores near the NIC, and if
              interrupts keep half of them busy; else sq_split up to 16 cores, else split

EXAMPLES
  nearpath tune plan
  nearpath tune plan --nic eth0 --port 443
  nearpath tune plan --goal isolation --app-cpus 4-15 --irq-cpus 0-3 --unit nginx
  nearpath tune plan --nic eth0 --port 443 --mode sq_split
  nearpath tune plan --nic eth0 --channels near
  nearpath tune plan --nic eth0 --schedule 3:etf=5ms   priority 3 leaves at its SO_TXTIME
  nearpath tune plan --nic eth0 --priority 5:2   PCP 5 is received on CPU 2, all others elsewhere
  nearpath tune plan --nic eth0 --hugepages 2M:512    on the node of eth0
  nearpath tune plan --hugepages 2M:0:512,1:0 --sysctl kernel.numa_balancing=0
  nearpath diagnose --json >found.json; nearpath tune plan --findings found.json
  nearpath tune plan --findings DIR --at 03:12   of what was recorded then
  nearpath tune plan --dpdk dpvs --nic 0000:5e:00.0,0000:5e:00.1 --workers 4 -o dpvs.conf
  nearpath tune plan --dpdk ovs --json | nearpath tune apply -   PMD threads to their ports' nodes
  nearpath tune plan --snapshot host.tar.zst   for another host; cannot be applied here";

/// Options of a plan.
#[derive(Debug, Args)]
pub struct PlanOptions {
    /// What to tune for
    #[arg(long, value_enum, default_value = "latency")]
    goal: GoalName,
    /// Only this interface; repeatable. With --dpdk: PCI addresses, with commas between them
    #[arg(long, value_name = "NAME")]
    nic: Vec<String>,
    /// Move this process to the node of the NIC; repeatable
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Move the processes with a socket on this port; repeatable
    #[arg(long, value_name = "PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// Move the processes of this systemd unit that have a socket, and make the unit start near the
    /// NIC from its next restart; repeatable
    #[arg(long, value_name = "NAME")]
    unit: Vec<String>,
    /// Whether interrupts and the application share CPUs; channels follow if it is not 'auto'
    #[arg(long, value_enum, default_value = "auto")]
    mode: ModeName,
    /// Interrupts go to these CPUs only, as far as they are near the NIC
    #[arg(long, value_name = "CPULIST", value_parser = CpuSet::from_list)]
    irq_cpus: Option<CpuSet>,
    /// The application runs on these CPUs only
    #[arg(long, value_name = "CPULIST", value_parser = CpuSet::from_list)]
    app_cpus: Option<CpuSet>,
    /// Neither interrupts nor the application go to these CPUs
    #[arg(long, value_name = "CPULIST", value_parser = CpuSet::from_list)]
    exclude_cpus: Option<CpuSet>,
    /// Number of channels of each interface; 'near' means one per core near it, 'keep' as many as now
    #[arg(long, value_name = "N|near|keep", value_parser = channels)]
    channels: Option<ChannelCount>,
    /// Received packets of this VLAN priority (PCP), DSCP ('dscp46') or source address go to this CPU alone;
    /// repeatable
    #[arg(long, value_name = "PCP:CPU", value_parser = priority, alias = "vlan-priority")]
    priority: Vec<(TrafficClass, CpuId)>,
    /// Sent packets of this priority (SO_PRIORITY) get a transmit queue and a rule: etf=DELTA, gate=OPEN/CYCLE or
    /// cbs=KBIT, with ',offload' by the NIC; needs --nic; repeatable
    #[arg(long, value_name = "PRIORITY:RULE", value_parser = schedule)]
    schedule: Vec<Schedule>,
    /// Explain for each other sysctl found in tuning guides why it is not changed
    #[arg(long)]
    reasons: bool,
    /// Bind the application through the cpuset of its cgroup (v2) instead of per thread; also moves
    /// its memory to the node
    #[arg(long)]
    cpuset: bool,
    /// Stop the irqbalance service instead of excluding the interrupts from it
    #[arg(long)]
    stop_irqbalance: bool,
    /// How the queues are polled: with deferred interrupts, for programs that busy-poll, with interrupts suspended
    /// meanwhile, or in threads
    #[arg(long, value_enum)]
    napi: Option<NapiName>,
    /// Run the CPUs that handle packets at full frequency, which costs power
    #[arg(long)]
    performance: bool,
    /// Keep these CPUs out of idle states that take longer than this to leave, in microseconds; 0: they poll. Costs power
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    wakeup_latency: Option<u32>,
    /// Also move the memory of the application to the node of the NIC; one-way: a rollback leaves
    /// it there. Not if a device may write to it
    #[arg(long)]
    move_memory: bool,
    /// Reserve this many hugepages on the node of the NIC, or on these nodes: 1G:8, 2M:0:512,1:0;
    /// with --goal isolation, at boot; repeatable
    #[arg(long, value_name = "SIZE:[NODE:]COUNT")]
    hugepages: Vec<Hugepages>,
    /// With --goal isolation, also boot with this; repeatable. rcu_nocb_poll keeps a CPU awake, nowatchdog hides hung CPUs
    #[arg(long, value_name = "NAME", value_parser = boot_parameter)]
    boot_parameter: Vec<BootParameter>,
    /// Set this sysctl, e.g. kernel.numa_balancing=0; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = sysctl)]
    sysctl: Vec<(String, String)>,
    /// Use the findings in this file of 'nearpath diagnose --json' ('-' is standard input), or in this recording of
    /// 'nearpath record' [default: measured by 'tune try', else configuration only]
    #[arg(long, value_name = "FILE|DIR")]
    findings: Option<PathBuf>,
    /// The moment of the recording (UTC), with two minutes before and after it [default: its end]
    #[arg(long, value_name = "TIME", requires = "findings")]
    at: Option<String>,
    /// The host of the recording, if it is not named as the one to plan for
    #[arg(long, value_name = "NAME", requires = "findings")]
    hostname: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum GoalName {
    Latency,
    Throughput,
    Isolation,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum NapiName {
    Defer,
    BusyPoll,
    Suspend,
    Threaded,
}

impl From<NapiName> for Napi {
    fn from(name: NapiName) -> Self {
        match name {
            NapiName::Defer => Self::Defer,
            NapiName::BusyPoll => Self::BusyPoll,
            NapiName::Suspend => Self::Suspend,
            NapiName::Threaded => Self::Threaded,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum ModeName {
    Auto,
    Mq,
    SqSplit,
    Split,
}

impl ModeName {
    fn mode(self) -> Option<Mode> {
        match self {
            Self::Auto => None,
            Self::Mq => Some(Mode::Mq),
            Self::SqSplit => Some(Mode::SqSplit),
            Self::Split => Some(Mode::Split),
        }
    }
}

/// Arguments of `tune plan`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct PlanArguments {
    /// Print one JSON document, the input of 'nearpath tune apply'
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dpdk: DpdkOptions,
    #[command(flatten)]
    source: Source,
    // Expert options (see help.rs) stand last.
    #[command(flatten, next_help_heading = None::<&'static str>)]
    plan_options: PlanOptions,
}

impl PlanArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.dpdk.is_given() {
            return self.dpdk.run(&self.plan_options.nic, self.json, &self.source);
        }
        let live = self.source.is_live();
        let plan = self.source.read(|root| self.plan_options.plan(root, live))?;
        if self.json { output::json(&plan) } else { output::text(&text::plan(&plan)) }
    }
}

impl PlanOptions {
    /// Plans for the host behind a root; `live` says whether that is the running host.
    pub(in crate::commands) fn plan(&self, root: &Root, live: bool) -> anyhow::Result<Plan> {
        self.plan_with(root, live, None)
    }

    /// The same, from what was measured.
    pub(super) fn plan_with(
        &self,
        root: &Root,
        live: bool,
        measured: Option<&Diagnosis>,
    ) -> anyhow::Result<Plan> {
        let priorities: BTreeSet<TrafficClass> =
            self.priority.iter().map(|(class, _)| *class).collect();
        if priorities.len() < self.priority.len() {
            bail!("--priority is given twice for the same packets");
        }
        let moved = !self.pid.is_empty() || !self.port.is_empty() || !self.unit.is_empty();
        if !live && moved {
            bail!(
                "--pid, --port and --unit work on the running host only, not with --root or --snapshot"
            );
        }
        // Before anything is read: threads that start from now on may be missing in the list.
        let made_ticks = if live { nearpath_tune::ticks_since_boot(root) } else { None };
        let wanted = Wanted { sockets: true, ..Wanted::default() };
        let host = nearpath_host::read(root, &wanted).context("cannot read the host")?;
        let (mut findings, traffic) = match measured {
            Some(diagnosis) => (diagnosis.findings.clone(), traffic_of(diagnosis, &host)),
            None => self.findings(&host)?,
        };
        if live {
            here(root, &mut findings);
        }
        let named = if live { named(root, &findings) } else { Vec::new() };
        let ports: Vec<u16> = self.port.iter().copied().chain(steered(&findings)).collect();
        let workloads = self.workloads(root, &host)?;
        let goal = match self.goal {
            GoalName::Latency => Goal::Latency,
            GoalName::Throughput => Goal::Throughput,
            GoalName::Isolation => Goal::Isolation,
        };
        let mut system =
            if live { System::read(root, &workloads, &ports) } else { System::default() };
        if live && self.napi.is_some() {
            system.read_kernel_threads(root, &host);
            system.read_napi_instances(&host);
        }
        if live && !self.priority.is_empty() {
            system.read_xdp(&host);
        }
        let request = Request {
            goal,
            nics: self.nic.clone(),
            mode: self.mode.mode(),
            irq_cpus: self.irq_cpus.clone(),
            app_cpus: self.app_cpus.clone(),
            exclude_cpus: self.exclude_cpus.clone(),
            traffic,
            channels: self.channels,
            priorities: self.priority.clone(),
            schedules: self.schedule.clone(),
            cpuset: self.cpuset,
            stop_irqbalance: self.stop_irqbalance,
            napi: self.napi.map(Into::into),
            performance: self.performance,
            wakeup_us: self.wakeup_latency,
            reasons: self.reasons,
            move_memory: self.move_memory,
            hugepages: self.hugepages.clone(),
            boot_parameters: self.boot_parameter.clone(),
            sysctls: self.sysctl.clone(),
            named,
            system,
        };
        let boot = if live { Some(steering::boot(root)?) } else { None };
        let netns = current_netns(root).inode;
        let mut plan = plan(&host, &findings, &request, &workloads, boot, netns)?;
        plan.made_ticks = made_ticks;
        Ok(plan)
    }

    /// Whether the findings are given.
    pub(super) fn has_findings(&self) -> bool {
        self.findings.is_some()
    }

    /// The interfaces requested.
    pub(super) fn nics(&self) -> &[String] {
        &self.nic
    }

    /// The port requested, if there is exactly one.
    pub(super) fn only_port(&self) -> Option<u16> {
        match self.port.as_slice() {
            [port] => Some(*port),
            _ => None,
        }
    }

    /// The findings, and the packets of the measurement that they are based on.
    fn findings(&self, host: &Host) -> anyhow::Result<(Vec<Finding>, Traffic)> {
        let Some(file) = &self.findings else {
            return Ok((diagnose(host, None, None).findings, Traffic::default()));
        };
        let measured = |diagnosis: &Diagnosis| traffic_of(diagnosis, host);
        if file.is_dir() {
            let diagnosis = self.recorded(file, host)?;
            let traffic = measured(&diagnosis);
            return Ok((diagnosis.findings, traffic));
        }
        if self.at.is_some() {
            bail!("--at is of a recording, and {} is not a folder", file.display());
        }
        if self.hostname.is_some() {
            bail!("--hostname is of a recording, and {} is not a folder", file.display());
        }
        let name = file.display();
        let bytes = super::apply::read(file, MAX_FILE)?;
        let diagnosis: Diagnosis = serde_json::from_slice(&bytes)
            .with_context(|| format!("{name} is not a JSON document of 'nearpath diagnose'"))?;
        let traffic = measured(&diagnosis);
        Ok((diagnosis.findings, traffic))
    }

    /// What was found on the host that is planned for. Findings of another one would name its devices and processes.
    fn recorded(&self, folder: &Path, host: &Host) -> anyhow::Result<Diagnosis> {
        let planned = host.kernel.hostname.as_deref();
        let name =
            self.hostname.as_deref().or(planned).context("the host to plan for has no name")?;
        let recording = recorded::open_host(folder, Some(name))?;
        let times = recorded::moment_of(&recording, self.at.as_deref());
        let Times { from_us, to_us, .. } = times.map_err(anyhow::Error::msg)?;
        let Replay { hosts, diagnosis, notes, times, .. } = replay(&recording, from_us, to_us);
        recorded::report(&notes, &[]);
        if hosts.is_empty() {
            return Err(recorded::nothing(from_us, to_us));
        }
        if let Some(planned) = planned.filter(|planned| *planned != name) {
            say(&format!("findings of {name}, for a plan for {planned}"));
        }
        if let Some(missing) = diagnosis.not_checked.first() {
            bail!("{}: {} (--at)", folder.display(), missing.reason);
        }
        let (from, to) = times.unwrap_or((from_us, to_us));
        say(&format!("findings recorded {}", recorded::period(from, to)));
        Ok(diagnosis)
    }

    fn workloads(&self, root: &Root, host: &Host) -> anyhow::Result<Vec<Workload>> {
        let mut pids: BTreeSet<u32> = self.pid.iter().copied().collect();
        let mut services: BTreeMap<u32, String> = BTreeMap::new();
        for &port in &self.port {
            let sockets = host.sockets.iter().filter(|socket| socket.port == port);
            let owners: BTreeSet<u32> = sockets.flat_map(|s| s.pids.iter().copied()).collect();
            if owners.is_empty() {
                bail!("no visible process has a socket on port {port}");
            }
            pids.extend(owners);
        }
        for unit in &self.unit {
            let owner = |owner: &SocketOwner| {
                Some((owner.pid, unit_of_cgroup(owner.cgroup.as_deref()?, unit)?.to_owned()))
            };
            let owners: BTreeMap<u32, String> = host.owners.iter().filter_map(owner).collect();
            pids.extend(owners.keys());
            let none = owners.is_empty();
            services.extend(owners);
            if none {
                bail!("no visible process of the unit {unit} has a socket");
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

/// A plan of what findings of this host and this network namespace propose.
///
/// # Errors
/// The host cannot be read, or the plan would only move the problem elsewhere.
pub(in crate::commands) fn plan_of_findings(
    root: &Root,
    diagnosis: &Diagnosis,
    findings: &[Finding],
) -> anyhow::Result<Plan> {
    let made_ticks = nearpath_tune::ticks_since_boot(root);
    let wanted = Wanted { sockets: true, ..Wanted::default() };
    let host = nearpath_host::read(root, &wanted).context("cannot read the host")?;
    let ports: Vec<u16> = steered(findings).collect();
    let request = Request {
        traffic: traffic_of(diagnosis, &host),
        named: named(root, findings),
        system: System::read(root, &[], &ports),
        ..Request::default()
    };
    let boot = steering::boot(root)?;
    let netns = current_netns(root).inode;
    let plan = plan(&host, findings, &request, &[], Some(boot), netns)?;
    Ok(Plan { made_ticks, ..plan })
}

/// The packets of the measurement that a diagnosis is based on.
fn traffic_of(diagnosis: &Diagnosis, host: &Host) -> Traffic {
    let measured = diagnosis.measurement.as_ref();
    measured.map(|m| Traffic::of_measurement(m, &host.topology)).unwrap_or_default()
}

/// The processes that findings propose to move, with their threads; those that have ended have none.
fn named(root: &Root, findings: &[Finding]) -> Vec<Workload> {
    let pid = |change: &ProposedChange| match change.target {
        Proposal::Affinity { pid, .. } => Some(pid),
        _ => None,
    };
    let changes = findings.iter().flat_map(|finding| &finding.changes);
    let pids: BTreeSet<u32> = changes.filter_map(pid).collect();
    pids.into_iter().filter_map(|pid| workloads(root, &[pid]).ok()).flatten().collect()
}

/// The ports whose REUSEPORT groups findings propose to steer.
fn steered(findings: &[Finding]) -> impl Iterator<Item = u16> {
    findings.iter().flat_map(|finding| &finding.changes).filter_map(|change| match change.target {
        Proposal::Steering { port, .. } => Some(port),
        _ => None,
    })
}

/// What findings propose in this network namespace is to be changed here, whatever it is called elsewhere.
fn here(root: &Root, findings: &mut [Finding]) {
    let ours = current_netns(root).inode;
    for change in findings.iter_mut().flat_map(|finding| &mut finding.changes) {
        let Some(Ok(named)) = change.netns.as_deref().map(str::parse::<NetnsRef>) else { continue };
        let its = in_netns(&named, |root| current_netns(&root).inode);
        if ours.is_some() && its.is_ok_and(|its| its == ours) {
            change.netns = None;
        }
    }
}

fn channels(text: &str) -> Result<ChannelCount, String> {
    match (text, text.parse()) {
        ("near", _) => Ok(ChannelCount::Near),
        ("keep", _) => Ok(ChannelCount::Keep),
        (_, Ok(number)) if number > 0 => Ok(ChannelCount::Number(number)),
        _ => Err("expected a number from 1, near, or keep".to_owned()),
    }
}

fn boot_parameter(text: &str) -> Result<BootParameter, String> {
    let found = BootParameter::ALL.into_iter().find(|parameter| parameter.name() == text);
    found.ok_or_else(|| "expected rcu_nocb_poll or nowatchdog".to_owned())
}

fn sysctl(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE, e.g. kernel.numa_balancing=0".to_owned()),
    }
}

/// `5:2`, `dscp46:2`, `10.0.0.1:2`, `[fd00::1]:2`.
fn priority(text: &str) -> Result<(TrafficClass, CpuId), String> {
    let parse = || {
        let (class, cpu) = text.rsplit_once(':')?;
        let address = class.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let class = if let Some(dscp) = class.strip_prefix("dscp") {
            TrafficClass::Dscp(dscp.parse().ok()?)
        } else if let Some(address) = address {
            TrafficClass::From(IpAddr::V6(address.parse().ok()?))
        } else if class.contains('.') {
            TrafficClass::From(IpAddr::V4(class.parse().ok()?))
        } else {
            TrafficClass::Pcp(class.parse().ok()?)
        };
        class.is_valid().then_some((class, CpuId(cpu.parse().ok()?)))
    };
    parse().ok_or_else(|| {
        "expected PCP:CPU with a priority from 0 to 7, dscpN:CPU, or ADDRESS:CPU, e.g. 5:2, dscp46:2, 10.0.0.1:2, [fd00::1]:2"
            .to_owned()
    })
}

fn schedule(text: &str) -> Result<Schedule, String> {
    let parse = || {
        let (priority, rule) = text.split_once(':')?;
        let (rule, offload) =
            rule.strip_suffix(",offload").map_or((rule, false), |rule| (rule, true));
        let ns = |text: &str| u32::try_from(latency(text).ok()?.as_nanos()).ok();
        let rule = match rule.split_once('=')? {
            ("etf", delta) => ScheduleRule::Etf { delta_ns: i32::try_from(ns(delta)?).ok()? },
            ("gate", times) => {
                let (open, cycle) = times.split_once('/')?;
                let (open_ns, cycle_ns) = (ns(open)?, ns(cycle)?);
                (open_ns < cycle_ns).then_some(ScheduleRule::Gate { open_ns, cycle_ns })?
            }
            ("cbs", rate) => {
                let kbit_s = rate.parse().ok().filter(|&kbit: &i32| kbit > 0)?;
                ScheduleRule::Rate { kbit_s }
            }
            _ => return None,
        };
        let priority = priority.parse().ok().filter(|&priority: &u8| priority < 16)?;
        Some(Schedule { priority, rule, offload })
    };
    parse().ok_or_else(|| {
        "expected PRIORITY:RULE with a priority from 0 to 15, e.g. 3:etf=5ms, 3:gate=300us/1ms, 3:cbs=20000 (kbit/s), \
         3:etf=300us,offload"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_parsed() {
        let rule = |text| schedule(text).map(|its| (its.priority, its.rule, its.offload));
        let etf = ScheduleRule::Etf { delta_ns: 5_000_000 };
        assert_eq!(rule("3:etf=5ms"), Ok((3, etf, false)));
        assert_eq!(rule("15:etf=5ms,offload"), Ok((15, etf, true)));
        let gate = ScheduleRule::Gate { open_ns: 300_000, cycle_ns: 1_000_000 };
        assert_eq!(rule("0:gate=300us/1ms"), Ok((0, gate, false)));
        assert_eq!(rule("2:cbs=20000"), Ok((2, ScheduleRule::Rate { kbit_s: 20_000 }, false)));
        for text in [
            "",
            "3",
            "3:etf",
            "16:etf=5ms",
            "-1:etf=5ms",
            "3:etf=5",
            "3:etf=10s",
            "3:gate=1ms/1ms",
            "3:gate=1ms",
            "3:cbs=0",
            "3:cbs=20m",
            "3:fq=1",
            "3:etf=5ms,hw",
        ] {
            assert!(schedule(text).is_err(), "{text}");
        }
    }
}
