//! What is observed: the options of the instrument, and which probes they need.

use super::table::detail_of;
use super::{reading, zoom};
use crate::Grouping;
use crate::filter::Filter;
use crate::kernel::Probe;
use crate::stamps::NIC_RX;
use nearpath_model::Detail;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// Options of the instrument.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which packets are observed.
    pub filter: Filter,
    /// How much of the path is observed.
    pub detail: Detail,
    /// In addition to the stages of the detail, those before RPS selects a CPU.
    pub arrivals: bool,
    /// Stages to observe, by name, regardless of the detail; `None`: those of the detail.
    pub stages: Option<Vec<String>>,
    /// Stages to skip, by name.
    pub without: Vec<String>,
    /// Attach empty programs, to measure the cost of attaching alone, for benchmarks.
    pub empty: bool,
    /// Record a history of each CPU, and explain slow packets by it.
    pub budgets: bool,
    /// Latency above which a span is slow; `None`: the slowest 1 in 10,000 of
    /// each span, and of those above 1 ms the slowest 20 per second.
    pub slow: Option<Duration>,
    /// Thresholds for which the number of slower paths is counted: three at most. If empty, 100 µs, 1ms and
    /// 10ms.
    pub above: Vec<Duration>,
    /// Number of slow packets kept individually.
    pub outliers: usize,
    /// Group the result.
    pub groups: Option<Grouping>,
    /// Observe only one part in this many of each interval (at least 10ms of it).
    pub duty: Option<NonZeroU32>,
    /// Limit on overhead as a share of one CPU; without it, and with a duty, there is no limit.
    pub limit: Option<f64>,
    /// Watch every packet, besides those whose stages are observed.
    pub watch: bool,
    /// Record what each CPU and reader does for that, so that late packets are explained.
    pub causes: bool,
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
    /// Keep what [`StagesIntoGuests`](crate::stages_into_guests::StagesIntoGuests) needs to follow packets further.
    pub into_guests: bool,
}

/// What the watch does without, as it happens for each packet: when a softirq was raised, which matters for its stage
/// only, and calls of other CPUs, which take a microsecond.
const NOT_FOR_WATCH: [&str; 3] =
    ["softirq_raise", "call_function_single_entry", "call_function_single_exit"];

impl Options {
    /// Whether a stage is requested.
    pub fn observes(&self, stage: &str) -> bool {
        let among = |names: &[String]| names.iter().any(|name| name == stage);
        let wanted = match &self.stages {
            Some(stages) => among(stages),
            None => {
                let arrives = self.arrivals && zoom::ARRIVALS.contains(&stage);
                arrives || detail_of(stage).is_some_and(|detail| detail <= self.detail)
            }
        };
        wanted && !among(&self.without)
    }

    /// Whether stages are observed at all.
    pub(super) fn follows(&self) -> bool {
        self.stages.as_ref().is_none_or(|stages| !stages.is_empty())
    }

    /// From how many nanoseconds on a whole packet is late.
    pub(super) fn late_ns(&self) -> u64 {
        let asked = |slow: Duration| u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX);
        self.slow.map_or(reading::LATE_NS as u64, asked)
    }

    /// Whether everything that a probe observes is excluded by name.
    pub(super) fn is_without(&self, probe: &Probe) -> bool {
        let names = |stage: &str| self.without.iter().any(|name| name == stage);
        stages_of(probe).next().is_some() && stages_of(probe).all(names)
    }

    /// Whether a probe is attached, if the kernel has its attach point.
    pub(super) fn attaches(&self, probe: &Probe) -> bool {
        if probe.watch {
            return !self.follows();
        }
        let mut of_stages = stages_of(probe).chain(probe.keeps_for.iter().copied());
        let is_spared = !self.follows() && NOT_FOR_WATCH.contains(&probe.program);
        (self.budgets && probe.history && !is_spared && !self.is_without(probe))
            || of_stages.any(|stage| self.observes(stage))
    }
}

/// The stages for which a probe is attached: the NIC's timestamp belongs to a packet's first stage.
fn stages_of(probe: &Probe) -> impl Iterator<Item = &'static str> {
    probe.stages.iter().copied().filter(|&stage| stage != NIC_RX)
}
