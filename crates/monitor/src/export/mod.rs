//! Files for other programs, generated from the registry: rules, configurations, units.

mod alertmanager;
mod alerts;
mod grafana;
mod panels;
mod perses;
mod rule_tests;
mod rules;
mod scrape;
mod systemd;

pub use alerts::{ALERTS, Alert, RECORDS, Record};
pub use panels::{FLEET, HOST};
pub use rule_tests::rule_tests;

/// How the metrics arrive at the Prometheus whose rules these are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scraped {
    /// By protobuf, with native histograms.
    #[default]
    Native,
    /// As text, with classic buckets.
    Text,
}

/// A file to install.
#[derive(Debug, Clone, Copy)]
pub struct Exporter {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a few words.
    pub writes: &'static str,
    /// Its text.
    pub text: fn(Scraped) -> String,
}

/// All of them.
pub const EXPORTERS: &[Exporter] = &[
    Exporter {
        name: "prometheus-rules",
        writes: "recording and alerting rules of Prometheus",
        text: rules::rules,
    },
    Exporter {
        name: "alertmanager",
        writes: "a configuration of Alertmanager to start from",
        text: alertmanager::config,
    },
    Exporter { name: "grafana", writes: "a dashboard of a host for Grafana", text: grafana::host },
    Exporter {
        name: "grafana-fleet",
        writes: "a dashboard of many hosts for Grafana; needs the recording rules",
        text: grafana::fleet,
    },
    Exporter { name: "perses", writes: "a dashboard of a host for Perses", text: perses::host },
    Exporter {
        name: "perses-fleet",
        writes: "a dashboard of many hosts for Perses; needs the recording rules",
        text: perses::fleet,
    },
    Exporter {
        name: "scrape-config",
        writes: "a job for scrape_configs of Prometheus",
        text: scrape::config,
    },
    Exporter { name: "systemd", writes: "a hardened service unit", text: systemd::service },
    Exporter {
        name: "systemd-socket",
        writes: "a socket unit for the service",
        text: systemd::socket,
    },
];
