//! The instrument `memory`: where the memory of processes is, and in an interval where they ran, which pages were moved
//! and why, and the faults that AutoNUMA took. The method is described in `docs/memory.md`.

mod blocks;
mod damon;
mod load;
pub mod loads;
mod sampler;

use crate::kernel::{Kernel, Meter};
use crate::{Instrument, InstrumentError};
use damon::Damon;
use libbpf_rs::skel::Skel;
use load::{Loaded, PROBES};
use loads::Loads;
use nearpath_host::{MemoryReader, Root};
use nearpath_model::memory::{MemoryMeasurement, NotAvailable};
use sampler::Sampler;
use std::path::PathBuf;
use std::time::Instant;

/// Options of the instrument.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Read all memory at each interval, not only at the end.
    pub each_interval: bool,
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
}

/// The instrument.
pub struct Memory<'a> {
    root: &'a Root,
    reader: MemoryReader,
    options: Options,
    session: Option<Session>,
    /// The previous session, whose programs are still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`.
struct Session {
    sampler: Sampler,
    programs: Result<(Meter, Loaded), InstrumentError>,
    /// Samples of the PMU, or why there are none.
    loads: Result<Loads, String>,
    /// Estimates of DAMON, or why there are none.
    damon: Result<Damon, String>,
    began: Instant,
}

impl<'a> Memory<'a> {
    /// Creates the instrument for the processes that the reader has chosen; nothing is loaded yet.
    pub fn new(root: &'a Root, reader: MemoryReader, options: Options) -> Self {
        Self { root, reader, options, session: None, ended: None }
    }

    fn load(&self) -> Result<(Meter, Loaded), InstrumentError> {
        let kernel = Kernel::to_load_into(PROBES, self.options.btf_file.as_deref())?;
        let mut loaded = load::load(&kernel)?;
        let meter = Meter::new(loaded.skeleton.object());
        loaded.set_active(true);
        Ok((meter, loaded))
    }

    fn measurement(&self, session: &Session) -> MemoryMeasurement {
        let mut m = session.sampler.with(self.root, |ran| self.reader.read(self.root, ran));
        m.duration_s = Some(session.began.elapsed().as_secs_f64());
        let mut missing = |what: &str, reason: &str| {
            let what = what.to_owned();
            m.not_available.push(NotAvailable { what, reason: reason.to_owned() });
        };
        match &session.programs {
            Ok((meter, loaded)) => {
                for (what, reason) in [
                    ("pages moved", &loaded.no_moves),
                    ("hint faults by process", &loaded.no_faults),
                    ("whose pages other processes move", &loaded.no_owners),
                ] {
                    reason.iter().for_each(|reason| missing(what, reason));
                }
                m.moves = loaded.moves();
                m.moves_lost = loaded.lost();
                m.cost.events = meter.event_cost();
                add_events(&mut m, loaded);
            }
            Err(error) => {
                missing("pages moved, hint faults by process", &error.to_string());
            }
        }
        match &session.loads {
            Ok(loads) => m.loads = Some(loads.read(self.root)),
            Err(reason) => missing_loads(&mut m, reason),
        }
        match session.damon.as_ref().map_err(String::clone).and_then(|damon| damon.read(self.root))
        {
            Ok(estimates) => m.accesses = Some(estimates),
            Err(reason) => {
                m.not_available.push(NotAvailable { what: damon::WHAT.to_owned(), reason });
            }
        }
        m.finish();
        m
    }

    /// For a progress bar: without reading memory.
    fn moves_only(session: &Session) -> MemoryMeasurement {
        let loaded = session.programs.as_ref().ok().map(|(_, loaded)| loaded);
        MemoryMeasurement {
            duration_s: Some(session.began.elapsed().as_secs_f64()),
            moves: loaded.map(Loaded::moves).unwrap_or_default(),
            ..MemoryMeasurement::default()
        }
    }
}

fn missing_loads(m: &mut MemoryMeasurement, reason: &str) {
    let what = "remote loads, false sharing".to_owned();
    m.not_available.push(NotAvailable { what, reason: reason.to_owned() });
}

/// Adds to each process its pages moved and its hint faults.
fn add_events(m: &mut MemoryMeasurement, loaded: &Loaded) {
    let faults = loaded.faults();
    for process in &mut m.processes {
        let of = |faults: &std::collections::BTreeMap<u32, _>| {
            faults.get(&process.pid).copied().unwrap_or_default()
        };
        process.hint_faults = faults.as_ref().map(of);
        for moved in m.moves.iter().filter(|moved| moved.pid == Some(process.pid)) {
            let sum = process.moved_pages.entry(moved.reason.clone()).or_default();
            sum.moved = sum.moved.saturating_add(moved.pages.moved);
            sum.failed = sum.failed.saturating_add(moved.pages.failed);
        }
    }
}

impl Instrument for Memory<'_> {
    type Measurement = MemoryMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        // Memory is read from /proc; what programs add may be missing, with a reason.
        Ok(())
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.ended = None;
        let programs = self.load();
        self.reader.begin(self.root);
        let sampler = Sampler::start(self.root, self.reader.topology(), self.reader.pids());
        let loads = Loads::start(self.root, &self.reader.topology().online);
        let damon = Damon::start(self.root, self.options.btf_file.as_deref());
        self.session = Some(Session { sampler, programs, loads, damon, began: Instant::now() });
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        if let Some(Ok((meter, loaded))) = self.session.as_mut().map(|s| s.programs.as_mut()) {
            meter.begin(loaded.skeleton.object(), 0);
        }
    }

    fn end_cost_window(&mut self) {
        if let Some(Ok((meter, loaded))) = self.session.as_mut().map(|s| s.programs.as_mut()) {
            meter.end(loaded.skeleton.object(), 0);
        }
    }

    fn read(&mut self) -> Result<MemoryMeasurement, InstrumentError> {
        let session = self.session.as_ref().ok_or(InstrumentError::NotStarted)?;
        Ok(if self.options.each_interval {
            self.measurement(session)
        } else {
            Self::moves_only(session)
        })
    }

    fn stop(&mut self) -> Result<MemoryMeasurement, InstrumentError> {
        self.end_cost_window();
        let session = self.session.as_mut().ok_or(InstrumentError::NotStarted)?;
        if let Ok((_, loaded)) = &mut session.programs {
            loaded.set_active(false);
        }
        let session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        let measurement = self.measurement(&session);
        self.ended = Some(session);
        Ok(measurement)
    }
}
