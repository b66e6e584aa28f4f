//! CPUs as a heat map: a cell for each CPU that processed packets, a row or more for each node.

use super::bars::rate;
use super::style::Palette;
use nearpath_model::NodeId;
use nearpath_model::frame::{CpuActivity, Frame};
use ratatui::text::{Line, Span};
use std::collections::BTreeMap;

/// Steps from cold to hot.
const STEPS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Room for the name of the row.
const NAME: usize = 14;

/// The step of a rate compared with the highest one.
fn step(of: f64, most: f64) -> usize {
    if of <= 0.0 || most <= 0.0 { 0 } else { ((of / most * 8.0).ceil() as usize).clamp(1, 8) }
}

/// The map, of so many lines at most; the last line says what its colours mean.
pub(super) fn lines(
    frame: &Frame,
    palette: Palette,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    let most = frame.cpus.iter().map(|cpu| cpu.processed).fold(0.0, f64::max);
    let Some(hottest) = frame.cpus.iter().max_by(|a, b| a.processed.total_cmp(&b.processed)) else {
        return Vec::new();
    };
    let mut nodes: BTreeMap<Option<NodeId>, Vec<&CpuActivity>> = BTreeMap::new();
    frame.cpus.iter().for_each(|cpu| nodes.entry(cpu.node).or_default().push(cpu));
    let mut lines = Vec::new();
    for (node, cpus) in nodes {
        for (part, cpus) in cpus.chunks(width.saturating_sub(NAME).max(8)).enumerate() {
            let name = match (node, part) {
                (Some(node), 0) => format!("node {node}"),
                (None, 0) => "CPUs".to_owned(),
                _ => String::new(),
            };
            let first = cpus.first().map_or(0, |cpu| cpu.cpu.0);
            let mut spans = vec![Span::raw(format!("{name:<8}{first:>4}  "))];
            for cpu in cpus {
                let step = step(cpu.processed, most);
                let shape = STEPS.get(step).copied().unwrap_or(' ');
                spans.push(Span::styled(shape.to_string(), palette.heat(step)));
            }
            lines.push(Line::from(spans));
        }
    }
    lines.truncate(height.saturating_sub(1));
    let total: f64 = frame.cpus.iter().map(|cpu| cpu.processed).sum();
    let share = if total > 0.0 { hottest.processed / total } else { 0.0 };
    lines.push(Line::styled(
        format!(
            "hottest: CPU {}, {} packets/s, {} of all on {} CPUs",
            hottest.cpu,
            rate(hottest.processed),
            nearpath_model::units::percent(share),
            frame.cpus.len()
        ),
        palette.faint(),
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_with_packets_is_warmer_than_one_without() {
        assert_eq!(
            [step(0.0, 5.0), step(0.001, 5.0), step(5.0, 5.0), step(1.0, 0.0)],
            [0, 1, 8, 0]
        );
    }
}
