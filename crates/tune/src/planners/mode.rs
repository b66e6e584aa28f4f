//! Whether interrupts and the application share the CPUs near a NIC, or each have their own.
//!
//! Input: the host, the request and its application. Output: for the NICs of a node, the CPUs for interrupts and those
//! for the application. All planners that place either take them from here, so that they agree.
//!
//! The modes are those of Scylla's perftune.py: `mq` (all near CPUs do both), `sq_split` (one core for interrupts) and
//! `split`, what it does without a mode on more than 16 cores (one core in 16). Unlike perftune.py, which is for
//! programs that keep each CPU of the host busy, only CPUs near the NIC count, and no CPU is isolated unless an
//! application is named, nor for the goal throughput.
//!
//! On a node with several last-level caches, interrupts and application get one of them if the application fits, else
//! each cache gets a core for interrupts: a packet is in the cache of the CPU that received it.
//!
//! Rules: perftune.py (`auto_detect_irq_mask`), Documentation/networking/scaling.rst (a queue for each cache),
//! the chapter on NUMA for SR-IOV paths (interrupt and reader share a cache).

use super::draft::Draft;
use super::exclusive_cpus;
use super::situation::{Request, Situation, cpus};
use super::thread_affinity::wanted;
use super::workload::{Worker, Workload};
use nearpath_diagnose::{cpus_near_node, nearest_cpus};
use nearpath_model::{CpuId, CpuSet, CpuTime, Goal, Host, LlcId, NodeId, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// How interrupts and the application share CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All CPUs near the NIC do both.
    Mq,
    /// One core takes the interrupts, the others run the application.
    SqSplit,
    /// One core in [`CORES_EACH`] takes the interrupts, the others run the application.
    Split,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mq, Self::SqSplit, Self::Split];

    /// As it is named on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mq => "mq",
            Self::SqSplit => "sq_split",
            Self::Split => "split",
        }
    }
}

/// Up to this many cores, one for interrupts only is a large part of all.
const FEW_CORES: usize = 4;
/// One core for interrupts in this many.
const CORES_EACH: usize = 16;
/// CPUs for interrupts should not be busier than this with softirqs, in thousandths.
const BUSY: u64 = 500;
/// Less than this is no load, in thousandths of a CPU.
const NO_LOAD: u64 = 100;

/// The CPUs for the NICs of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Division {
    /// The mode; `Split` also where the request or isolation at boot draws the line.
    pub mode: Mode,
    /// Those for interrupts, best first.
    pub irq: Vec<CpuId>,
    /// Those for the application, best first.
    pub app: Vec<CpuId>,
    /// Why these, if they were chosen here.
    pub why: Option<String>,
}

impl Division {
    /// Whether interrupts and application have CPUs of their own.
    pub fn is_apart(&self) -> bool {
        self.mode != Mode::Mq
    }

    /// Divides the CPUs near a node.
    pub fn of(
        host: &Host,
        request: &Request,
        workloads: &[Workload],
        node: Option<NodeId>,
    ) -> Self {
        let near = without(nearest_cpus(host, node), request.exclude_cpus.as_ref());
        let exclusive = exclusive_cpus::of(host);
        let own = exclusive_cpus::of_workloads(host, workloads);
        let own: Vec<CpuId> = near.iter().copied().filter(|&cpu| own.contains(cpu)).collect();
        let cpus = without(near, Some(&exclusive));
        let near = Near { host, request, workloads, node, cpus };
        let mut division = match (&request.irq_cpus, &request.app_cpus) {
            (Some(irq), app) => near.with_irq_cpus(irq, app.as_ref()),
            (None, Some(app)) => near.with_app_cpus(app),
            (None, None) => near.chosen(),
        };
        if request.app_cpus.is_none() {
            // What a container has alone is for its own threads.
            let more = own.into_iter().filter(|cpu| !division.app.contains(cpu));
            let more: Vec<CpuId> = more.collect();
            division.app.extend(more);
        }
        division
    }
}

/// The CPUs near a node, and what they are for.
struct Near<'a> {
    host: &'a Host,
    request: &'a Request,
    workloads: &'a [Workload],
    node: Option<NodeId>,
    /// Best first.
    cpus: Vec<CpuId>,
}

/// A core of these CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Core {
    cpus: Vec<CpuId>,
    llc: Option<LlcId>,
}

impl Near<'_> {
    fn with_irq_cpus(&self, irq: &CpuSet, app: Option<&CpuSet>) -> Division {
        let mq = self.request.mode == Some(Mode::Mq);
        let rest = match app {
            Some(app) => app.iter().collect(),
            None if mq => self.cpus.clone(),
            None => match self.isolated() {
                Some(isolated) => without(isolated, Some(irq)),
                None => without(self.cpus.clone(), Some(irq)),
            },
        };
        let shared = mq || app.is_some_and(|app| !app.intersection(irq).is_empty());
        let mode = if shared { Mode::Mq } else { self.request.mode.unwrap_or(Mode::Split) };
        let irq = self.cpus.iter().copied().filter(|&cpu| irq.contains(cpu)).collect();
        Division { mode, irq, app: rest, why: None }
    }

    fn with_app_cpus(&self, app: &CpuSet) -> Division {
        let rest = without(self.cpus.clone(), Some(app));
        let is_isolation = self.request.goal == Goal::Isolation;
        let all: Vec<CpuId> = app.iter().collect();
        match self.request.mode {
            Some(Mode::Mq) => {
                Division { mode: Mode::Mq, irq: self.cpus.clone(), app: all, why: None }
            }
            Some(mode) => {
                let cores = cores(&self.host.topology, &rest);
                let (count, why) = self.count(mode, &cores);
                let llcs = self.llcs(&all);
                let chosen = spread(&cores, count.max(llcs.len()), &llcs);
                Division { mode, irq: chosen, app: all, why: Some(why) }
            }
            // Nothing is left, and nothing requires that they are apart.
            None if rest.is_empty() && !is_isolation => {
                Division { mode: Mode::Mq, irq: self.cpus.clone(), app: all, why: None }
            }
            None => Division { mode: Mode::Split, irq: rest, app: all, why: None },
        }
    }

    /// Neither is requested.
    fn chosen(&self) -> Division {
        if let Some(isolated) = self.isolated() {
            if self.request.mode.is_some() {
                return self.with_app_cpus(&isolated.into_iter().collect());
            }
            return Division {
                mode: Mode::Split,
                irq: self.cpus.clone(),
                app: isolated,
                why: None,
            };
        }
        let cores = cores(&self.host.topology, &self.cpus);
        let auto = || self.auto(cores.len());
        match self.request.mode.unwrap_or_else(auto) {
            Mode::Mq => self.shared(&cores),
            // A CPU alone does both.
            _ if self.cpus.len() < 2 => self.shared(&cores),
            mode => self.apart(mode, &cores),
        }
    }

    /// The mode for a number of cores, by the goal, the application and the load.
    fn auto(&self, cores: usize) -> Mode {
        let is_isolation = self.request.goal == Goal::Isolation;
        let sets_apart = match self.request.goal {
            Goal::Isolation => true,
            Goal::Latency => !self.workloads.is_empty() && cores > FEW_CORES,
            Goal::Throughput => false,
        };
        // Interrupts that take half of the cores leave too few of them free.
        let is_loaded = self.cores_of_load() * 2 > cores;
        match sets_apart && (is_isolation || !is_loaded) {
            true if cores > CORES_EACH => Mode::Split,
            true => Mode::SqSplit,
            false => Mode::Mq,
        }
    }

    /// The number of cores for interrupts, with its reason.
    fn count(&self, mode: Mode, cores: &[Core]) -> (usize, String) {
        let load = self.cores_of_load();
        let count = match mode {
            Mode::Mq => cores.len(),
            Mode::SqSplit => 1,
            Mode::Split => cores.len().div_ceil(CORES_EACH).max(load),
        };
        let cores = cores.len();
        let why = match mode {
            Mode::Split if load > cores.div_ceil(CORES_EACH) => {
                format!("softirqs have kept {load} of {cores} cores half busy since boot")
            }
            Mode::Split => format!("one core in {CORES_EACH}, of {cores} near it"),
            _ => format!("one core of {cores} near it"),
        };
        (count, why)
    }

    /// How many cores the softirqs near the node would keep half busy, by their share since boot.
    fn cores_of_load(&self) -> usize {
        let near: CpuSet = self.cpus.iter().copied().collect();
        let times = self.host.cpu_time.iter().filter(|time| near.contains(time.cpu));
        // In thousandths of a CPU.
        let share = |time: &CpuTime| time.softirq.saturating_mul(1000) / time.total().max(1);
        let busy = times.map(share).sum::<u64>();
        if busy < NO_LOAD { 0 } else { busy.div_ceil(BUSY) as usize }
    }

    /// Some cores for interrupts only.
    fn apart(&self, mode: Mode, cores: &[Core]) -> Division {
        let (count, mut why) = self.count(mode, cores);
        if let [only] = cores {
            // Its first thread, as perftune.py does.
            let (irq, app) = only.cpus.split_at(1);
            why += ", by its threads";
            return Division { mode, irq: irq.to_vec(), app: app.to_vec(), why: Some(why) };
        }
        let count = count.clamp(1, cores.len() - 1);
        let llcs = self.llcs(&self.cpus);
        if llcs.len() < 2 {
            let irq = spread(cores, count, &llcs);
            let app = without(self.cpus.clone(), Some(&irq.iter().copied().collect()));
            return Division { mode, irq, app, why: Some(why) };
        }
        if let Some(llc) = self.llc_for_all(cores, count) {
            let own: Vec<Core> =
                cores.iter().filter(|core| core.llc == Some(llc)).cloned().collect();
            let irq = spread(&own, count, &llcs);
            let of_llc = own.iter().flat_map(|core| core.cpus.iter().copied()).collect();
            let app = without(of_llc, Some(&irq.iter().copied().collect()));
            why += &format!("; the application fits into its cache {llc}");
            return Division { mode, irq, app, why: Some(why) };
        }
        // A cache of a single core has none to spare.
        let sparing: BTreeSet<LlcId> =
            llcs.into_iter().filter(|&llc| self.has_cores(cores, llc)).collect();
        let count = count.max(sparing.len()).min(cores.len() - 1);
        let irq = spread(cores, count, &sparing);
        let app = without(self.cpus.clone(), Some(&irq.iter().copied().collect()));
        why += &format!("; in each of {} last-level caches", sparing.len());
        Division { mode, irq, app, why: Some(why) }
    }

    fn has_cores(&self, cores: &[Core], llc: LlcId) -> bool {
        cores.iter().filter(|core| core.llc == Some(llc)).count() > 1
    }

    /// All CPUs do both; those of one cache if the application and the queues fit there.
    fn shared(&self, cores: &[Core]) -> Division {
        let fits = self.request.goal == Goal::Latency && self.llcs(&self.cpus).len() > 1;
        let llc = if fits { self.llc_for_all(cores, self.queues()) } else { None };
        let Some(llc) = llc else {
            let irq = self.cpus.clone();
            return Division { mode: Mode::Mq, app: irq.clone(), irq, why: None };
        };
        let of_llc = |cpu: &CpuId| self.llc(*cpu) == Some(llc);
        let irq: Vec<CpuId> = self.cpus.iter().copied().filter(of_llc).collect();
        let why = format!("the queues and the application fit into its cache {llc}");
        Division { mode: Mode::Mq, app: irq.clone(), irq, why: Some(why) }
    }

    /// The cache where the application fits beside this many cores for interrupts: the one where most of its threads
    /// are pinned, then the largest, then the first.
    fn llc_for_all(&self, cores: &[Core], interrupts: usize) -> Option<LlcId> {
        let threads: Vec<&Worker> = self.workloads.iter().flat_map(|its| &its.threads).collect();
        if threads.is_empty() {
            return None;
        }
        // Threads that are pinned to one CPU together stay so.
        let needed = wanted(&threads);
        let mut llcs: BTreeMap<LlcId, Vec<&Core>> = BTreeMap::new();
        for core in cores {
            llcs.entry(core.llc?).or_default().push(core);
        }
        let fits = |cores: &Vec<&Core>| {
            let left = cores.iter().skip(interrupts).map(|core| core.cpus.len()).sum::<usize>();
            cores.len() > interrupts && needed <= left
        };
        let is_there = |cores: &[&Core], cpus: &CpuSet| {
            let all: CpuSet = cores.iter().flat_map(|core| core.cpus.iter().copied()).collect();
            cpus.is_subset(&all)
        };
        let rank = |(llc, cores): &(LlcId, Vec<&Core>)| {
            let there = threads.iter().filter(|its| is_there(cores, &its.cpus)).count();
            (there, cores.len(), std::cmp::Reverse(*llc))
        };
        llcs.into_iter().filter(|(_, cores)| fits(cores)).max_by_key(rank).map(|(llc, _)| llc)
    }

    /// The queues of the NICs on the node.
    fn queues(&self) -> usize {
        let names = &self.request.nics;
        let nics = self.host.nics.iter().filter(|nic| nic.numa_node == self.node);
        let nics = nics.filter(|nic| names.is_empty() || names.contains(&nic.name));
        nics.filter(|nic| super::situation::is_hardware(nic)).map(|nic| nic.rx_queues.len()).sum()
    }

    /// The isolated CPUs near the node, for the goal isolation; `None` if there are none.
    fn isolated(&self) -> Option<Vec<CpuId>> {
        let isolated = self.host.kernel.all_isolated()?;
        let near = cpus_near_node(&self.host.topology, self.node);
        let own = without(
            isolated.intersection(&near).iter().collect(),
            self.request.exclude_cpus.as_ref(),
        );
        (self.request.goal == Goal::Isolation && !own.is_empty()).then_some(own)
    }

    fn llc(&self, cpu: CpuId) -> Option<LlcId> {
        self.host.topology.cpu(cpu)?.llc
    }

    fn llcs(&self, cpus: &[CpuId]) -> BTreeSet<LlcId> {
        cpus.iter().filter_map(|&cpu| self.llc(cpu)).collect()
    }
}

/// These CPUs by core, in their order.
fn cores(topology: &Topology, cpus: &[CpuId]) -> Vec<Core> {
    let mut found: Vec<Core> = Vec::new();
    let mut by_first: BTreeMap<CpuId, usize> = BTreeMap::new();
    for &cpu in cpus {
        let facts = topology.cpu(cpu);
        let first = facts.and_then(|facts| facts.siblings.first()).unwrap_or(cpu);
        let index = *by_first.entry(first).or_insert(found.len());
        match found.get_mut(index) {
            Some(core) => core.cpus.push(cpu),
            None => found.push(Core { cpus: vec![cpu], llc: facts.and_then(|facts| facts.llc) }),
        }
    }
    found
}

/// The CPUs of this many cores, one of each of these caches in turn, one CPU per core first.
fn spread(cores: &[Core], count: usize, llcs: &BTreeSet<LlcId>) -> Vec<CpuId> {
    let mut taken: BTreeMap<Option<LlcId>, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, bool, &Core)> = Vec::new();
    for core in cores {
        let turn = taken.entry(core.llc).or_default();
        let is_wanted = llcs.is_empty() || core.llc.is_some_and(|llc| llcs.contains(&llc));
        ranked.push((*turn, !is_wanted, core));
        *turn += 1;
    }
    // The sort is stable: equals stay in the order of the cores.
    ranked.sort_by_key(|&(turn, is_other, _)| (is_other, turn));
    let chosen: Vec<&Core> = ranked.into_iter().take(count).map(|(_, _, core)| core).collect();
    let most = chosen.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
    let of_turn = |turn: usize| chosen.iter().filter_map(move |core| core.cpus.get(turn).copied());
    (0..most).flat_map(of_turn).collect()
}

fn without(cpus: Vec<CpuId>, excluded: Option<&CpuSet>) -> Vec<CpuId> {
    cpus.into_iter().filter(|&cpu| excluded.is_none_or(|set| !set.contains(cpu))).collect()
}

/// Says which CPUs were chosen, and why.
pub(super) fn notes(situation: &Situation<'_>, draft: &mut Draft) {
    for nic in situation.hardware() {
        let division = situation.division(nic.numa_node);
        let (irq, app): (CpuSet, CpuSet) =
            (division.irq.iter().copied().collect(), division.app.iter().copied().collect());
        if let Some(why) = &division.why {
            draft.note(match division.mode {
                Mode::Mq => {
                    format!("{} ({}): {} do both, as {why}", nic.name, Mode::Mq.name(), cpus(&irq))
                }
                mode => format!(
                    "{} ({}): {} for interrupts, {} for the application; {why}",
                    nic.name,
                    mode.name(),
                    cpus(&irq),
                    cpus(&app)
                ),
            });
        }
        if situation.request.mode.is_some_and(|mode| mode != Mode::Mq) && !division.is_apart() {
            draft.note(format!(
                "{} has one CPU near it: interrupts and the application share it",
                nic.name
            ));
        }
        let queues = nic.rx_queues.len();
        let follows = situation.queues_follow();
        if division.is_apart() && !follows && queues > irq.len() && !irq.is_empty() {
            draft.note(format!(
                "{} has {queues} queues for the {} interrupts go to; --mode {} also changes its channels",
                nic.name,
                cpus(&irq),
                division.mode.name()
            ));
        }
    }
}
