//! The instrument `accepts`: for each connection the CPU that received it and the CPU that accepted it, by
//! listener and thread; or for each UDP datagram the CPU that received it and the CPU that reads it. The method
//! is described in `docs/measuring.md`.

mod listeners;
mod load;
mod probes;

use crate::kernel::{Kernel, Meter};
use crate::{Instrument, InstrumentError};
use libbpf_rs::skel::Skel;
use libbpf_rs::{RingBuffer, RingBufferBuilder};
use load::Loaded;
use nearpath_host::{Root, thread_cpus};
use nearpath_model::accepts::{ACCEPT_MEASUREMENT_SCHEMA, AcceptEvent, AcceptMeasurement};
use nearpath_model::{Protocol, Topology, Unknown};
use probes::PROBES;
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

/// Options of the instrument: which accepts are observed. All given conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Of this process.
    pub pid: Option<u32>,
    /// From listeners on this port.
    pub port: Option<u16>,
    /// Of threads with this name.
    pub comm: Option<String>,
    /// In this network namespace.
    pub netns: Option<u32>,
    /// UDP datagrams read from sockets, instead of connections.
    pub datagrams: bool,
    /// Report individual accepts, in [`AcceptMeasurement::events`].
    pub each: bool,
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
}

impl Options {
    fn protocol(&self) -> Protocol {
        if self.datagrams { Protocol::Udp } else { Protocol::Tcp }
    }
}

/// The instrument.
pub struct Accepts<'a> {
    root: &'a Root,
    topology: Topology,
    options: Options,
    events: Rc<RefCell<Vec<AcceptEvent>>>,
    session: Option<Session>,
    /// The previous session, whose programs are still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`. The fields are dropped in this order.
struct Session {
    ring: RingBuffer<'static>,
    meter: Meter,
    loaded: Loaded,
    began: Instant,
}

impl<'a> Accepts<'a> {
    /// Creates the instrument for the running machine; nothing is loaded yet.
    pub fn new(root: &'a Root, topology: &Topology, options: Options) -> Self {
        let events = Rc::default();
        Self { root, topology: topology.clone(), options, events, session: None, ended: None }
    }

    fn measurement(&self, session: &Session) -> AcceptMeasurement {
        let cpus_of = |pid, tid| thread_cpus(self.root, pid, tid);
        // Errors come from the callback, which returns none.
        let _ = session.ring.consume();
        let (lost, events_dropped) = session.loaded.lost();
        let missed = session.meter.runs(session.loaded.skeleton.object()).missed;
        let unknown = |reason: &String| Unknown {
            subject: "host".to_owned(),
            fact: "accepts of io_uring".to_owned(),
            reason: reason.clone(),
        };
        AcceptMeasurement {
            schema: ACCEPT_MEASUREMENT_SCHEMA,
            protocol: self.options.protocol(),
            duration_s: session.began.elapsed().as_secs_f64(),
            listeners: listeners::listeners(session.loaded.counts(), &self.topology, cpus_of),
            lost,
            skipped: missed,
            events_dropped,
            events: self.events.take(),
            unknown: session.loaded.no_io_uring.iter().map(unknown).collect(),
            cost: session.meter.event_cost(),
        }
    }
}

impl Instrument for Accepts<'_> {
    type Measurement = AcceptMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        Kernel::to_load_into(PROBES, self.options.btf_file.as_deref()).map(drop)
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.ended = None;
        let kernel = Kernel::to_load_into(PROBES, self.options.btf_file.as_deref())?;
        let mut loaded = load::load(&kernel, &self.options)?;
        let events = Rc::clone(&self.events);
        let mut builder = RingBufferBuilder::new();
        let protocol = self.options.protocol();
        let take = move |bytes: &[u8]| {
            events.borrow_mut().extend(load::one(bytes, protocol));
            0
        };
        let refused = |error: libbpf_rs::Error| InstrumentError::Refused {
            step: "listening to accepts".to_owned(),
            reason: error.to_string(),
        };
        builder.add(&loaded.skeleton.maps.events, take).map_err(refused)?;
        let ring = builder.build().map_err(refused)?;
        let meter = Meter::new(loaded.skeleton.object());
        loaded.set_active(true);
        let began = Instant::now();
        self.session = Some(Session { ring, meter, loaded, began });
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        if let Some(session) = &mut self.session {
            session.meter.begin(session.loaded.skeleton.object(), 0);
        }
    }

    fn end_cost_window(&mut self) {
        if let Some(session) = &mut self.session {
            session.meter.end(session.loaded.skeleton.object(), 0);
        }
    }

    fn read(&mut self) -> Result<AcceptMeasurement, InstrumentError> {
        let session = self.session.as_ref().ok_or(InstrumentError::NotStarted)?;
        Ok(self.measurement(session))
    }

    fn stop(&mut self) -> Result<AcceptMeasurement, InstrumentError> {
        self.end_cost_window();
        if let Some(session) = &mut self.session {
            session.loaded.set_active(false);
        }
        let session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        let measurement = self.measurement(&session);
        self.ended = Some(session);
        Ok(measurement)
    }
}
