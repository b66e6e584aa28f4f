//! Sampled loads of `measure memory`: shares by source, node and region, and cache lines that several cores use.

use super::table::{Table, left, or_none, right};
use super::units::{percent, printable};
use super::{heading, line};
use nearpath_model::{CodeOfLine, LoadSamples, LoadSource, ProcessLoads, SharedLine};

/// Maximum number of processes and lines shown; the JSON has more.
const SHOWN: usize = 10;

/// The samples.
pub fn loads(samples: &LoadSamples) -> String {
    let mut out = String::new();
    heading(&mut out, &format!("loads sampled by the PMU {}", printable(&samples.pmu)));
    let LoadSamples { loads, stores, lost, throttled, .. } = samples;
    line!(
        out,
        "{loads} loads, {stores} stores; {lost} lost, paused by the kernel {throttled} times"
    );
    let mut table = Table::new(&[
        left("PROCESS"),
        right("LOADS"),
        right("REMOTE"),
        right("MEMORY"),
        left("BY-NODE"),
        left("REGIONS"),
    ]);
    for process in samples.processes.iter().take(SHOWN) {
        table.row(row(process));
    }
    if !samples.processes.is_empty() {
        out.push_str(&table.render());
    }
    for shared in samples.shared_lines.iter().take(SHOWN) {
        line!(out);
        out.push_str(&shared_line(shared));
    }
    out
}

fn share(part: u64, all: u64) -> String {
    percent(part as f64 / all.max(1) as f64)
}

fn row(process: &ProcessLoads) -> [String; 6] {
    let memory: u64 = process
        .sources
        .iter()
        .filter(|(its, _)| LoadSource::is_memory(**its))
        .map(|(_, n)| n)
        .sum();
    let nodes: Vec<String> = process
        .nodes
        .iter()
        .map(|(node, n)| format!("{node}: {}", share(*n, process.nodes.values().sum())))
        .collect();
    let regions: Vec<String> = process
        .regions
        .iter()
        .take(3)
        .map(|region| {
            let remote = match region.remote {
                0 => String::new(),
                n => format!(" ({} remote)", share(n, region.loads)),
            };
            format!("{} {}{remote}", printable(&region.name), share(region.loads, process.loads))
        })
        .collect();
    let comm = process.comm.as_deref().unwrap_or("?");
    [
        format!("{}/{}", printable(comm), process.pid),
        process.loads.to_string(),
        process.remote_share.map_or("-".to_owned(), percent),
        share(memory, process.loads),
        or_none((!nodes.is_empty()).then(|| nodes.join(", "))),
        regions.join(", "),
    ]
}

fn shared_line(shared: &SharedLine) -> String {
    let mut out = String::new();
    let kind = match shared.is_false {
        Some(true) => "false sharing",
        Some(false) => "sharing",
        None => "modified elsewhere",
    };
    line!(
        out,
        "{kind}: line {:#x} of process {} ({}), {} loads found it modified in another cache, {} of another node",
        shared.address,
        shared.pid,
        printable(&shared.region),
        shared.hitm,
        shared.remote_hitm
    );
    for (side, code) in [("read by", &shared.readers), ("written by", &shared.writers)] {
        for one in code.iter().take(3) {
            line!(out, "  {side} {}", user(one));
        }
    }
    out
}

fn user(code: &CodeOfLine) -> String {
    let offsets: Vec<String> = code.offsets.iter().map(u8::to_string).collect();
    format!(
        "{}: {} samples, bytes {}, CPUs {}",
        printable(&code.function),
        code.samples,
        offsets.join(","),
        code.cpus
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{NodeId, RegionLoads};

    #[test]
    fn shares_and_lines_are_shown() {
        let process = ProcessLoads {
            pid: 812,
            comm: Some("redis\u{1b}".to_owned()),
            loads: 200,
            sources: [(LoadSource::L1, 100), (LoadSource::RemoteMemory, 100)].into(),
            remote_share: Some(0.5),
            nodes: [(NodeId(0), 50), (NodeId(1), 150)].into(),
            regions: vec![RegionLoads {
                name: "[heap]".to_owned(),
                loads: 200,
                remote: 100,
                ..RegionLoads::default()
            }],
        };
        let code = |function: &str, offset| {
            let function = function.to_owned();
            vec![CodeOfLine { function, samples: 9, offsets: vec![offset], cpus: "0-1".to_owned() }]
        };
        let samples = LoadSamples {
            pmu: "cpu".to_owned(),
            loads: 200,
            processes: vec![process],
            shared_lines: vec![SharedLine {
                address: 0x7f00_0040,
                pid: 812,
                region: "[heap]".to_owned(),
                hitm: 9,
                remote_hitm: 4,
                is_false: Some(true),
                readers: code("count", 8),
                writers: code("add", 16),
            }],
            ..LoadSamples::default()
        };
        let said = anstream::adapter::strip_str(&loads(&samples)).to_string();
        assert!(said.contains("50.0%") && said.contains("0: 25.0%, 1: 75.0%"), "{said}");
        assert!(
            said.contains("[heap] 100.0% (50.0% remote)")
                || said.contains("[heap] 100% (50.0% remote)"),
            "{said}"
        );
        assert!(
            said.contains("false sharing: line 0x7f000040 of process 812 ([heap]), 9 loads"),
            "{said}"
        );
        assert!(said.contains("  read by count: 9 samples, bytes 8, CPUs 0-1\n"), "{said}");
        assert!(said.contains("  written by add: 9 samples, bytes 16"), "{said}");
        assert!(!said.contains('\u{1b}'));
    }
}
