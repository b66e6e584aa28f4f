//! What each view of a host prints, as files in `golden/`.

mod golden_files;
mod hosts;

use golden_files::{golden, golden_json};
use hosts::{Shape, topology, two_nodes};
use nearpath_model::Host;
use nearpath_views::{json, svg, text};

#[test]
fn show_as_text() {
    let host = two_nodes();
    golden("cpus.txt", &text::cpus(&host));
    golden("cpus-layout.txt", &text::layout(&host));
    golden("nodes.txt", &text::nodes(&host));
    golden("nics.txt", &text::nics(&host));
    golden("devices.txt", &text::devices(&host, false));
    golden("devices-verbose.txt", &text::devices(&host, true));
    golden("queues.txt", &text::queues(&host));
    golden("irqs.txt", &text::irqs(&host));
    golden("softnet.txt", &text::softnet(&host));
    golden("all.txt", &text::all(&host));
}

#[test]
fn show_as_json() {
    let host = two_nodes();
    golden_json("cpus.json", &json::cpus(&host));
    golden_json("nodes.json", &json::nodes(&host));
    golden_json("nics.json", &json::nics(&host));
    golden_json("devices.json", &json::devices(&host));
    golden_json("queues.json", &json::queues(&host));
    golden_json("irqs.json", &json::irqs(&host));
    golden_json("softnet.json", &json::softnet(&host));
    golden_json("all.json", &json::all(&host));
}

#[test]
fn show_as_a_picture() {
    golden("host.svg", &svg::host(&two_nodes()));
}

fn large() -> Host {
    let shape = Shape { packages: 2, nodes: 8, llcs: 4, cores: 8, threads: 2 };
    Host { topology: topology(&shape), ..Host::default() }
}

#[test]
fn a_thousand_cpus_are_readable() {
    let host = large();
    let cpus = text::cpus(&host);
    golden("cpus-1024.txt", &cpus);
    assert!(cpus.lines().count() < 100 && cpus.lines().all(|line| line.chars().count() < 120));
    golden("nodes-16.txt", &text::nodes(&host));
}

#[test]
fn an_empty_host_is_shown_without_invention() {
    let host = Host::default();
    golden("empty.txt", &text::all(&host));
    assert!(svg::host(&host).starts_with("<svg"));
}
