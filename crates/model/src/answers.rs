//! Results of the instrument `answers`.

use crate::{EventCost, Protocol, Unknown};
use serde::{Deserialize, Serialize};

/// Version of the JSON form of [`AnswerMeasurement`].
pub const ANSWER_MEASUREMENT_SCHEMA: u32 = 1;

/// How long servers took to answer, in an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AnswerMeasurement {
    /// [`ANSWER_MEASUREMENT_SCHEMA`].
    pub schema: u32,
    /// Duration of the measurement, in seconds.
    pub duration_s: f64,
    /// How long answers were observed, in seconds: less if the overhead limit ended it.
    pub observed_s: f64,
    /// Servers that answered, those with the most answers first.
    pub servers: Vec<ServerAnswers>,
    /// Cost per run of a program: one per packet sent, per part of a receive call of TCP that copies data, and per
    /// receive call of UDP. `None` if unknown.
    pub cost: Option<EventCost>,
    /// What could not be observed, with the reason.
    pub unknown: Vec<Unknown>,
}

/// How long a server took from reading a request to sending the first packet of its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerAnswers {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The port that it listens on.
    pub port: u16,
    /// A process that has it open; `None` if unknown.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: Option<String>,
    /// Answers.
    pub answers: u64,
    /// Half of them took at most so long, in nanoseconds.
    pub p50_ns: u64,
    /// 99% of them.
    pub p99_ns: u64,
    /// The longest time.
    pub max_ns: u64,
}
