//! The evidence of findings: what each instrument measured since the last diagnosis.

use crate::collect::stages_between;
use nearpath_diagnose::Evidence;
use nearpath_model::Measurement;
use nearpath_model::accepts::AcceptMeasurement;
use nearpath_model::locality::{Fates, Locality};
use nearpath_model::memory::MemoryMeasurement;
use nearpath_model::tcp::TcpMeasurement;
use nearpath_model::vm::VmMeasurement;

/// The difference of two readings.
pub trait Since {
    /// What was measured since an earlier reading.
    fn since_reading(&self, earlier: &Self) -> Self;
}

impl Since for Measurement {
    fn since_reading(&self, earlier: &Self) -> Self {
        stages_between(self, earlier)
    }
}

impl Since for AcceptMeasurement {
    fn since_reading(&self, earlier: &Self) -> Self {
        self.since(earlier)
    }
}

impl Since for TcpMeasurement {
    fn since_reading(&self, earlier: &Self) -> Self {
        self.since(earlier)
    }
}

impl Since for VmMeasurement {
    fn since_reading(&self, earlier: &Self) -> Self {
        self.since(earlier)
    }
}

impl Since for Locality {
    fn since_reading(&self, earlier: &Self) -> Self {
        let (new, old) = (&self.packets, &earlier.packets);
        let less = |now: u64, before: u64| now.saturating_sub(before);
        let mut places = self.places.clone();
        for place in &mut places {
            let is = |p: &&nearpath_model::locality::CpuPairCount| {
                (p.direction, p.place.from_cpu, p.place.to_cpu)
                    == (place.direction, place.place.from_cpu, place.place.to_cpu)
            };
            let was = earlier.places.iter().find(is).map_or(0, |old| old.place.count);
            place.place.count = less(place.place.count, was);
        }
        places.retain(|place| place.place.count > 0);
        Self {
            duration_s: self.duration_s - earlier.duration_s,
            rx: self.rx.since(&earlier.rx),
            tx: self.tx.since(&earlier.tx),
            packets: Fates {
                started: less(new.started, old.started),
                completed: less(new.completed, old.completed),
                dropped: less(new.dropped, old.dropped),
                abandoned: less(new.abandoned, old.abandoned),
                collided: less(new.collided, old.collided),
                not_allocated: less(new.not_allocated, old.not_allocated),
                returned: less(new.returned, old.returned),
                sampled_out: less(new.sampled_out, old.sampled_out),
            },
            events_lost: less(self.events_lost, earlier.events_lost),
            places,
            groups: Vec::new(),
            ..self.clone()
        }
    }
}

/// The readings of an instrument that matter.
#[derive(Debug)]
pub struct Readings<M> {
    /// At the last diagnosis.
    base: Option<M>,
    last: Option<M>,
}

impl<M> Default for Readings<M> {
    fn default() -> Self {
        Self { base: None, last: None }
    }
}

impl<M: Since + Clone> Readings<M> {
    /// Adds a reading, which is the first after a start if it has no earlier one.
    pub fn add(&mut self, now: &M, is_first: bool) {
        if is_first {
            self.base = None;
        }
        self.last = Some(now.clone());
    }

    /// What was measured since the last time this was called; `None` if there was no reading since.
    pub fn turn(&mut self) -> Option<M> {
        let last = self.last.take()?;
        let window = match &self.base {
            Some(base) => last.since_reading(base),
            None => last.clone(),
        };
        self.base = Some(last);
        Some(window)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Of `stages`.
    pub stages: Readings<Measurement>,
    /// Of `locality`.
    pub locality: Readings<Locality>,
    /// Of `accepts`.
    pub accepts: Readings<AcceptMeasurement>,
    /// Of `tcp`.
    pub tcp: Readings<TcpMeasurement>,
    /// Of `vms`.
    pub vms: Readings<VmMeasurement>,
    /// The last picture of memory.
    pub memory: Option<MemoryMeasurement>,
}

/// What was measured since the last diagnosis.
#[derive(Debug, Default)]
pub struct Window {
    stages: Option<Measurement>,
    locality: Option<Locality>,
    accepts: Option<AcceptMeasurement>,
    tcp: Option<TcpMeasurement>,
    vms: Option<VmMeasurement>,
    memory: Option<MemoryMeasurement>,
}

impl Gathered {
    /// What was measured since the last time.
    pub fn turn(&mut self) -> Window {
        Window {
            stages: self.stages.turn(),
            locality: self.locality.turn(),
            accepts: self.accepts.turn(),
            tcp: self.tcp.turn(),
            vms: self.vms.turn(),
            memory: self.memory.clone(),
        }
    }
}

impl Window {
    /// As the checks take it.
    pub fn evidence(&self) -> Evidence<'_> {
        Evidence {
            stages: self.stages.as_ref(),
            // Those that were followed: its own reading of drops is of the whole machine.
            drops: None,
            locality: self.locality.as_ref(),
            accepts: self.accepts.as_ref(),
            // The monitor does not watch answers.
            answers: None,
            tcp: self.tcp.as_ref(),
            memory: self.memory.as_ref(),
            // The monitor does not watch threads that poll.
            workers: None,
            vm: self.vms.as_ref().filter(|vms| are_explained(vms)),
            txtime: None,
        }
    }
}

/// Whether it was observed why packets are late: only while many are.
fn are_explained(vms: &VmMeasurement) -> bool {
    vms.vms.iter().any(|vm| {
        vm.queues.iter().any(|one| one.late.is_some())
            || vm.device_interrupts.iter().any(|one| one.late.is_some())
            || vm.backend_interrupts.iter().any(|one| one.late.is_some())
    })
}
