//! The instrument `stages`, and beside it the instrument `vm` for the packets that reach the tap of a virtual machine:
//! their way goes on into the guest.
//!
//! Both read the same slots of packets, so that the second follows exactly those that the first tracks at the tap.

use crate::stages::Stages;
use crate::vm::VmPackets;
use crate::{Instrument, InstrumentError};
use nearpath_model::Measurement;
use nearpath_model::memory::NotAvailable;
use nearpath_model::vm::{VM_MEASUREMENT_SCHEMA, VmMeasurement};
use std::time::Duration;

/// The instrument.
pub struct StagesIntoGuests<'a> {
    stages: Stages,
    guests: Option<VmPackets<'a>>,
    /// Why nothing is observed behind the taps.
    refused: Option<String>,
}

impl<'a> StagesIntoGuests<'a> {
    /// Creates the instrument. The options of `stages` must have `into_guests` set if there are `guests`.
    pub fn new(stages: Stages, guests: Option<VmPackets<'a>>) -> Self {
        Self { stages, guests, refused: None }
    }

    fn with_guests(
        &mut self,
        measurement: Measurement,
        read: impl FnOnce(&mut VmPackets<'a>) -> Result<VmMeasurement, InstrumentError>,
    ) -> Result<Measurement, InstrumentError> {
        let into_guests = match (&mut self.guests, &self.refused) {
            (None, _) => None,
            (Some(_), Some(reason)) => Some(VmMeasurement {
                schema: VM_MEASUREMENT_SCHEMA,
                duration_s: measurement.duration_s,
                not_available: vec![NotAvailable {
                    what: "the path into virtual machines".to_owned(),
                    reason: reason.clone(),
                }],
                ..VmMeasurement::default()
            }),
            (Some(guests), None) => Some(read(guests)?),
        };
        Ok(Measurement { into_guests, ..measurement })
    }

    /// The instrument behind the taps, if it observes.
    fn observing(&mut self) -> Option<&mut VmPackets<'a>> {
        self.guests.as_mut().filter(|_| self.refused.is_none())
    }
}

impl Instrument for StagesIntoGuests<'_> {
    type Measurement = Measurement;

    fn available(&self) -> Result<(), InstrumentError> {
        self.stages.available()
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.stages.attach()?;
        self.refused = None;
        if let (Some(guests), Some(slots)) = (&mut self.guests, self.stages.slots()) {
            self.refused = guests.start_beside(slots).err().map(|error| error.to_string());
        }
        self.stages.begin();
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        self.stages.begin_cost_window();
        if let Some(guests) = self.observing() {
            guests.begin_cost_window();
        }
    }

    fn end_cost_window(&mut self) {
        self.stages.end_cost_window();
        if let Some(guests) = self.observing() {
            guests.end_cost_window();
        }
    }

    fn read(&mut self) -> Result<Measurement, InstrumentError> {
        let measurement = self.stages.read()?;
        self.with_guests(measurement, Instrument::read)
    }

    fn stop(&mut self) -> Result<Measurement, InstrumentError> {
        let measurement = self.stages.stop()?;
        self.with_guests(measurement, Instrument::stop)
    }

    fn slice(&self, interval: Duration) -> Duration {
        self.stages.slice(interval)
    }

    /// The programs behind the taps stay attached: there are few events of them without packets.
    fn pause(
        &mut self,
        patience: Duration,
        longest: Duration,
        should_continue: &dyn Fn(Duration) -> bool,
    ) {
        if let Some(guests) = self.observing() {
            guests.set_stages_paused(true);
        }
        self.stages.pause(patience, longest, should_continue);
    }

    fn resume(&mut self) {
        self.stages.resume();
        if let Some(guests) = self.observing() {
            guests.set_stages_paused(false);
        }
    }

    fn limit(&self) -> Option<f64> {
        self.stages.limit()
    }

    fn charge(&mut self, own: Duration) {
        self.stages.charge(own);
    }

    fn spent(&mut self) -> Duration {
        let stages = self.stages.spent();
        stages + self.observing().map_or(Duration::ZERO, Instrument::spent)
    }
}
