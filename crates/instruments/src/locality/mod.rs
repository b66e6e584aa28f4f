//! The instrument `locality`: the CPU on which each packet's sk_buff is allocated and the CPU on which it is
//! freed. The method is described in `docs/measuring.md`.

mod group;
mod load;
mod probes;
mod reading;

use crate::filter::Filter;
use crate::kernel::{Kernel, Mapped, Meter};
use crate::layout::Layout;
use crate::{Grouping, Instrument, InstrumentError};
use libbpf_rs::skel::Skel;
use load::Loaded;
use nearpath_model::locality::{LOCALITY_SCHEMA, Locality};
use nearpath_model::{Direction, Topology};
use probes::PROBES;
use reading::Reading;
use std::path::PathBuf;
use std::time::Instant;

/// Options of the instrument.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which packets are observed.
    pub filter: Filter,
    /// Group the result; `sort` is only by packets.
    pub groups: Option<Grouping>,
    /// Attach empty programs, to measure the cost of attaching alone, for benchmarks.
    pub empty: bool,
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
}

/// The instrument.
pub struct PacketLocality {
    options: Options,
    topology: Topology,
    layout: Layout,
    session: Option<Session>,
    /// The previous session, whose programs are still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`. The fields are dropped in this order.
struct Session {
    counters: Mapped,
    places: Mapped,
    meter: Meter,
    loaded: Loaded,
    started: Instant,
}

impl PacketLocality {
    /// Creates the instrument for a host; nothing is loaded yet.
    pub fn new(topology: &Topology, options: Options) -> Self {
        let layout = Layout::new(topology);
        Self { options, topology: topology.clone(), layout, session: None, ended: None }
    }

    fn measurement(&self, session: &Session) -> Locality {
        let reading = session.reading(&self.layout);
        // Before the whole: groups are part of it.
        let parts = self.options.groups.map(|by| (by, session.loaded.groups(by.per)));
        let duration_s = session.started.elapsed().as_secs_f64();
        let (rx, tx) = (reading.distances(Direction::Rx), reading.distances(Direction::Tx));
        Locality {
            schema: LOCALITY_SCHEMA,
            duration_s,
            filter: self.options.filter.to_string(),
            method: session.loaded.method,
            fallback: session.loaded.fallback.clone(),
            rx,
            tx,
            packets: reading.fates(rx.packets + tx.packets),
            events_lost: session.meter.runs(session.loaded.skeleton.object()).missed,
            cost: session.meter.cost(),
            places: reading.matrix(),
            groups: parts.map_or_else(Vec::new, |(by, parts)| group::shown(parts, by, rx, tx)),
        }
    }
}

impl Session {
    fn reading<'a>(&'a self, layout: &'a Layout) -> Reading<'a> {
        Reading { layout, counters: &self.counters, places: &self.places }
    }
}

impl Instrument for PacketLocality {
    type Measurement = Locality;

    fn available(&self) -> Result<(), InstrumentError> {
        Kernel::to_load_into(PROBES, self.options.btf_file.as_deref()).map(drop)
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.ended = None;
        let kernel = Kernel::to_load_into(PROBES, self.options.btf_file.as_deref())?;
        let mut loaded = load::load(&kernel, &self.layout, &self.options)?;
        if !loaded.sees_packets() {
            let reason = loaded.attached.refused.first().map_or("", |(_, why)| why.as_str());
            return Err(InstrumentError::Unsupported(format!(
                "neither received nor sent packets can be observed: {reason}"
            )));
        }
        let maps = &loaded.skeleton.maps;
        let counters = Mapped::new(&maps.counters)?;
        let places = Mapped::new(&maps.cpu_pairs)?;
        reading::prepare(&Mapped::new(&maps.cpus)?, &self.layout, &self.topology);
        let meter = Meter::new(loaded.skeleton.object());
        loaded.set_active(true);
        let started = Instant::now();
        self.session = Some(Session { counters, places, meter, loaded, started });
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        if let Some(session) = &mut self.session {
            let started = session.reading(&self.layout).started();
            session.meter.begin(session.loaded.skeleton.object(), started);
        }
    }

    fn end_cost_window(&mut self) {
        if let Some(session) = &mut self.session {
            let started = session.reading(&self.layout).started();
            session.meter.end(session.loaded.skeleton.object(), started);
        }
    }

    fn read(&mut self) -> Result<Locality, InstrumentError> {
        let session = self.session.as_ref().ok_or(InstrumentError::NotStarted)?;
        Ok(self.measurement(session))
    }

    fn stop(&mut self) -> Result<Locality, InstrumentError> {
        self.end_cost_window();
        let mut session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        session.loaded.set_active(false);
        let measurement = self.measurement(&session);
        self.ended = Some(session);
        Ok(measurement)
    }
}
