//! The instrument `workers`: what threads that poll did in an interval, and what else ran on their CPUs. The method is
//! described in `docs/workers.md`.
//!
//! Counters are the difference of two readings: of the processes' own, of `/proc/PID/task/TID`, `/proc/interrupts`,
//! `/proc/softirqs` and `/proc/stat`. The tasks on the workers' CPUs are observed by a program (`bpf/workers.bpf.c`); if it
//! is refused, the rest is reported.

mod cpus;
mod load;

use crate::kernel::{Kernel, Meter};
use crate::{Instrument, InstrumentError};
use cpus::CpuReadings;
use libbpf_rs::skel::Skel;
use load::{Loaded, PROBES};
use nearpath_host::Root;
use nearpath_model::memory::NotAvailable;
use nearpath_model::{CpuSet, Topology, Workers as WorkersMeasurement};
use std::path::PathBuf;
use std::time::Instant;

/// Options of the instrument.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
}

/// The instrument.
pub struct Workers<'a> {
    root: &'a Root,
    topology: Topology,
    options: Options,
    session: Option<Session>,
    /// The previous session, whose programs are still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`.
struct Session {
    before: WorkersMeasurement,
    readings: CpuReadings,
    watched: CpuSet,
    programs: Result<(Meter, Loaded), InstrumentError>,
    /// When `before` was read.
    before_at: Instant,
    began: Instant,
}

impl<'a> Workers<'a> {
    /// Creates the instrument for a host read from `root`, the running machine; nothing is loaded yet.
    pub fn new(root: &'a Root, topology: &Topology, options: Options) -> Self {
        Self { root, topology: topology.clone(), options, session: None, ended: None }
    }

    fn load(&self, watched: &CpuSet) -> Result<(Meter, Loaded), InstrumentError> {
        let kernel = Kernel::to_load_into(PROBES, self.options.btf_file.as_deref())?;
        let highest = self.topology.possible.iter().chain(watched.iter()).map(|cpu| cpu.0).max();
        let mut loaded = load::load(&kernel, highest.unwrap_or(0) + 1, watched)?;
        let meter = Meter::new(loaded.skeleton.object());
        loaded.set_active(true);
        // The tasks in progress run since now.
        loaded.read_cpus(watched)?;
        Ok((meter, loaded))
    }

    fn measurement(&self, session: &Session) -> WorkersMeasurement {
        let mut tasks = None;
        let mut missing = Vec::new();
        let mut missed = |what: &str, reason: &str| {
            missing.push(NotAvailable { what: what.to_owned(), reason: reason.to_owned() });
        };
        let (mut lost_ns, mut cost) = (0, None);
        match &session.programs {
            Ok((meter, loaded)) => match loaded.read_cpus(&session.watched) {
                Ok(()) => {
                    tasks = Some(loaded.tasks());
                    lost_ns = loaded.lost_ns();
                    cost = meter.event_cost();
                }
                Err(error) => missed("tasks on the workers' CPUs", &error.to_string()),
            },
            Err(error) => missed("tasks on the workers' CPUs", &error.to_string()),
        }
        let duration_s = session.began.elapsed().as_secs_f64();
        let mut measurement = nearpath_host::workers::read(self.root);
        // A process that hangs delays the reading, of the others as well.
        measurement.measure_since(&session.before, session.before_at.elapsed().as_secs_f64());
        measurement.duration_s = Some(duration_s);
        let cpus = session.readings.since(self.root, &session.watched, tasks.as_ref());
        measurement.add_cpus(cpus, tasks.is_some());
        measurement.lost_ns = lost_ns;
        measurement.cost = cost;
        measurement.not_available = missing;
        measurement
    }
}

/// The CPUs of workers. One that floats over all CPUs of a large host is not watched everywhere: it belongs to none.
fn cpus_of(workers: &WorkersMeasurement) -> CpuSet {
    const MOST: usize = 1024;
    let cpus = workers.all_workers().filter_map(|(_, worker)| worker.cpus.as_ref());
    let all = cpus.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    all.iter().take(MOST).collect()
}

impl Instrument for Workers<'_> {
    type Measurement = WorkersMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        // Counters are read from /proc; what the program adds may be missing, with a reason.
        Ok(())
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.ended = None;
        let watched = cpus_of(&nearpath_host::workers::read(self.root));
        let online = watched.intersection(&self.topology.online);
        // Without workers nothing is attached.
        let programs = if online.is_empty() {
            Err(InstrumentError::Unsupported("there are no workers".to_owned()))
        } else {
            self.load(&online)
        };
        // Loading takes a while; all begins together.
        let before = nearpath_host::workers::read(self.root);
        let before_at = Instant::now();
        let readings = CpuReadings::new(self.root);
        let began = Instant::now();
        if let Ok((_, loaded)) = &programs {
            loaded.forget(&online)?;
        }
        self.session =
            Some(Session { before, readings, watched: online, programs, before_at, began });
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        if let Some(Session { programs: Ok((meter, loaded)), .. }) = &mut self.session {
            meter.begin(loaded.skeleton.object(), 0);
        }
    }

    fn end_cost_window(&mut self) {
        if let Some(Session { programs: Ok((meter, loaded)), .. }) = &mut self.session {
            meter.end(loaded.skeleton.object(), 0);
        }
    }

    fn read(&mut self) -> Result<WorkersMeasurement, InstrumentError> {
        let session = self.session.as_ref().ok_or(InstrumentError::NotStarted)?;
        Ok(self.measurement(session))
    }

    fn stop(&mut self) -> Result<WorkersMeasurement, InstrumentError> {
        self.end_cost_window();
        let session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        let measurement = self.measurement(&session);
        self.ended = Some(session);
        if let Some(Session { programs: Ok((_, loaded)), .. }) = &mut self.ended {
            loaded.set_active(false);
        }
        Ok(measurement)
    }
}
