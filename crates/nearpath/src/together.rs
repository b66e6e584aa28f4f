//! The instruments of `diagnose`, which all measure over the same time.
//!
//! Input: those requested. Output: the measurement of each, or why there is none. An instrument that cannot run does not
//! stop the others.

use crate::evidence::Measured;
use crate::failure::say;
use crate::tcp_connections::TcpConnections;
use nearpath_instruments::accepts::Accepts;
use nearpath_instruments::answers::Answers;
use nearpath_instruments::drops::Drops;
use nearpath_instruments::locality::PacketLocality;
use nearpath_instruments::memory::Memory;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::vm::VmPackets;
use nearpath_instruments::workers::Workers;
use nearpath_instruments::{Instrument, InstrumentError};
use std::time::Duration;

/// The instruments of a diagnosis, run as one.
pub struct Together<'a> {
    stages: AttachAttempt<Stages>,
    drops: AttachAttempt<Drops<'a>>,
    locality: AttachAttempt<PacketLocality>,
    accepts: AttachAttempt<Accepts<'a>>,
    answers: AttachAttempt<Answers>,
    tcp: AttachAttempt<TcpConnections>,
    memory: AttachAttempt<Memory<'a>>,
    workers: AttachAttempt<Workers<'a>>,
    vm: AttachAttempt<VmPackets<'a>>,
    /// Whether connections were read: then their processes are known, and late readers are recognized.
    knows_processes: bool,
    /// A closer measurement of stages follows: the others keep running when stages stop.
    is_first_look: bool,
}

impl<'a> Together<'a> {
    /// Creates those requested.
    pub fn new(
        stages: Option<Stages>,
        locality: Option<PacketLocality>,
        accepts: Option<Accepts<'a>>,
        tcp: Option<TcpConnections>,
        memory: Option<Memory<'a>>,
        workers: Option<Workers<'a>>,
        vm: Option<VmPackets<'a>>,
    ) -> Self {
        Self {
            stages: AttachAttempt::new(stages),
            drops: AttachAttempt::new(None),
            locality: AttachAttempt::new(locality),
            accepts: AttachAttempt::new(accepts),
            answers: AttachAttempt::new(None),
            tcp: AttachAttempt::new(tcp),
            memory: AttachAttempt::new(memory),
            workers: AttachAttempt::new(workers),
            vm: AttachAttempt::new(vm),
            knows_processes: false,
            is_first_look: false,
        }
    }

    /// Counts drops, and observes answers, as well.
    #[must_use]
    pub fn with(self, drops: Option<Drops<'a>>, answers: Option<Answers>) -> Self {
        let (drops, answers) = (AttachAttempt::new(drops), AttachAttempt::new(answers));
        Self { drops, answers, ..self }
    }

    /// Makes the next measurement the first of two; only stages stop after it ([`Together::look_closer`]).
    pub fn look_first(&mut self) {
        self.is_first_look = true;
        self.stages.with(Stages::look_first);
    }

    /// Observes these stages from the next measurement on, if stages could be observed at all; the others are
    /// still running.
    pub fn look_closer(&mut self, options: Options) {
        self.is_first_look = false;
        self.stages.with(|stages| stages.look_again(options));
        self.stages.started = self.stages.refused.is_some();
    }

    fn read_others(&mut self) -> Measured {
        Measured {
            stages: None,
            other_look: None,
            drops: self.drops.take(Instrument::read),
            locality: self.locality.take(Instrument::read),
            accepts: self.accepts.take(Instrument::read),
            answers: self.answers.take(Instrument::read),
            tcp: self.tcp.take(Instrument::read),
            // Complete only at the end: reading it walks page tables.
            memory: None,
            // Reading them asks their processes, and interrupts each worker.
            workers: None,
            vm: None,
            txtime: None,
        }
    }

    /// Reports at the start what is not measured; the measurement takes its full time anyway.
    fn report_refused(&self) {
        let refused = [
            &self.stages.refused,
            &self.drops.refused,
            &self.locality.refused,
            &self.accepts.refused,
            &self.answers.refused,
            &self.tcp.refused,
            &self.memory.refused,
            &self.workers.refused,
            &self.vm.refused,
        ];
        let mut said: Vec<&InstrumentError> = Vec::new();
        for error in refused.into_iter().flatten() {
            if !said.contains(&error) {
                said.push(error);
            }
        }
        let no_packets = !(self.stages.runs() || self.locality.runs() || self.accepts.runs());
        let instead = match (no_packets, self.tcp.runs()) {
            (true, true) => "; using TCP connections and kernel counters only",
            (true, false) => "; using kernel counters only",
            (false, _) => "",
        };
        for error in said {
            say(&format!("cannot measure: {error}{instead}"));
        }
    }
}

/// An instrument that may not be requested, or that may be refused by the kernel.
struct AttachAttempt<I> {
    instrument: Option<I>,
    refused: Option<InstrumentError>,
    started: bool,
}

impl<I: Instrument> AttachAttempt<I> {
    fn new(instrument: Option<I>) -> Self {
        Self { instrument, refused: None, started: false }
    }

    fn runs(&self) -> bool {
        self.instrument.is_some() && self.refused.is_none()
    }

    /// Starts it, unless it is running or was refused earlier.
    fn start(&mut self) {
        if !self.started {
            self.started = true;
            self.refused = self.instrument.as_mut().and_then(|i| i.start().err());
        }
    }

    /// Calls `act` if it is running.
    fn with(&mut self, act: impl FnOnce(&mut I)) {
        if let (Some(instrument), None) = (&mut self.instrument, &self.refused) {
            act(instrument);
        }
    }

    fn take(
        &mut self,
        take: impl FnOnce(&mut I) -> Result<I::Measurement, InstrumentError>,
    ) -> Option<Result<I::Measurement, String>> {
        let instrument = self.instrument.as_mut()?;
        let taken = self.refused.clone().map_or_else(|| take(instrument), Err);
        Some(taken.map_err(|error| error.to_string()))
    }
}

impl Instrument for Together<'_> {
    type Measurement = Measured;

    fn available(&self) -> Result<(), InstrumentError> {
        Ok(())
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        let is_second = self.accepts.started;
        // The slowest to load comes last, so that the others start little earlier.
        self.tcp.start();
        self.memory.start();
        self.workers.start();
        self.vm.start();
        self.accepts.start();
        self.answers.start();
        self.drops.start();
        self.locality.start();
        self.stages.start();
        if !is_second {
            self.report_refused();
        }
        Ok(())
    }

    fn limit(&self) -> Option<f64> {
        self.stages.instrument.as_ref().filter(|_| self.stages.runs())?.limit()
    }

    fn charge(&mut self, own: Duration) {
        self.stages.with(|stages| stages.charge(own));
    }

    fn spent(&mut self) -> Duration {
        let mut spent = Duration::ZERO;
        self.stages.with(|stages| spent = stages.spent());
        spent
    }

    fn pause(
        &mut self,
        patience: Duration,
        longest: Duration,
        should_continue: &dyn Fn(Duration) -> bool,
    ) {
        self.stages.with(|stages| stages.pause(patience, longest, should_continue));
    }

    fn resume(&mut self) {
        self.stages.with(Instrument::resume);
    }

    fn begin_cost_window(&mut self) {
        self.stages.with(Instrument::begin_cost_window);
        self.drops.with(Instrument::begin_cost_window);
        self.locality.with(Instrument::begin_cost_window);
        self.accepts.with(Instrument::begin_cost_window);
        self.answers.with(Instrument::begin_cost_window);
        self.tcp.with(Instrument::begin_cost_window);
        self.memory.with(Instrument::begin_cost_window);
        self.workers.with(Instrument::begin_cost_window);
        self.vm.with(Instrument::begin_cost_window);
    }

    fn end_cost_window(&mut self) {
        self.stages.with(Instrument::end_cost_window);
        self.drops.with(Instrument::end_cost_window);
        self.locality.with(Instrument::end_cost_window);
        self.accepts.with(Instrument::end_cost_window);
        self.answers.with(Instrument::end_cost_window);
        self.tcp.with(Instrument::end_cost_window);
        self.memory.with(Instrument::end_cost_window);
        self.workers.with(Instrument::end_cost_window);
        self.vm.with(Instrument::end_cost_window);
    }

    fn read(&mut self) -> Result<Measured, InstrumentError> {
        // Connections are expensive to list, and nothing shows them meanwhile.
        let tcp = if std::mem::replace(&mut self.knows_processes, true) {
            None
        } else {
            self.tcp.take(Instrument::read)
        };
        Ok(Measured {
            stages: self.stages.take(Instrument::read),
            drops: self.drops.take(Instrument::read),
            locality: self.locality.take(Instrument::read),
            accepts: self.accepts.take(Instrument::read),
            answers: self.answers.take(Instrument::read),
            tcp,
            memory: None,
            workers: None,
            vm: None,
            txtime: None,
            other_look: None,
        })
    }

    fn stop(&mut self) -> Result<Measured, InstrumentError> {
        if self.is_first_look {
            let stages = self.stages.take(Instrument::stop);
            return Ok(Measured { stages, ..self.read_others() });
        }
        Ok(Measured {
            stages: self.stages.take(Instrument::stop),
            drops: self.drops.take(Instrument::stop),
            locality: self.locality.take(Instrument::stop),
            accepts: self.accepts.take(Instrument::stop),
            answers: self.answers.take(Instrument::stop),
            tcp: self.tcp.take(Instrument::stop),
            memory: self.memory.take(Instrument::stop),
            workers: self.workers.take(Instrument::stop),
            vm: self.vm.take(Instrument::stop),
            txtime: None,
            other_look: None,
        })
    }
}
