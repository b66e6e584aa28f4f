//! The rules: what is recorded, and when to alert. One row each, with the series for which it fires and for which it
//! must not: they become unit tests of `promtool`.

use super::Scraped;
use crate::metrics::{Id, METRICS};

/// A recording rule.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// The name of what is recorded.
    pub name: &'static str,
    /// Its expression.
    pub expression: fn(Scraped) -> String,
}

/// An alert.
#[derive(Debug, Clone, Copy)]
pub struct Alert {
    /// Its name.
    pub name: &'static str,
    /// The metrics that it is about; those of the registry that say how to alert are all covered.
    pub metrics: &'static [Id],
    /// When it holds.
    pub expression: fn(Scraped) -> String,
    /// For how long, as Prometheus writes times.
    pub lasts: &'static str,
    /// `critical` or `warning`.
    pub severity: &'static str,
    /// One sentence about an alert, with `{{ $labels.instance }}`.
    pub summary: &'static str,
    /// What to do.
    pub description: &'static str,
    /// Series for which it fires, and those for which it does not: `(series, values)`; a sample a minute.
    pub fires: &'static [(&'static str, &'static str)],
    /// Likewise.
    pub silent: &'static [(&'static str, &'static str)],
    /// When it is evaluated in the tests.
    pub at: &'static str,
    /// Labels of the alert that fires, in addition to `severity`, as `name: value` pairs.
    pub labels: &'static [(&'static str, &'static str)],
}

fn name(id: Id) -> &'static str {
    METRICS[id as usize].name
}

/// A quantile of a histogram's increase.
fn quantile(scraped: Scraped, q: f64, id: Id, range: &str, offset: &str) -> String {
    let name = name(id);
    match scraped {
        Scraped::Native => format!("histogram_quantile({q}, rate({name}[{range}]{offset}))"),
        Scraped::Text => format!("histogram_quantile({q}, rate({name}_bucket[{range}]{offset}))"),
    }
}

/// All recording rules.
pub const RECORDS: &[Record] = &[
    Record {
        name: "nearpath:path_latency_seconds:p99",
        expression: |scraped| quantile(scraped, 0.99, Id::PathLatency, "5m", ""),
    },
    Record {
        name: "nearpath:locality:share",
        expression: |_| {
            let name = name(Id::LocalityPackets);
            format!(
                "sum without (distance) (rate({name}{{distance=\"same_cpu\"}}[10m])) \
                 / sum without (distance) (rate({name}[10m]))"
            )
        },
    },
    Record {
        name: "nearpath:late_seconds:rate",
        expression: |_| format!("rate({}[5m])", name(Id::LateSeconds)),
    },
    Record {
        name: "nearpath:finding_cost_seconds:sum",
        expression: |_| format!("sum without (check, subject) ({})", name(Id::FindingCost)),
    },
    // The ranking of a fleet.
    Record {
        name: "nearpath:finding_cost_seconds:top10",
        expression: |_| "topk(10, nearpath:finding_cost_seconds:sum)".to_owned(),
    },
];

/// Checks of where packets are processed, which `tune` can change.
const MISPLACED: &str =
    "nic_irq_node|rps_placement|ovs_port_rps|xps_mismatch|reader_placement|net_threads_off_node";

/// All alerts.
pub const ALERTS: &[Alert] = &[
    Alert {
        name: "NearpathRttVariance",
        metrics: &[Id::TcpRttvar],
        expression: |scraped| {
            format!("{} > 0.002", quantile(scraped, 0.99, Id::TcpRttvar, "2m", ""))
        },
        lasts: "1m",
        severity: "warning",
        summary: "RTT variance of {{ $labels.instance }} is over 2 ms",
        description: "1 of 100 connections varies by {{ $value | humanizeDuration }}. See what limits them: nearpath measure tcp.",
        fires: &[(
            "nearpath_tcp_rttvar_seconds{instance=\"a\"}",
            "{{schema:4 count:10 sum:0.04 offset:-128 buckets:[10]}}+{{schema:4 count:10 sum:0.04 offset:-128 buckets:[10]}}x20",
        )],
        silent: &[(
            "nearpath_tcp_rttvar_seconds{instance=\"a\"}",
            "{{schema:4 count:10 sum:0.01 offset:-160 buckets:[10]}}+{{schema:4 count:10 sum:0.01 offset:-160 buckets:[10]}}x20",
        )],
        at: "10m",
        labels: &[("instance", "a")],
    },
    Alert {
        name: "NearpathRemoteMemory",
        metrics: &[Id::ProcessRemoteMemory, Id::ProcessMemory],
        expression: |_| {
            let (remote, all) = (name(Id::ProcessRemoteMemory), name(Id::ProcessMemory));
            format!("{remote} > 100e6 or {remote} > 0.05 * sum without (node) ({all})")
        },
        lasts: "5m",
        severity: "warning",
        summary: "Memory of {{ $labels.comm }} on {{ $labels.instance }} is on nodes where it does not run",
        description: "{{ $value | humanize1024 }}B. See nearpath show memory, and nearpath tune plan --move-memory.",
        fires: &[
            ("nearpath_process_remote_memory_bytes{instance=\"a\",comm=\"redis\"}", "6e6x20"),
            ("nearpath_process_memory_bytes{instance=\"a\",comm=\"redis\",node=\"0\"}", "6e6x20"),
            ("nearpath_process_memory_bytes{instance=\"a\",comm=\"redis\",node=\"1\"}", "90e6x20"),
        ],
        silent: &[
            ("nearpath_process_remote_memory_bytes{instance=\"a\",comm=\"redis\"}", "99e6x20"),
            ("nearpath_process_memory_bytes{instance=\"a\",comm=\"redis\",node=\"1\"}", "9e9x20"),
        ],
        at: "10m",
        labels: &[("instance", "a"), ("comm", "redis")],
    },
    Alert {
        name: "NearpathSlowPaths",
        metrics: &[Id::PathLatency],
        expression: |scraped| {
            let now = quantile(scraped, 0.99, Id::PathLatency, "15m", "");
            let yesterday = quantile(scraped, 0.99, Id::PathLatency, "15m", " offset 1d");
            format!("({now} > 3 * {yesterday}) > 100e-6")
        },
        lasts: "10m",
        severity: "warning",
        summary: "Packets of {{ $labels.instance }} take three times as long as yesterday ({{ $labels.direction }})",
        description: "The 99th percentile is {{ $value | humanizeDuration }}. See nearpath diagnose.",
        fires: &[(
            "nearpath_path_latency_seconds{instance=\"a\",direction=\"receive\"}",
            "{{schema:4 count:10 sum:0.001 offset:-208 buckets:[10]}}+{{schema:4 count:10 sum:0.001 offset:-208 buckets:[10]}}x720 {{schema:4 count:7220 sum:1 offset:-208 buckets:[7220]}}+{{schema:4 count:10 sum:0.01 offset:-160 buckets:[10]}}x900",
        )],
        // Ten times as long, but below the floor.
        silent: &[(
            "nearpath_path_latency_seconds{instance=\"a\",direction=\"receive\"}",
            "{{schema:4 count:10 sum:0.00001 offset:-288 buckets:[10]}}+{{schema:4 count:10 sum:0.00001 offset:-288 buckets:[10]}}x720 {{schema:4 count:7220 sum:1 offset:-288 buckets:[7220]}}+{{schema:4 count:10 sum:0.0001 offset:-240 buckets:[10]}}x900",
        )],
        at: "26h",
        labels: &[("instance", "a"), ("direction", "receive")],
    },
    Alert {
        name: "NearpathLateCause",
        metrics: &[Id::LateSeconds],
        expression: |_| {
            let rate = format!("rate({}[5m])", name(Id::LateSeconds));
            format!(
                "{rate} / ignoring (cause) group_left () sum without (cause) ({rate}) > 0.5 and {rate} > 0.01"
            )
        },
        lasts: "10m",
        severity: "warning",
        summary: "Packets of {{ $labels.instance }} are late because of {{ $labels.cause }}",
        description: "{{ $value | humanizePercentage }} of the time of the slowest packets. See nearpath diagnose -v.",
        fires: &[
            ("nearpath_late_seconds_total{instance=\"a\",cause=\"runqueue\"}", "0+6x30"),
            ("nearpath_late_seconds_total{instance=\"a\",cause=\"own\"}", "0+2x30"),
        ],
        silent: &[
            ("nearpath_late_seconds_total{instance=\"a\",cause=\"runqueue\"}", "0+6x30"),
            ("nearpath_late_seconds_total{instance=\"a\",cause=\"own\"}", "0+5x30"),
            ("nearpath_late_seconds_total{instance=\"a\",cause=\"irq\"}", "0+2x30"),
            ("nearpath_late_seconds_total{instance=\"b\",cause=\"own\"}", "0+0.5x30"),
        ],
        at: "25m",
        labels: &[("instance", "a"), ("cause", "runqueue")],
    },
    Alert {
        name: "NearpathLatePackets",
        metrics: &[Id::LatePackets],
        expression: |_| {
            let late = name(Id::LatePackets);
            let increase =
                |range: &str| format!("sum without (explained) (increase({late}{range}))");
            let (now, hour) = (increase("[5m]"), increase("[1h] offset 5m"));
            // Without an hour before it, any tail is new.
            format!("{now} > 20 unless {now} <= 5 / 12 * {hour}")
        },
        lasts: "0m",
        severity: "warning",
        summary: "Packets of {{ $labels.instance }} were later than 1 ms",
        description: "{{ $value | humanize }} in 5 minutes, more than five times as many as before. See /findings of the daemon, or nearpath diagnose --recording DIR.",
        // One tail of 200 packets after two quiet hours, and as many each five minutes.
        fires: &[
            ("nearpath_late_packets_total{instance=\"a\",explained=\"yes\"}", "0+0x120 150+0x30"),
            ("nearpath_late_packets_total{instance=\"a\",explained=\"no\"}", "0+0x120 50+0x30"),
        ],
        silent: &[
            ("nearpath_late_packets_total{instance=\"a\",explained=\"yes\"}", "0+40x150"),
            ("nearpath_late_packets_total{instance=\"b\",explained=\"no\"}", "0+0x120 10+0x30"),
        ],
        at: "123m",
        labels: &[("instance", "a")],
    },
    Alert {
        name: "NearpathSteeringDrift",
        metrics: &[Id::SteeringSettings],
        expression: |_| {
            let name = name(Id::SteeringSettings);
            format!("sum without (state) ({name}{{state=~\"drifted|lost\"}}) > 0")
        },
        lasts: "5m",
        severity: "warning",
        summary: "{{ $value }} changes by nearpath are no longer in effect on {{ $labels.instance }}",
        description: "See nearpath tune status; nearpath tune watch re-applies what was lost.",
        fires: &[
            ("nearpath_steering_settings{instance=\"a\",state=\"applied\"}", "7x20"),
            ("nearpath_steering_settings{instance=\"a\",state=\"lost\"}", "0x2 1x20"),
        ],
        silent: &[
            ("nearpath_steering_settings{instance=\"a\",state=\"applied\"}", "7x20"),
            ("nearpath_steering_settings{instance=\"a\",state=\"lost\"}", "0x20"),
            ("nearpath_steering_settings{instance=\"a\",state=\"unknown\"}", "3x20"),
        ],
        at: "15m",
        labels: &[("instance", "a")],
    },
    Alert {
        name: "NearpathInterruptOffNode",
        metrics: &[Id::QueueIrqLocal, Id::QueueInterrupts],
        expression: |_| {
            let (local, interrupts) = (name(Id::QueueIrqLocal), name(Id::QueueInterrupts));
            format!("{local} == 0 and rate({interrupts}[5m]) > 0")
        },
        lasts: "5m",
        severity: "warning",
        summary: "Queue {{ $labels.queue }} of {{ $labels.device }} interrupts a CPU of another node on {{ $labels.instance }}",
        description: "See nearpath measure irqs, and nearpath tune plan --nic.",
        fires: &[
            ("nearpath_queue_irq_local{instance=\"a\",device=\"eth0\",queue=\"3\"}", "0x20"),
            (
                "nearpath_queue_interrupts_total{instance=\"a\",device=\"eth0\",queue=\"3\"}",
                "0+60x20",
            ),
        ],
        // One has no interrupts, the other is where it should be.
        silent: &[
            ("nearpath_queue_irq_local{instance=\"a\",device=\"eth0\",queue=\"3\"}", "0x20"),
            ("nearpath_queue_interrupts_total{instance=\"a\",device=\"eth0\",queue=\"3\"}", "9x20"),
            ("nearpath_queue_irq_local{instance=\"a\",device=\"eth0\",queue=\"4\"}", "1x20"),
            (
                "nearpath_queue_interrupts_total{instance=\"a\",device=\"eth0\",queue=\"4\"}",
                "0+60x20",
            ),
        ],
        at: "15m",
        labels: &[("instance", "a"), ("device", "eth0"), ("queue", "3")],
    },
    Alert {
        name: "NearpathSoftnetDrops",
        metrics: &[Id::SoftnetDropped],
        expression: |_| {
            format!("sum without (node) (increase({}[5m])) > 0", name(Id::SoftnetDropped))
        },
        lasts: "0m",
        severity: "critical",
        summary: "{{ $labels.instance }} drops packets as a backlog is full",
        description: "{{ $value | humanize }} in 5 minutes. See nearpath diagnose.",
        fires: &[("nearpath_softnet_dropped_total{instance=\"a\",node=\"0\"}", "3x10 4x20")],
        // Squeezes are no sign of loss.
        silent: &[
            ("nearpath_softnet_dropped_total{instance=\"a\",node=\"0\"}", "3x30"),
            ("nearpath_softnet_squeezed_total{instance=\"a\",node=\"0\"}", "0+90x30"),
        ],
        at: "13m",
        labels: &[("instance", "a")],
    },
    Alert {
        name: "NearpathLocalityDropped",
        metrics: &[Id::LocalityPackets],
        expression: |_| {
            let share = "nearpath:locality:share";
            format!("({share} < {share} offset 1h - 0.2) < 0.5")
        },
        lasts: "5m",
        severity: "warning",
        summary: "Packets of {{ $labels.instance }} no longer stay on their CPU ({{ $labels.direction }})",
        description: "{{ $value | humanizePercentage }} do. See nearpath measure locality, and nearpath steer.",
        fires: &[
            (
                "nearpath_locality_packets_total{instance=\"a\",direction=\"rx\",distance=\"same_cpu\"}",
                "0+90x60 5400+10x60",
            ),
            (
                "nearpath_locality_packets_total{instance=\"a\",direction=\"rx\",distance=\"other_node\"}",
                "0+10x60 600+90x60",
            ),
        ],
        silent: &[
            (
                "nearpath_locality_packets_total{instance=\"a\",direction=\"rx\",distance=\"same_cpu\"}",
                "0+10x120",
            ),
            (
                "nearpath_locality_packets_total{instance=\"a\",direction=\"rx\",distance=\"other_node\"}",
                "0+90x120",
            ),
        ],
        at: "100m",
        labels: &[("instance", "a"), ("direction", "rx")],
    },
    Alert {
        name: "NearpathImissed",
        metrics: &[Id::Imissed],
        expression: |_| format!("increase({}[5m]) > 0", name(Id::Imissed)),
        lasts: "0m",
        severity: "critical",
        summary: "Port {{ $labels.port }} of {{ $labels.instance }} drops packets as its worker is late",
        description: "{{ $value | humanize }} in 5 minutes. See nearpath show workers.",
        fires: &[("nearpath_imissed_total{instance=\"a\",port=\"0000:5e:00.0\"}", "0x10 90x20")],
        silent: &[("nearpath_imissed_total{instance=\"a\",port=\"0000:5e:00.0\"}", "90x30")],
        at: "13m",
        labels: &[("instance", "a"), ("port", "0000:5e:00.0")],
    },
    Alert {
        name: "NearpathEventsLost",
        metrics: &[Id::EventsLost],
        expression: |_| {
            let (lost, packets) = (name(Id::EventsLost), name(Id::Packets));
            format!(
                "sum without (instrument) (rate({lost}{{instrument=\"stages\"}}[10m])) \
                 > 0.01 * sum without (direction, outcome) (rate({packets}[10m]))"
            )
        },
        lasts: "10m",
        severity: "warning",
        summary: "Counts of packets on {{ $labels.instance }} are too low",
        description: "{{ $value | humanize }} events a second are lost: latencies are of the others.",
        fires: &[
            ("nearpath_events_lost_total{instance=\"a\",instrument=\"stages\"}", "0+90x40"),
            (
                "nearpath_packets_total{instance=\"a\",direction=\"all\",outcome=\"completed\"}",
                "0+1000x40",
            ),
        ],
        silent: &[
            ("nearpath_events_lost_total{instance=\"a\",instrument=\"stages\"}", "0+9x40"),
            (
                "nearpath_packets_total{instance=\"a\",direction=\"all\",outcome=\"completed\"}",
                "0+1000x40",
            ),
        ],
        at: "35m",
        labels: &[("instance", "a")],
    },
    Alert {
        name: "NearpathObservingExpensive",
        metrics: &[Id::ObservingCpu],
        expression: |_| format!("rate({}[10m]) > 0.02", name(Id::ObservingCpu)),
        lasts: "10m",
        severity: "warning",
        summary: "Observing takes too much of a CPU on {{ $labels.instance }}",
        description: "{{ $value | humanizePercentage }} of one CPU. See --max-overhead and --without-source of nearpath monitor.",
        fires: &[("nearpath_observing_cpu_seconds_total{instance=\"a\"}", "0+1.5x40")],
        silent: &[("nearpath_observing_cpu_seconds_total{instance=\"a\"}", "0+1x40")],
        at: "35m",
        labels: &[("instance", "a")],
    },
    Alert {
        name: "NearpathFindingCritical",
        metrics: &[Id::FindingActive],
        expression: |_| format!("{}{{severity=\"critical\"}} == 1", name(Id::FindingActive)),
        lasts: "5m",
        severity: "critical",
        summary: "{{ $labels.check }} on {{ $labels.instance }}: {{ $labels.subject }}",
        description: "Packets are late or lost. See nearpath diagnose, or /findings of the daemon.",
        fires: &[(
            "nearpath_finding_active{instance=\"a\",check=\"rps_placement\",severity=\"critical\",subject=\"nic eth0\"}",
            "0x3 1x20",
        )],
        silent: &[
            (
                "nearpath_finding_active{instance=\"a\",check=\"rps_placement\",severity=\"critical\",subject=\"nic eth0\"}",
                "1x8 0x20",
            ),
            (
                "nearpath_finding_active{instance=\"a\",check=\"rps_placement\",severity=\"warning\",subject=\"nic eth0\"}",
                "1x20",
            ),
        ],
        at: "10m",
        labels: &[("instance", "a"), ("check", "rps_placement"), ("subject", "nic eth0")],
    },
    Alert {
        name: "NearpathMisplaced",
        metrics: &[Id::FindingActive],
        expression: |_| {
            let name = name(Id::FindingActive);
            format!(
                "max without (severity) ({name}{{severity=~\"warning|critical\",check=~\"{MISPLACED}\"}}) == 1"
            )
        },
        // A finding is of a whole interval between diagnoses already.
        lasts: "0m",
        severity: "warning",
        summary: "{{ $labels.check }} on {{ $labels.instance }}: {{ $labels.subject }}",
        description: "Packets are processed on the wrong CPU or node. See nearpath tune plan there.",
        fires: &[(
            "nearpath_finding_active{instance=\"a\",check=\"rps_placement\",severity=\"warning\",subject=\"nic eth0\"}",
            "0x3 1x20",
        )],
        silent: &[
            (
                "nearpath_finding_active{instance=\"a\",check=\"rps_placement\",severity=\"warning\",subject=\"nic eth0\"}",
                "1x8 0x20",
            ),
            (
                "nearpath_finding_active{instance=\"a\",check=\"rps_placement\",severity=\"info\",subject=\"nic eth0\"}",
                "1x20",
            ),
            (
                "nearpath_finding_active{instance=\"a\",check=\"tcp_timeouts\",severity=\"warning\",subject=\"\"}",
                "1x20",
            ),
        ],
        at: "10m",
        labels: &[("instance", "a"), ("check", "rps_placement"), ("subject", "nic eth0")],
    },
    Alert {
        name: "NearpathAbsent",
        metrics: &[Id::BuildInfo],
        expression: |_| "up{job=\"nearpath\"} == 0 or absent(up{job=\"nearpath\"})".to_owned(),
        lasts: "5m",
        severity: "warning",
        summary: "nearpath on {{ $labels.instance }} does not answer",
        description: "See systemctl status nearpath-monitor there.",
        fires: &[("up{job=\"nearpath\",instance=\"a\"}", "1x3 0x20")],
        silent: &[("up{job=\"nearpath\",instance=\"a\"}", "0x2 1x20")],
        at: "10m",
        labels: &[("instance", "a"), ("job", "nearpath")],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_metric_that_says_how_to_alert_has_an_alert() {
        let covered: BTreeSet<Id> = ALERTS.iter().flat_map(|a| a.metrics).copied().collect();
        for metric in METRICS.iter().filter(|metric| !metric.alert.is_empty()) {
            // Squeezes are exported for those who look for them.
            let is_silenced = metric.alert.starts_with("none");
            assert!(covered.contains(&metric.id) != is_silenced, "{}", metric.name);
        }
    }
}
