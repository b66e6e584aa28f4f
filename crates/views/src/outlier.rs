//! A slow packet step by step, for pictures and the terminal.

use nearpath_model::{Outlier, Passed};

/// Steps that are drawn; a path has fewer.
const STAGES_MAX: usize = 64;

/// A span of the packet: its ends, and its times from the first stage.
pub(crate) struct Bar {
    pub name: String,
    pub from_ns: u64,
    pub to_ns: u64,
    pub is_slow: bool,
}

/// The steps; the slow span alone if its path was not seen.
pub(crate) fn bars(outlier: &Outlier) -> Vec<Bar> {
    let slow = || Bar {
        name: format!("{} → {}", outlier.from, outlier.to),
        from_ns: 0,
        to_ns: outlier.span_ns,
        is_slow: true,
    };
    let Some(first) = outlier.path.first().map(|stage| stage.at_ns) else { return vec![slow()] };
    let bar = |pair: &[Passed]| {
        let [before, stage] = pair else { return None };
        let is_slow = outlier.ends_at(before, stage);
        let moved = if before.cpu == stage.cpu {
            format!("CPU {}", stage.cpu)
        } else {
            format!("CPU {} → {}", before.cpu, stage.cpu)
        };
        Some(Bar {
            name: format!("{} → {}, {moved}", before.stage, stage.stage),
            from_ns: before.at_ns.saturating_sub(first),
            to_ns: stage.at_ns.saturating_sub(first).max(before.at_ns.saturating_sub(first)),
            is_slow,
        })
    };
    let bars: Vec<Bar> = outlier.path.windows(2).take(STAGES_MAX).filter_map(bar).collect();
    if bars.iter().any(|bar| bar.is_slow) { bars } else { vec![slow()] }
}
