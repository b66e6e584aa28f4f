//! Causes in pictures: their names and colours, and a chart of their times.

use super::draw::{canvas, text, xml};
use crate::text::latency;
use nearpath_model::{Culprit, Share, ShareKind};
use svg::node::element::{Group, Rectangle, Title};

const MARGIN: f32 = 16.0;
const FONT: f32 = 13.0;
const ROW: f32 = FONT * 1.8;
const AXIS: f32 = 420.0;
/// Rows of the chart; the largest.
const ROWS_MAX: usize = 12;

/// A colour for a cause, safe for red-green colour blindness (Okabe and Ito), alike for alike causes.
pub(super) fn colour(kind: ShareKind) -> &'static str {
    match kind {
        ShareKind::Own => "#9aa5b1",
        ShareKind::Irq | ShareKind::Softirq | ShareKind::NetRxAhead => "#0072b2",
        ShareKind::Task | ShareKind::Runqueue | ShareKind::Migration => "#d55e00",
        ShareKind::Disabled | ShareKind::SocketLocked => "#cc79a7",
        ShareKind::Idle | ShareKind::Ipi | ShareKind::Offline => "#56b4e9",
        ShareKind::Throttled | ShareKind::Stolen => "#c00000",
        ShareKind::Asleep | ShareKind::SocketFull | ShareKind::Upcall | ShareKind::Held => {
            "#e69f00"
        }
        ShareKind::Qdisc | ShareKind::DeviceQueue | ShareKind::Nic | ShareKind::TcpGap => "#009e73",
        ShareKind::Unknown | ShareKind::RemoteMemoryBound => "#606060",
    }
}

/// What a share was, in a few words: `runqueue: stress-ng`.
pub(super) fn named(share: &Share) -> String {
    let kind = match serde_json::to_value(share.share) {
        Ok(serde_json::Value::String(name)) => name.replace('_', " "),
        _ => "unknown".to_owned(),
    };
    match share.who.as_ref().and_then(culprit) {
        Some(who) => format!("{kind}: {who}"),
        None => kind,
    }
}

fn culprit(who: &Culprit) -> Option<String> {
    let irq = who.irq.map(|irq| format!("irq {irq}"));
    let task = who.comm.clone().map(|comm| match who.pid {
        Some(pid) => format!("{comm} [{pid}]"),
        None => comm,
    });
    let blocked = who.on.as_ref().map(|on| format!("blocked in {on}"));
    let first = task.or(irq).or(who.vector.clone()).or(who.qdisc.clone());
    match (first, blocked) {
        (Some(first), Some(blocked)) => Some(format!("{first}, {blocked}")),
        (first, blocked) => first.or(blocked),
    }
}

/// Draws what packets waited for: the largest times, as bars from zero.
pub fn causes(shares: &[Share]) -> String {
    let mut rows: Vec<&Share> = shares.iter().filter(|s| s.share.is_time() && s.ns > 0).collect();
    rows.sort_by_key(|share| std::cmp::Reverse(share.ns));
    let all: u64 = rows.iter().fold(0, |sum, share| sum.saturating_add(share.ns));
    rows.truncate(ROWS_MAX);
    let most = rows.first().map_or(1, |share| share.ns.max(1));
    let names: Vec<String> = rows.iter().map(|share| named(share)).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = longest as f32 * FONT * 0.6 + MARGIN;
    let mut drawn = Group::new();
    for (row, (share, name)) in rows.iter().zip(&names).enumerate() {
        let y = row as f32 * ROW;
        let width = share.ns as f32 / most as f32 * AXIS;
        let percent = share.ns as f64 / all.max(1) as f64 * 100.0;
        let figures = format!("{}, {percent:.0}%", latency(share.ns));
        let bar = Rectangle::new()
            .set("x", 0)
            .set("y", format!("{:.1}", y + FONT * 0.2))
            .set("width", format!("{:.1}", width.max(1.0)))
            .set("height", format!("{:.1}", FONT * 0.95))
            .set("fill", colour(share.share));
        drawn = drawn
            .add(Group::new().add(Title::new(xml(&format!("{name}: {figures}")))).add(bar))
            .add(text(name, -left, y + FONT, FONT))
            .add(text(&figures, width + 6.0, y + FONT, FONT * 0.9));
    }
    let place = format!("translate({:.1},{MARGIN})", MARGIN + left);
    canvas(left + AXIS + 130.0 + 2.0 * MARGIN, rows.len() as f32 * ROW + 2.0 * MARGIN)
        .add(drawn.set("transform", place))
        .to_string()
        + "\n"
}
