//! What was measured of scheduled transmission (SO_TXTIME): by `bench latency --txtime`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form of [`ScheduledTransmission`].
pub const SCHEDULED_TRANSMISSION_SCHEMA: u32 = 1;

/// Probes that were handed to the kernel with the time at which each is to leave.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduledTransmission {
    /// Version of this form.
    pub schema: u32,
    /// The interface that they left by; `None` if it is unknown.
    pub device: Option<String>,
    /// Their priority (SO_PRIORITY), which selects the traffic class.
    pub priority: u32,
    /// How long before its time each was handed over, in nanoseconds.
    pub lead_ns: u64,
    /// Interval between the probes of a flow, in nanoseconds; `None` if it is not constant.
    pub period_ns: Option<u64>,
    /// The time of the first probe, in nanoseconds of CLOCK_TAI.
    pub first_ns: Option<u64>,
    /// Seconds that CLOCK_TAI is ahead of the wall clock; 0: nobody has set it. `None` if it is unknown.
    pub tai_offset_s: Option<i32>,
    /// Probes handed over.
    pub sent: u64,
    /// Those that a qdisc reported as dropped, with the code `SO_EE_CODE_TXTIME_INVALID_PARAM`: their time had passed
    /// when they were handed over, or the qdisc has another clock or mode.
    pub dropped_invalid: u64,
    /// With `SO_EE_CODE_TXTIME_MISSED`: their time passed while they waited.
    pub dropped_missed: u64,
    /// With another code.
    pub dropped_other: u64,
    /// How late the sender woke up to hand over a probe.
    pub wake_up: Deviation,
    /// When the driver took a probe, after its time; negative: before.
    pub departure: Option<Deviation>,
    /// When the NIC sent a probe by its own clock, after its time; `None` without time stamps of the NIC.
    pub departure_hardware: Option<Deviation>,
    /// When the reflector's kernel received a probe, after its time, beyond the earliest of them: the clocks of two hosts
    /// differ by an unknown constant.
    pub arrival: Option<Deviation>,
    /// When the answer to a probe was read, after the probe's time.
    pub answer: Option<Deviation>,
}

/// A distribution of differences, which may be negative.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Deviation {
    /// Number of samples.
    pub count: u64,
    /// The least; `None` if empty.
    pub min_ns: Option<i64>,
    /// The mean.
    pub mean_ns: Option<f64>,
    /// The standard deviation; `None` with fewer than two samples.
    pub stddev_ns: Option<f64>,
    /// By percentile (`"99.9"`), as far as there are enough samples.
    pub percentiles: BTreeMap<String, i64>,
    /// The greatest.
    pub max_ns: Option<i64>,
}

impl ScheduledTransmission {
    /// Probes that a qdisc reported as dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped_invalid.saturating_add(self.dropped_missed).saturating_add(self.dropped_other)
    }
}
