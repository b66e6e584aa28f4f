//! What was measured beside the facts, an instrument each; all of it may be missing.

use nearpath_model::accepts::AcceptMeasurement;
use nearpath_model::answers::AnswerMeasurement;
use nearpath_model::drops::DropMeasurement;
use nearpath_model::locality::Locality;
use nearpath_model::memory::MemoryMeasurement;
use nearpath_model::tcp::TcpMeasurement;
use nearpath_model::vm::VmMeasurement;
use nearpath_model::{Measurement, ScheduledTransmission, Workers};

/// What was measured in the interval.
#[derive(Debug, Clone, Copy, Default)]
pub struct Evidence<'a> {
    /// By the instrument `stages`.
    pub stages: Option<&'a Measurement>,
    /// By the instrument `drops`.
    pub drops: Option<&'a DropMeasurement>,
    /// By the instrument `locality`.
    pub locality: Option<&'a Locality>,
    /// By the instrument `accepts`.
    pub accepts: Option<&'a AcceptMeasurement>,
    /// By the instrument `answers`.
    pub answers: Option<&'a AnswerMeasurement>,
    /// By the instrument `tcp`.
    pub tcp: Option<&'a TcpMeasurement>,
    /// By the instrument `memory`; a still picture if nothing was measured.
    pub memory: Option<&'a MemoryMeasurement>,
    /// By the instrument `workers`; a still picture if nothing was measured.
    pub workers: Option<&'a Workers>,
    /// By the instrument `vm`, with why packets were late.
    pub vm: Option<&'a VmMeasurement>,
    /// By `bench latency --txtime`.
    pub txtime: Option<&'a ScheduledTransmission>,
}

impl<'a> From<Option<&'a Measurement>> for Evidence<'a> {
    fn from(stages: Option<&'a Measurement>) -> Self {
        Self { stages, ..Self::default() }
    }
}
