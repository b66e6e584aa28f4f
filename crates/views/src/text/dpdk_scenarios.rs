//! `bench scenarios --dpdk`: an application on DPDK with the lcores of a plan and without.
//!
//! Input: a report. Output: tables of the probes, of what disturbed each worker, and of vhost threads.

use super::latency::bits_per_s;
use super::line;
use super::scenarios::difference;
use super::table::{Table, left, right};
use super::units::{latency, percentage, printable, seconds};
use nearpath_trial::dpdk::{
    DpdkDisturbance, DpdkOther, DpdkScenario, DpdkScenarioResult, DpdkScenariosReport, DpdkVhost,
};

/// What was compared, the probes, then what disturbed each worker.
pub fn dpdk_scenarios(report: &DpdkScenariosReport) -> String {
    let mut out = String::new();
    let (application, target) = (printable(&report.application), printable(&report.target));
    line!(out, "application:   {application}, probed through it at {target}");
    if let Some(overloaded) = &report.overloaded {
        line!(out, "overloaded:    {}", printable(overloaded));
    }
    line!(out, "without plan:  --lcores {}", printable(&report.lcores_without_plan));
    line!(out, "with plan:     --lcores {}", printable(&report.lcores_with_plan));
    let blocks = report.cycles * 2;
    line!(out, "blocks:        {blocks} of {} per scenario, alternating", seconds(report.block_s));
    line!(out);
    out.push_str(&probes(report));
    line!(out);
    out.push_str(&workers(report));
    if report.scenarios.iter().any(|row| row.vhost.is_some()) {
        line!(out);
        out.push_str(&vhost_threads(report));
    }
    for (at, note) in report.notes.iter().enumerate() {
        if at == 0 {
            line!(out);
        }
        line!(out, "note: {}", printable(note));
    }
    out
}

fn probes(report: &DpdkScenariosReport) -> String {
    let mut table = Table::new(&[
        left("SCENARIO"),
        right("ANSWERS"),
        right("LOST"),
        right("P50"),
        right("P99"),
        right("MAX"),
        right("TCP").optional(),
        right("IMISSED"),
        right("NO BUFFER"),
        left("P99 AGAINST NO PLAN").optional(),
    ]);
    let or_none = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    for row in &report.scenarios {
        let deep =
            |name: &str| row.percentiles.get(name).map(|&ns| latency(ns)).unwrap_or_default();
        table.row([
            name(row),
            row.count.to_string(),
            row.lost.to_string(),
            deep("50"),
            deep("99"),
            row.max_ns.map(latency).unwrap_or_default(),
            row.bits_per_s.map(bits_per_s).unwrap_or_default(),
            or_none(row.imissed),
            or_none(row.rx_nombuf),
            row.against_without_plan.as_ref().map(difference).unwrap_or_default(),
        ]);
    }
    table.render()
}

fn workers(report: &DpdkScenariosReport) -> String {
    let mut table = Table::new(&[
        left("SCENARIO"),
        right("LCORE"),
        right("CPU"),
        right("INTERRUPTS/S"),
        right("INVOLUNTARY SWITCHES/S"),
        right("WAITED FOR CPU"),
        left("OTHERS ON ITS CPU").optional(),
    ]);
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
    for row in &report.scenarios {
        for worker in &row.workers {
            table.row([
                name(row),
                worker.lcore.to_string(),
                worker.cpus.to_string(),
                rate(worker.interrupts_per_s),
                rate(worker.involuntary_switches_per_s),
                share(worker.waited_percent),
                others(worker),
            ]);
        }
    }
    table.render()
}

fn others(worker: &DpdkDisturbance) -> String {
    let other =
        |other: &DpdkOther| format!("{} {}", printable(&other.name), percentage(other.percent));
    worker.others.iter().map(other).collect::<Vec<_>>().join(", ")
}

fn vhost_threads(report: &DpdkScenariosReport) -> String {
    let mut table = Table::new(&[
        left("SCENARIO"),
        right("VHOST THREADS"),
        right("CPUS"),
        right("RAN"),
        right("WAITED FOR CPU"),
        right("ON WORKERS' CPUS"),
    ]);
    for row in &report.scenarios {
        let Some(vhost) = &row.vhost else { continue };
        let DpdkVhost { threads, cpus, ran_percent, waited_percent } = vhost;
        let on = row.workers.iter().map(|worker| worker.vhost_percent).sum::<Option<f64>>();
        table.row([
            name(row),
            threads.to_string(),
            cpus.to_string(),
            share(*ran_percent),
            share(*waited_percent),
            share(on),
        ]);
    }
    table.render()
}

fn share(percent: Option<f64>) -> String {
    percent.map_or("-".to_owned(), |percent| format!("{percent:.2}%"))
}

fn name(row: &DpdkScenarioResult) -> String {
    let name = match row.scenario {
        DpdkScenario::WithoutPlan => "without plan",
        DpdkScenario::WithPlan => "with plan",
    };
    format!("{name}{}", if row.is_overloaded { ", overloaded" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn idle_and_overloaded_have_lines_and_vhost_threads_a_table() {
        let row = |scenario: &str, is_overloaded: bool, bits: Option<f64>| {
            json!({"scenario": scenario, "is_overloaded": is_overloaded, "count": 2000, "lost": 1,
                "percentiles": {"50": 9_000, "99": 40_000}, "max_ns": 8_100_000, "p99_of_blocks": [40_000],
                "against_without_plan": null, "bits_per_s": bits, "bits_per_s_of_blocks": [],
                "imissed": null, "rx_nombuf": 3, "workers": [{"lcore": 1, "cpus": "1",
                "interrupts_per_s": 250.0, "involuntary_switches_per_s": null, "waited_percent": 12.0,
                "vhost_percent": 4.25, "others": [{"name": "vhost", "percent": 4.25},
                {"name": "a\u{1b}", "percent": 0.5}]}],
                "vhost": {"threads": 1, "cpus": "0-1", "ran_percent": 20.5, "waited_percent": null}})
        };
        let mut report = json!({"schema": 1, "application": "testpmd", "overloaded": "testpmd slow",
            "target": "10.0.0.1:6327", "lcores_without_plan": "0@0,1@1", "lcores_with_plan": "0@2,1@3",
            "cycles": 4, "block_s": 2.0, "notes": ["mind the gap"], "scenarios": [
                row("without_plan", false, Some(2.5e9)), row("with_plan", true, None)]});
        let parsed = serde_json::from_value(report.clone()).unwrap();
        let expected = "\
application:   testpmd, probed through it at 10.0.0.1:6327
overloaded:    testpmd slow
without plan:  --lcores 0@0,1@1
with plan:     --lcores 0@2,1@3
blocks:        8 of 2.00s per scenario, alternating

SCENARIO               ANSWERS  LOST     P50     P99     MAX          TCP  IMISSED  NO BUFFER
without plan              2000     1  9.00µs  40.0µs  8.10ms  2.50 Gbit/s        -          3
with plan, overloaded     2000     1  9.00µs  40.0µs  8.10ms            -        -          3

SCENARIO               LCORE  CPU  INTERRUPTS/S  INVOLUNTARY SWITCHES/S  WAITED FOR CPU  OTHERS ON ITS CPU
without plan               1    1         250.0                       -          12.00%  vhost 4.2%, a\\u{1b} 0.50%
with plan, overloaded      1    1         250.0                       -          12.00%  vhost 4.2%, a\\u{1b} 0.50%

SCENARIO               VHOST THREADS  CPUS     RAN  WAITED FOR CPU  ON WORKERS' CPUS
without plan                       1   0-1  20.50%               -             4.25%
with plan, overloaded              1   0-1  20.50%               -             4.25%

note: mind the gap
";
        assert_eq!(dpdk_scenarios(&parsed), expected);
        // A report of before virtio-user was measured.
        for row in report["scenarios"].as_array_mut().unwrap() {
            let row = row.as_object_mut().unwrap();
            for field in ["is_overloaded", "bits_per_s", "bits_per_s_of_blocks", "vhost"] {
                row.remove(field);
            }
        }
        let text = dpdk_scenarios(&serde_json::from_value(report).unwrap());
        assert!(!text.contains("VHOST THREADS") && !text.contains("TCP"), "{text}");
    }
}
