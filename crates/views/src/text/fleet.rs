//! Many hosts: which are worst, why, and what would gain most.
//!
//! The first line is the answer.

use super::table::{NONE, Table, left, right};
use super::units::{latency, printable, seconds};
use super::{heading, line};
use nearpath_model::fleet::{Fleet, FleetDifference, FleetFinding, FleetHost};
use nearpath_model::units::counted;
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a table.
const HOSTS: usize = 20;
const CHECKS: usize = 10;

/// The ranking.
pub fn fleet(fleet: &Fleet) -> String {
    let mut out = String::new();
    let ill = fleet.hosts.iter().filter(|host| !host.findings.is_empty()).count();
    let all = counted(fleet.hosts.len() as u64, "host");
    match fleet.hosts.first().filter(|host| !host.findings.is_empty()) {
        Some(worst) => line!(
            out,
            "{} is worst: {}; {ill} of {all} have findings",
            printable(&worst.name),
            why(worst)
        ),
        None => line!(out, "nothing found that makes packets late on {all}"),
    }
    line!(out);
    hosts(&mut out, fleet);
    gains(&mut out, fleet);
    causes(&mut out, fleet);
    if fleet.other_series > 0 {
        line!(out);
        line!(out, "{} series have other names, or no label that names a host", fleet.other_series);
    }
    out
}

/// `packets wait 12.0ms per second, most for irq_node of eth0`.
fn why(host: &FleetHost) -> String {
    let most = host.findings.first().map(named).unwrap_or_default();
    if host.cost_s > 0.0 {
        format!("packets wait {} per second, most for {most}", seconds(host.cost_s))
    } else {
        format!("{most}, of unknown cost")
    }
}

fn named(finding: &FleetFinding) -> String {
    let (check, subject) = (printable(&finding.check), printable(&finding.subject));
    if subject.is_empty() { check } else { format!("{check} of {subject}") }
}

fn cost(value: f64) -> String {
    if value > 0.0 { seconds(value) } else { NONE.to_owned() }
}

fn hosts(out: &mut String, fleet: &Fleet) {
    let mut table = Table::new(&[
        right("RANK"),
        left("HOST"),
        right("WAIT/S"),
        right("CRITICAL"),
        right("WARNINGS"),
        right("P99"),
        left("MOSTLY"),
        left("WORST-FINDING"),
    ]);
    for (at, host) in fleet.hosts.iter().take(HOSTS).enumerate() {
        table.row([
            (at + 1).to_string(),
            printable(&host.name),
            cost(host.cost_s),
            host.count("critical").to_string(),
            host.count("warning").to_string(),
            host.p99_ns.map_or_else(|| NONE.to_owned(), latency),
            host.causes.first().map_or_else(|| NONE.to_owned(), |(cause, _)| printable(cause)),
            host.findings.first().map_or_else(|| NONE.to_owned(), named),
        ]);
    }
    out.push_str(&table.render());
    if fleet.hosts.len() > HOSTS {
        line!(*out, "and {} more; --json has all", fleet.hosts.len() - HOSTS);
    }
}

/// What would gain most: the checks, over all hosts.
fn gains(out: &mut String, fleet: &Fleet) {
    let mut checks: BTreeMap<&str, (f64, BTreeSet<&str>)> = BTreeMap::new();
    for host in &fleet.hosts {
        for finding in &host.findings {
            let (cost, hosts) = checks.entry(&finding.check).or_default();
            *cost += finding.cost_s;
            hosts.insert(&host.name);
        }
    }
    if checks.is_empty() {
        return;
    }
    let mut checks: Vec<_> = checks.into_iter().collect();
    checks.sort_by(|(_, (a, x)), (_, (b, y))| b.total_cmp(a).then(y.len().cmp(&x.len())));
    line!(*out);
    heading(out, "what would gain most: 'nearpath diagnose' on these hosts has the changes");
    let mut table = Table::new(&[right("WAIT/S"), right("HOSTS"), left("CHECK"), left("ON")]);
    for (check, (sum, hosts)) in checks.into_iter().take(CHECKS) {
        let named: Vec<String> = hosts.iter().take(3).map(|name| printable(name)).collect();
        let more = if hosts.len() > 3 { ", …" } else { "" };
        table.row([cost(sum), hosts.len().to_string(), printable(check), named.join(", ") + more]);
    }
    out.push_str(&table.render());
}

fn causes(out: &mut String, fleet: &Fleet) {
    let mut causes: BTreeMap<&str, f64> = BTreeMap::new();
    for (cause, rate) in fleet.hosts.iter().flat_map(|host| &host.causes) {
        *causes.entry(cause).or_default() += rate;
    }
    if causes.is_empty() {
        return;
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    line!(*out);
    heading(out, "what the slowest packets of all hosts waited for");
    let mut table = Table::new(&[right("WAIT/S"), left("CAUSE")]);
    for (cause, rate) in causes.into_iter().take(CHECKS) {
        table.row([cost(rate), printable(cause)]);
    }
    out.push_str(&table.render());
}

/// What changed.
pub fn fleet_difference(difference: &FleetDifference) -> String {
    let mut out = String::new();
    let worse = difference.hosts.iter().filter(|host| host.cost_s.1 > host.cost_s.0).count();
    match difference.hosts.first() {
        None => line!(out, "no host has changed; {} are the same", difference.same),
        Some(first) if first.cost_s.1 > first.cost_s.0 => line!(
            out,
            "{} got worst: packets wait {} per second, {} before; {worse} got worse, {} differ, {} are the same",
            printable(&first.name),
            seconds(first.cost_s.1),
            seconds(first.cost_s.0),
            difference.hosts.len(),
            difference.same
        ),
        Some(_) => line!(
            out,
            "no host got worse by cost; {} differ, {} are the same",
            difference.hosts.len(),
            difference.same
        ),
    }
    if !difference.hosts.is_empty() {
        line!(out);
        let columns = [
            left("HOST"),
            right("WAIT/S"),
            right("BEFORE"),
            right("P99"),
            right("BEFORE"),
            left("BEGAN"),
            left("ENDED"),
        ];
        let mut table = Table::new(&columns);
        let list = |findings: &[FleetFinding]| {
            let names: Vec<String> = findings.iter().take(3).map(named).collect();
            let more = if findings.len() > 3 { ", …" } else { "" };
            if names.is_empty() { NONE.to_owned() } else { names.join(", ") + more }
        };
        let p99 = |ns: Option<u64>| ns.map_or_else(|| NONE.to_owned(), latency);
        for host in difference.hosts.iter().take(HOSTS) {
            table.row([
                printable(&host.name),
                cost(host.cost_s.1),
                cost(host.cost_s.0),
                p99(host.p99_ns.1),
                p99(host.p99_ns.0),
                list(&host.began),
                list(&host.ended),
            ]);
        }
        out.push_str(&table.render());
    }
    for (what, names) in [("new", &difference.new), ("gone", &difference.gone)] {
        if !names.is_empty() {
            let named: Vec<String> = names.iter().take(HOSTS).map(|name| printable(name)).collect();
            let more = if names.len() > HOSTS { ", …" } else { "" };
            line!(out, "{what}: {}{more}", named.join(", "));
        }
    }
    out
}

/// Hosts with the same plan.
#[derive(Debug)]
pub struct PlannedHosts {
    /// Their names.
    pub hosts: Vec<String>,
    /// The plan of the first.
    pub plan: nearpath_model::Plan,
}

/// Plans of many hosts; `failed` are snapshots that have none, with the reason.
pub fn fleet_plan(groups: &[PlannedHosts], failed: &[(String, String)]) -> String {
    let mut out = String::new();
    let hosts: usize = groups.iter().map(|group| group.hosts.len()).sum();
    let changed = groups.iter().filter(|group| !group.plan.changes.is_empty());
    let changed: usize = changed.map(|group| group.hosts.len()).sum();
    let plans = counted(groups.len() as u64, "plan");
    line!(
        out,
        "{plans} for {}: {changed} to change, {} as they should be",
        counted(hosts as u64, "host"),
        hosts - changed
    );
    for group in groups {
        line!(out);
        let names: Vec<String> = group.hosts.iter().map(|name| printable(name)).collect();
        heading(
            &mut out,
            &format!("{}: {}", counted(names.len() as u64, "host"), names.join(", ")),
        );
        out.push_str(&super::plan(&group.plan));
    }
    for (name, why) in failed {
        line!(out);
        line!(out, "not planned: {}: {}", printable(name), printable(why));
    }
    out
}
