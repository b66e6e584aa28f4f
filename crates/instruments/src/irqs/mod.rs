//! The instrument `irqs`: how often each queue's interrupt occurred on each CPU, the activity of softirqs and
//! NAPI instances, and the time in both. The method is described in `docs/measuring.md`.
//!
//! Counts are the difference of the kernel's own counters between two readings; times, and the polls of NAPI
//! instances, are observed by programs (`bpf/irqs.bpf.c`). If these are refused, only the counts are reported.

mod links;
mod priorities;
mod probes;
pub(crate) mod readings;
mod rows;
mod tally;
mod times;

use crate::kernel::{Kernel, Mapped, Meter};
use crate::layout::Layout;
use crate::{Instrument, InstrumentError};
use libbpf_rs::skel::Skel;
use links::Links;
use nearpath_host::Root;
use nearpath_model::irqs::{
    ArchInterrupts, CpuInterrupts, IRQ_MEASUREMENT_SCHEMA, IrqMeasurement, Polls, Priorities,
    PriorityField,
};
use nearpath_model::{CpuId, IfIndex, Nic, PacketSource, Topology, Unknown};
use probes::{Extras, Loaded, PROBES};
use readings::Readings;
use rows::{Counted, dense};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

/// Options of the instrument.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The NIC whose queues are reported; without it all NICs of the namespace.
    pub nic: Option<String>,
    /// Count the packets of queues at each reading, not only at the start and the end: this queries each driver
    /// for its statistics.
    pub packets_each: bool,
    /// Count packets by this priority, queue and CPU: of the NIC, or of all with hardware queues.
    pub priorities: Option<PriorityField>,
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
}

/// The instrument.
pub struct Irqs<'a> {
    root: &'a Root,
    topology: Topology,
    layout: Layout,
    nics: Vec<Nic>,
    options: Options,
    session: Option<Session>,
    /// The previous session, whose programs are still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`.
struct Session {
    programs: Result<Programs, String>,
    readings: Readings,
    links: Links,
    sources: BTreeMap<IfIndex, PacketSource>,
    began: Instant,
    last: Instant,
}

/// The programs. The fields are dropped in this order.
struct Programs {
    cpus: Mapped,
    meter: Meter,
    loaded: Loaded,
}

impl<'a> Irqs<'a> {
    /// Creates the instrument for a host read from `root`, the running machine; nothing is loaded yet.
    pub fn new(root: &'a Root, topology: &Topology, nics: &[Nic], options: Options) -> Self {
        let layout = Layout::new(topology);
        let nics = nics.iter().filter(|nic| is_wanted(nic, &options)).cloned().collect();
        Self { root, topology: topology.clone(), layout, nics, options, session: None, ended: None }
    }

    fn programs(&self, links: &Links) -> Result<Programs, InstrumentError> {
        let kernel = Kernel::to_load_into(PROBES, self.options.btf_file.as_deref())?;
        let extras = Extras { asks_napi: !links.knows_napi(), priorities: self.options.priorities };
        let loaded = probes::load(&kernel, &self.layout, extras)?;
        let cpus = Mapped::new(&loaded.skeleton.maps.cpus)?;
        let meter = Meter::new(loaded.skeleton.object());
        Ok(Programs { cpus, meter, loaded })
    }

    /// NICs with hardware queues; only these count packets.
    fn counting(&self) -> Vec<Nic> {
        self.nics.iter().filter(|nic| nic.bus.is_some()).cloned().collect()
    }

    /// Adds a reading, and reads the NICs again if the interrupts have changed.
    fn take(&mut self, nics: &[Nic]) {
        let now = nearpath_host::read_counters(self.root, nics);
        let Some(session) = &mut self.session else { return };
        let at = Instant::now();
        let changed = session.readings.differs(&now);
        session.readings.add(&now, (at - session.last).as_secs_f64());
        session.last = at;
        if changed {
            let nics = nearpath_host::read_nics(self.root, &now.irqs);
            let wanted = nics.iter().filter(|nic| is_wanted(nic, &self.options));
            session.links.enter(wanted, &session.readings);
        }
    }
}

fn is_wanted(nic: &Nic, options: &Options) -> bool {
    options.nic.as_ref().is_none_or(|name| *name == nic.name)
}

impl Instrument for Irqs<'_> {
    type Measurement = IrqMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        Kernel::to_load_into(PROBES, self.options.btf_file.as_deref()).map(drop)
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.ended = None;
        let mut links = Links::default();
        // Once before the programs, which depend on the queues: loading takes a while.
        let before = nearpath_host::read_counters(self.root, &[]);
        links.enter(&self.nics, &Readings::new(&before));
        let mut programs = self.programs(&links).map_err(|error| error.to_string());
        let first = nearpath_host::read_counters(self.root, &self.counting());
        let readings = Readings::new(&first);
        links.enter(&self.nics, &readings);
        let sources = first.queue_packets.iter().map(|(index, of)| (*index, of.source)).collect();
        if let Ok(programs) = &mut programs {
            programs.loaded.set_active(true);
        }
        let now = Instant::now();
        self.session = Some(Session { programs, readings, links, sources, began: now, last: now });
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        if let Some(Session { programs: Ok(programs), .. }) = &mut self.session {
            programs.meter.begin(programs.loaded.skeleton.object(), 0);
        }
    }

    fn end_cost_window(&mut self) {
        if let Some(Session { programs: Ok(programs), .. }) = &mut self.session {
            programs.meter.end(programs.loaded.skeleton.object(), 0);
        }
    }

    fn read(&mut self) -> Result<IrqMeasurement, InstrumentError> {
        let nics = if self.options.packets_each { self.counting() } else { vec![] };
        self.take(&nics);
        let session = self.session.as_ref().ok_or(InstrumentError::NotStarted)?;
        Ok(self.measurement(session))
    }

    fn stop(&mut self) -> Result<IrqMeasurement, InstrumentError> {
        self.end_cost_window();
        if let Some(Session { programs: Ok(programs), .. }) = &mut self.session {
            programs.loaded.set_active(false);
        }
        self.take(&self.counting());
        let session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        let measurement = self.measurement(&session);
        self.ended = Some(session);
        Ok(measurement)
    }
}

impl Irqs<'_> {
    fn measurement(&self, session: &Session) -> IrqMeasurement {
        let Session { readings, links, sources, .. } = session;
        let duration_s = (session.last - session.began).as_secs_f64();
        let programs = session.programs.as_ref().ok();
        let instances = programs.map(|programs| times::instances(&programs.loaded));
        let cpus = self.layout.cpus.len();
        let counted =
            Counted { readings, links, instances: instances.as_deref(), sources, cpus, duration_s };
        let (queues, nics) = counted.queues();
        let arch = readings.arch_irqs.iter().filter(|(_, (_, tally))| !tally.sum.is_empty());
        let lost = |programs: &Programs| {
            let missed = programs.meter.runs(programs.loaded.skeleton.object()).missed;
            missed + times::polls_lost(&programs.cpus) + priorities::lost(&programs.loaded)
        };
        IrqMeasurement {
            schema: IRQ_MEASUREMENT_SCHEMA,
            duration_s,
            queues,
            nics,
            irqs: counted.others(),
            arch_irqs: arch
                .map(|(name, (description, tally))| ArchInterrupts {
                    name: name.clone(),
                    description: description.clone(),
                    per_cpu: dense(&tally.sum, cpus),
                })
                .collect(),
            softirqs: readings
                .softirqs
                .iter()
                .map(|(vector, tally)| (vector.clone(), dense(&tally.sum, cpus)))
                .collect(),
            cpus: self.cpus(session, instances.as_deref()),
            napi: counted.napi(self.options.nic.is_some()),
            priorities: self.priorities(session),
            events_lost: programs.map_or(0, lost),
            cost: programs.and_then(|programs| programs.meter.event_cost()),
            unknown: unknown(session),
        }
    }

    /// Packets by priority: of the requested NIC, else of those with hardware queues.
    fn priorities(&self, session: &Session) -> Option<Priorities> {
        let by = self.options.priorities?;
        let loaded = &session.programs.as_ref().ok()?.loaded;
        let named = self.options.nic.is_some();
        let counted = self.nics.iter().filter(|nic| named || nic.bus.is_some());
        let counted: BTreeSet<IfIndex> = counted.map(|nic| nic.ifindex).collect();
        let name = |ifindex: IfIndex, netns: u64| {
            let nic = session.links.nics.get(&ifindex).filter(|_| counted.contains(&ifindex))?;
            nic.netns.is_none_or(|inode| inode == netns).then(|| nic.name.clone())
        };
        priorities::read(loaded, by, self.layout.cpus.len(), name)
    }

    fn cpus(&self, session: &Session, instances: Option<&[times::Instance]>) -> Vec<CpuInterrupts> {
        let readings = &session.readings;
        let mut interrupts: BTreeMap<CpuId, u64> = BTreeMap::new();
        let former = readings.former.iter().map(|(_, line)| line);
        for line in readings.irqs.values().chain(former) {
            for (cpu, count) in &line.counts.sum {
                *interrupts.entry(*cpu).or_default() += count;
            }
        }
        let row = |cpu: CpuId| {
            let [processed, dropped, time_squeeze, received_rps, flow_limit] =
                std::array::from_fn(|i| readings.softnet[i].counted(&cpu));
            let backlog = readings.backlog.get(&cpu);
            let backlog_polls = instances.map(|all| {
                let of_cpu = all.iter().filter(|instance| instance.ifindex.is_none());
                let of_cpu = of_cpu.filter_map(|instance| instance.per_cpu.get(&cpu));
                of_cpu.copied().fold(Polls::default(), Polls::and)
            });
            let mut row = CpuInterrupts {
                node: self.topology.node_of(cpu),
                online: readings.online.contains(cpu),
                interrupts: interrupts.get(&cpu).copied().unwrap_or(0),
                processed,
                dropped,
                time_squeeze,
                received_rps,
                flow_limit,
                backlog: backlog.map(|(last, _)| *last),
                backlog_max: backlog.map(|(_, most)| *most),
                backlog_polls,
                ..CpuInterrupts::new(cpu)
            };
            if let Ok(programs) = &session.programs {
                times::enter(&programs.cpus, &programs.loaded, &mut row);
            }
            row
        };
        self.topology.cpus.iter().map(|cpu| row(cpu.cpu)).collect()
    }
}

/// What could not be observed, with the reason.
fn unknown(session: &Session) -> Vec<Unknown> {
    let host = |fact: &str, reason: &str| Unknown {
        subject: "host".to_owned(),
        fact: fact.to_owned(),
        reason: reason.to_owned(),
    };
    let mut unknown = session.readings.unknown.clone();
    match &session.programs {
        Err(reason) => unknown.push(host("time in interrupts and softirqs, NAPI polls", reason)),
        Ok(programs) => {
            let refused = programs.loaded.attached.refused.iter();
            unknown.extend(refused.map(|(probe, why)| host(&probe.stages.join(", "), why)));
        }
    }
    unknown.sort();
    unknown.dedup_by(|a, b| (&a.subject, &a.fact) == (&b.subject, &b.fact));
    unknown
}
