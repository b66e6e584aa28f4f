//! The panels of the dashboards, of a fleet and of a host: one row each. [`super::grafana`] and [`super::perses`] write
//! them down.

use super::Scraped;
use crate::metrics::{Id, METRICS};

/// What a panel draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draws {
    /// Lines over time.
    Lines,
    /// Areas over time, on top of each other.
    Stack,
    /// A histogram over time.
    Heatmap,
    /// The values of now.
    Table,
}

/// What the values of a panel are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of something.
    Number,
    /// Seconds, or seconds per second.
    Seconds,
    /// A share, 0 to 1.
    Share,
    /// Packets per second.
    Packets,
    /// Events per second.
    Events,
    /// Bytes.
    Bytes,
}

/// A panel.
#[derive(Debug, Clone, Copy)]
pub struct Panel {
    /// Its title.
    pub title: &'static str,
    /// What it draws.
    pub draws: Draws,
    /// What its values are.
    pub unit: Unit,
    /// Its expression; `$host` is a selector of the host.
    pub expression: fn(Scraped) -> String,
    /// The legend, with `{{label}}`.
    pub legend: &'static str,
}

pub(super) fn name(id: Id) -> &'static str {
    METRICS[id as usize].name
}

fn rate(id: Id) -> String {
    format!("rate({}{{$host}}[$__rate_interval])", name(id))
}

/// A quantile of a histogram's increase, of the series with some labels.
fn quantile_of(scraped: Scraped, q: &str, id: Id, labels: &str) -> String {
    let suffix = if scraped == Scraped::Native { "" } else { "_bucket" };
    format!("histogram_quantile({q}, rate({}{suffix}{{{labels}}}[$__rate_interval]))", name(id))
}

/// A quantile of a span's or a path's latency on the host.
fn quantile(scraped: Scraped, q: &str, id: Id) -> String {
    quantile_of(scraped, q, id, "$host")
}

/// Of received packets on the host: a percentile of their latency, where a heat map cannot be drawn.
pub(super) fn received(scraped: Scraped, q: &str) -> String {
    quantile_of(scraped, q, Id::PathLatency, "$host,direction=\"receive\"")
}

/// The panels of a fleet.
pub const FLEET: &[Panel] = &[
    Panel {
        title: "Hosts by the cost of their findings",
        draws: Draws::Table,
        unit: Unit::Seconds,
        expression: |_| format!("sort_desc(sum by (instance) ({}))", name(Id::FindingCost)),
        legend: "{{instance}}",
    },
    Panel {
        title: "Critical findings",
        draws: Draws::Table,
        unit: Unit::Number,
        expression: |_| format!("{}{{severity=\"critical\"}} == 1", name(Id::FindingActive)),
        legend: "{{instance}} {{check}} {{subject}}",
    },
    Panel {
        title: "99th percentile of received packets",
        draws: Draws::Lines,
        unit: Unit::Seconds,
        expression: |_| {
            "topk(10, nearpath:path_latency_seconds:p99{direction=\"receive\"})".to_owned()
        },
        legend: "{{instance}}",
    },
    Panel {
        title: "Virtual machines, 99th percentile of packets into them",
        draws: Draws::Lines,
        unit: Unit::Seconds,
        expression: |scraped| {
            let p99 = quantile_of(scraped, "0.99", Id::VmLatency, "span=\"whole\"");
            format!("topk(10, {p99})")
        },
        legend: "{{instance}} {{vm}}",
    },
    Panel {
        title: "Share of packets that stay on their CPU",
        draws: Draws::Lines,
        unit: Unit::Share,
        expression: |_| "bottomk(10, nearpath:locality:share{direction=\"rx\"})".to_owned(),
        legend: "{{instance}}",
    },
    Panel {
        title: "Changes that are no longer in effect",
        draws: Draws::Lines,
        unit: Unit::Number,
        expression: |_| {
            let name = name(Id::SteeringSettings);
            format!("sum by (instance) ({name}{{state=~\"drifted|lost\"}}) > 0")
        },
        legend: "{{instance}}",
    },
    Panel {
        title: "CPU time of observing",
        draws: Draws::Lines,
        unit: Unit::Share,
        expression: |_| format!("topk(10, rate({}[$__rate_interval]))", name(Id::ObservingCpu)),
        legend: "{{instance}}",
    },
];

/// The panels of a host.
pub const HOST: &[Panel] = &[
    Panel {
        title: "Latency of paths, 99th percentile",
        draws: Draws::Lines,
        unit: Unit::Seconds,
        expression: |scraped| quantile(scraped, "0.99", Id::PathLatency),
        legend: "{{direction}}",
    },
    Panel {
        title: "Longest path of the last minute",
        draws: Draws::Lines,
        unit: Unit::Seconds,
        expression: |_| format!("{}{{$host}}", name(Id::PathLatencyMax)),
        legend: "{{direction}}",
    },
    Panel {
        title: "Received packets by latency",
        draws: Draws::Heatmap,
        unit: Unit::Seconds,
        expression: |scraped| {
            let name = name(Id::PathLatency);
            let selector = "{$host,direction=\"receive\"}";
            match scraped {
                Scraped::Native => format!("rate({name}{selector}[$__rate_interval])"),
                Scraped::Text => {
                    format!("sum by (le) (rate({name}_bucket{selector}[$__rate_interval]))")
                }
            }
        },
        legend: "{{le}}",
    },
    Panel {
        title: "Spans of the path, 99th percentile",
        draws: Draws::Lines,
        unit: Unit::Seconds,
        expression: |scraped| quantile(scraped, "0.99", Id::SpanLatency),
        legend: "{{direction}} {{from}} > {{to}}",
    },
    Panel {
        title: "Why the slowest packets were late",
        draws: Draws::Stack,
        unit: Unit::Seconds,
        expression: |_| rate(Id::LateSeconds),
        legend: "{{cause}}",
    },
    Panel {
        title: "Distance between the CPUs of packets",
        draws: Draws::Stack,
        unit: Unit::Packets,
        expression: |_| format!("sum by (distance) ({})", rate(Id::LocalityPackets)),
        legend: "{{distance}}",
    },
    Panel {
        title: "Distance between receiving and accepting CPU",
        draws: Draws::Stack,
        unit: Unit::Events,
        expression: |_| format!("sum by (distance) ({})", rate(Id::Accepts)),
        legend: "{{distance}}",
    },
    Panel {
        title: "Dropped packets",
        draws: Draws::Stack,
        unit: Unit::Packets,
        expression: |_| rate(Id::Drops),
        legend: "{{reason}} {{device}}",
    },
    Panel {
        title: "Interrupts of queues",
        draws: Draws::Lines,
        unit: Unit::Events,
        expression: |_| rate(Id::QueueInterrupts),
        legend: "{{device}} {{queue}}",
    },
    Panel {
        title: "Queues that interrupt another node",
        draws: Draws::Table,
        unit: Unit::Number,
        expression: |_| format!("{}{{$host}} == 0", name(Id::QueueIrqLocal)),
        legend: "{{device}} {{queue}}",
    },
    Panel {
        title: "Memory on nodes where its process does not run",
        draws: Draws::Lines,
        unit: Unit::Bytes,
        expression: |_| format!("{}{{$host}}", name(Id::ProcessRemoteMemory)),
        legend: "{{comm}}",
    },
    Panel {
        title: "Variance of round-trip times, 99th percentile",
        draws: Draws::Lines,
        unit: Unit::Seconds,
        expression: |scraped| quantile(scraped, "0.99", Id::TcpRttvar),
        legend: "rttvar",
    },
    Panel {
        title: "What limits connections",
        draws: Draws::Stack,
        unit: Unit::Seconds,
        expression: |_| rate(Id::TcpLimited),
        legend: "{{limit}}",
    },
    Panel {
        title: "Polling workers",
        draws: Draws::Lines,
        unit: Unit::Share,
        expression: |_| format!("{}{{$host}}", name(Id::WorkerBusy)),
        legend: "{{app}} {{lcore}}",
    },
    Panel {
        title: "Packets into virtual machines, 99th percentile",
        draws: Draws::Lines,
        unit: Unit::Seconds,
        expression: |scraped| quantile_of(scraped, "0.99", Id::VmLatency, "$host,span=\"whole\""),
        legend: "{{vm}}",
    },
    Panel {
        title: "Spans into virtual machines, 99th percentile",
        draws: Draws::Lines,
        unit: Unit::Seconds,
        expression: |scraped| quantile_of(scraped, "0.99", Id::VmLatency, "$host,span!=\"whole\""),
        legend: "{{vm}} {{span}}",
    },
    Panel {
        title: "Findings",
        draws: Draws::Table,
        unit: Unit::Number,
        expression: |_| format!("{}{{$host}} == 1", name(Id::FindingActive)),
        legend: "{{severity}} {{check}} {{subject}}",
    },
];
