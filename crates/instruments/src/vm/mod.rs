//! The instrument `vm`: the latency of packets from the host's NIC into virtual machines, by vhost-net and KVM. The
//! method is described in `docs/vm.md`.

mod backends;
mod devices;
mod late;
mod load;
mod pauses;
mod reading;
mod transmit;

use crate::kernel::{Kernel, Meter, clocks_now, clocks_since};
use crate::stamps::{Candidates, Stamps, Upper, uppers};
use crate::{Instrument, InstrumentError};
use libbpf_rs::skel::Skel;
use load::{Loaded, PROBES};
use nearpath_host::{Root, vms};
use nearpath_model::clock::ClockReading;
use nearpath_model::vm::{VM_MEASUREMENT_SCHEMA, VmMeasurement, VmSpanKind};
use nearpath_model::{Host, NicStamps, StageListing, Vm};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Packets that take longer into a virtual machine are late on any host (`LATE_NS` of the checks).
pub const LATE_INTO_VM: Duration = Duration::from_millis(1);

/// The instrument.
pub struct VmPackets<'a> {
    root: &'a Root,
    /// Names of interfaces by index.
    taps: BTreeMap<u32, String>,
    /// Upper devices of NICs, through which packets come.
    uppers: Vec<Upper>,
    cpus: usize,
    /// What is measured besides the packets into virtual machines.
    wanted: load::Wanted,
    /// Whether paths begin at NICs that timestamp.
    from_nics: bool,
    btf_file: Option<PathBuf>,
    session: Option<Session>,
    /// The previous session, whose programs are still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`.
struct Session {
    meter: Meter,
    loaded: Loaded,
    /// Clocks of the NICs that timestamp; `None` without one.
    stamps: Option<Stamps>,
    vms: Vec<Vm>,
    /// Virtual machines that were still unknown when `vms` was read last.
    strangers: usize,
    began: Instant,
    /// The clocks then, if late packets are explained.
    clocks: Option<ClockReading>,
}

impl<'a> VmPackets<'a> {
    /// Creates the instrument; nothing is loaded yet. `btf_file` has the types of a kernel without BTF.
    pub fn new(root: &'a Root, host: &Host, btf_file: Option<PathBuf>) -> Self {
        let taps = host.nics.iter().map(|nic| (nic.ifindex.0, nic.name.clone())).collect();
        let highest = host.topology.possible.iter().last().map_or(0, |cpu| cpu.0 as usize);
        let cpus = highest + 1;
        Self {
            root,
            taps,
            uppers: uppers(&host.nics),
            cpus,
            wanted: load::Wanted::default(),
            from_nics: false,
            btf_file,
            session: None,
            ended: None,
        }
    }

    /// Begins the path of packets at NICs that timestamp them.
    #[must_use]
    pub fn from_nics(mut self) -> Self {
        self.from_nics = true;
        self
    }

    /// Measures the transmit direction as well: it costs two more programs for each packet of the host.
    #[must_use]
    pub fn with_transmit(mut self, transmit: bool) -> Self {
        self.wanted.transmit = transmit;
        self
    }

    /// Explains packets that take at least this long into the guest: it costs a program for each switch of tasks and
    /// each wake-up.
    #[must_use]
    pub fn explaining(mut self, slow: Option<Duration>) -> Self {
        let ns = slow.map(|slow| u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX));
        self.wanted.slow_ns = ns.and_then(NonZeroU64::new);
        self
    }

    /// Forgets what was counted, and from now on follows only the probes of a session of a benchmark with these numbers
    /// (`crates/trial/src/latency/message.rs`); `None`: no packets. What is under way counts no more.
    ///
    /// # Errors
    /// It has not been started.
    pub fn follow_probes(
        &mut self,
        probes: Option<(u64, Range<u64>)>,
    ) -> Result<(), InstrumentError> {
        let session = self.session.as_mut().ok_or(InstrumentError::NotStarted)?;
        session.loaded.follow_probes(probes)?;
        session.began = Instant::now();
        Ok(())
    }

    /// Like [`Instrument::start`], for the packets alone that the instrument `stages` tracks in these slots.
    ///
    /// # Errors
    /// As [`Instrument::start`].
    pub(crate) fn start_beside(&mut self, stages: BorrowedFd<'_>) -> Result<(), InstrumentError> {
        self.start_with(Some(stages))
    }

    /// The stages are paused: no more packets are followed until they observe again.
    pub(crate) fn set_stages_paused(&mut self, paused: bool) {
        if let Some(Session { loaded, .. }) = &mut self.session {
            loaded.set_stages_paused(paused);
        }
    }

    /// The steps of the path into the guest, and how each is observed on this kernel or why it cannot be.
    ///
    /// # Errors
    /// The kernel has no BTF.
    pub fn list(btf_file: Option<&Path>) -> Result<Vec<StageListing>, InstrumentError> {
        load::list(btf_file)
    }

    fn start_with(&mut self, stages: Option<BorrowedFd<'_>>) -> Result<(), InstrumentError> {
        self.ended = None;
        let kernel = Kernel::to_load_into(PROBES, self.btf_file.as_deref())?;
        let stamping = match self.from_nics && stages.is_none() {
            true => Candidates::find(&[]),
            false => Candidates::default(),
        };
        let has_stamps = stamping.any_usable();
        let mut loaded = load::load(&kernel, self.cpus, self.wanted, stages, has_stamps)?;
        let stamps = stamping.watch(
            &loaded.skeleton.maps.nics,
            &loaded.skeleton.maps.nic_clocks,
            &self.uppers,
        )?;
        let mut meter = Meter::new(loaded.skeleton.object());
        if stages.is_some() {
            // As the cost of the stages does, whose limit is common.
            meter.count_dispatch(loaded.skeleton.object());
        }
        let vms = vms::read(self.root).vms;
        loaded.set_active(true);
        let clocks = self.wanted.slow_ns.and_then(|_| clocks_now());
        let began = Instant::now();
        self.session = Some(Session { meter, loaded, stamps, vms, strangers: 0, began, clocks });
        Ok(())
    }

    fn measurement(&self, session: &Session) -> VmMeasurement {
        let Session { meter, loaded, stamps, vms, began, .. } = session;
        let variables = loaded.skeleton.maps.bss_data.as_deref();
        let counter = |of: fn(&load::types::counters) -> u64| {
            variables.map_or(0, |variables| of(&variables.counters))
        };
        let signals_lost = variables.map_or(0, |variables| variables.signals_lost);
        let vms = reading::read(loaded, self.root, vms, &self.taps, self.wanted);
        let nic_stamps = stamps.as_ref().map(|stamps| {
            // Of those that were converted, packets without a known interrupt do not begin at the NIC.
            let spans = vms.iter().flat_map(|vm| &vm.queues);
            let spans = spans.filter_map(|queue| queue.span(VmSpanKind::NicToInterrupt));
            let used = spans.map(|span| span.count).sum();
            NicStamps { used, ..stamps.result(&reading::stamps(loaded)) }
        });
        VmMeasurement {
            schema: VM_MEASUREMENT_SCHEMA,
            duration_s: began.elapsed().as_secs_f64(),
            vms,
            started: counter(|c| c.started),
            collided: counter(|c| c.collided),
            unseen: counter(|c| c.unknown),
            lost: [counter(|c| c.no_queue), counter(|c| c.no_slot), signals_lost]
                .into_iter()
                .fold(0, u64::saturating_add),
            not_available: loaded.missing.clone(),
            events_lost: meter.runs(loaded.skeleton.object()).missed,
            cost: meter.cost(),
            clocks: clocks_since(session.clocks),
            pauses_lost: pauses::lost(loaded),
            nic_stamps,
            guest: None,
        }
    }
}

/// Adds virtual machines that were started meanwhile.
fn add_new(vms: &mut Vec<Vm>, now: Vec<Vm>) {
    for vm in now {
        match vms.iter_mut().find(|known| known.pid == vm.pid) {
            Some(known) => *known = vm,
            None => vms.push(vm),
        }
    }
}

impl Instrument for VmPackets<'_> {
    type Measurement = VmMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        Kernel::to_load_into(PROBES, self.btf_file.as_deref()).map(drop)
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.start_with(None)
    }

    fn spent(&mut self) -> Duration {
        let Some(Session { meter, loaded, .. }) = &mut self.session else { return Duration::ZERO };
        meter.spent(loaded.started())
    }

    fn begin_cost_window(&mut self) {
        if let Some(Session { meter, loaded, .. }) = &mut self.session {
            let started = loaded.started();
            meter.begin(loaded.skeleton.object(), started);
        }
    }

    fn end_cost_window(&mut self) {
        if let Some(Session { meter, loaded, .. }) = &mut self.session {
            let started = loaded.started();
            meter.end(loaded.skeleton.object(), started);
        }
    }

    fn read(&mut self) -> Result<VmMeasurement, InstrumentError> {
        let mut session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        let mut measurement = self.measurement(&session);
        let strangers = |of: &VmMeasurement| of.vms.iter().filter(|vm| vm.comm.is_none()).count();
        if strangers(&measurement) > session.strangers {
            add_new(&mut session.vms, vms::read(self.root).vms);
            measurement = self.measurement(&session);
            session.strangers = strangers(&measurement);
        }
        self.session = Some(session);
        Ok(measurement)
    }

    fn stop(&mut self) -> Result<VmMeasurement, InstrumentError> {
        self.end_cost_window();
        let mut session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        session.loaded.set_active(false);
        add_new(&mut session.vms, vms::read(self.root).vms);
        let measurement = self.measurement(&session);
        self.ended = Some(session);
        Ok(measurement)
    }
}
