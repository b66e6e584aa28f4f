//! Cores and sockets with their CPUs, in the form of DPDK's `cpu_layout.py` that people who
//! place workers know: a row for each core, a column for each socket (package).
//!
//! Input: the topology. Output: the table. Beyond [`MANY_CORES`] rows, runs of cores of the
//! same nodes whose CPUs count up together are one row; beyond [`SOCKETS_ACROSS`] sockets the
//! table continues below.

use super::line;
use super::units::ranges;
use nearpath_model::{Cpu, CpuSet, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// A table of more rows than this is folded.
const MANY_CORES: usize = 64;
/// Sockets beside each other.
const SOCKETS_ACROSS: usize = 8;

/// What names a core within a package: `core_id`, with die and cluster before it on machines
/// that restart core numbers in each.
type CoreKey = Vec<u32>;

/// A core with its CPUs by package.
type Row<'a> = (&'a CoreKey, &'a BTreeMap<u32, CpuSet>);

/// The CPUs of each core, by core and package.
struct Layout {
    words: &'static [&'static str],
    packages: BTreeSet<u32>,
    cells: BTreeMap<CoreKey, BTreeMap<u32, CpuSet>>,
    /// CPUs of which the core or the package is unknown (offline ones, as a rule).
    unplaced: CpuSet,
}

/// The table, or nothing when no CPU's core is known.
pub(super) fn cpu_layout(topology: &Topology) -> String {
    let layout = Layout::of(topology);
    let mut out = String::new();
    if !layout.cells.is_empty() {
        let folded = layout.cells.len() > MANY_CORES;
        line!(out, "cores =  [{}]", list(layout.cells.keys().filter_map(|key| key.last()), folded));
        line!(out, "sockets =  [{}]", list(layout.packages.iter(), folded));
        let packages: Vec<u32> = layout.packages.iter().copied().collect();
        for across in packages.chunks(SOCKETS_ACROSS) {
            line!(out);
            out.push_str(&layout.block(across, topology, folded));
        }
    }
    if !layout.unplaced.is_empty() {
        let cpus = if layout.unplaced.len() == 1 { "CPU" } else { "CPUs" };
        line!(out, "core or socket unknown: {cpus} {}", layout.unplaced);
    }
    out
}

fn list<'a>(numbers: impl Iterator<Item = &'a u32>, folded: bool) -> String {
    let numbers: BTreeSet<u32> = numbers.copied().collect();
    if folded { ranges(numbers) } else { joined(numbers) }
}

fn joined(numbers: impl IntoIterator<Item = u32>) -> String {
    numbers.into_iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

impl Layout {
    /// Uses the shortest core name that is unique.
    fn of(topology: &Topology) -> Self {
        const NAMES: [&[&str]; 3] = [&["Core"], &["Die", "Core"], &["Die", "Cluster", "Core"]];
        let layouts = NAMES.map(|words| Self::with(topology, words));
        let [by_core, by_die, by_cluster] = layouts;
        match (by_core.is_distinct(topology), by_die.is_distinct(topology)) {
            (true, _) => by_core,
            (false, true) => by_die,
            (false, false) => by_cluster,
        }
    }

    fn with(topology: &Topology, words: &'static [&'static str]) -> Self {
        let mut layout = Self {
            words,
            packages: BTreeSet::new(),
            cells: BTreeMap::new(),
            unplaced: CpuSet::new(),
        };
        for cpu in &topology.cpus {
            let (Some(package), Some(key)) = (cpu.package, core_key(cpu, words)) else {
                layout.unplaced.insert(cpu.cpu);
                continue;
            };
            layout.packages.insert(package);
            layout.cells.entry(key).or_default().entry(package).or_default().insert(cpu.cpu);
        }
        layout
    }

    /// Whether all CPUs of each cell are siblings of one core, as far as siblings are known.
    fn is_distinct(&self, topology: &Topology) -> bool {
        let mut cells = self.cells.values().flat_map(BTreeMap::values);
        cells.all(|cpus| {
            let siblings = cpus.iter().filter_map(|cpu| topology.cpu(cpu)).map(|cpu| &cpu.siblings);
            siblings
                .filter(|siblings| !siblings.is_empty())
                .all(|siblings| cpus.is_subset(siblings))
        })
    }

    /// The rows for some of the packages.
    fn block(&self, packages: &[u32], topology: &Topology, folded: bool) -> String {
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        let cores: Vec<Row> = self
            .cells
            .iter()
            .filter(|(_, row)| packages.iter().any(|package| row.contains_key(package)))
            .collect();
        let runs = cores.chunk_by(|a, b| folded && follows(topology, a, b));
        for run in runs {
            let cells = packages.iter().map(|package| match run {
                [(_, row)] => row.get(package).map_or_else(String::new, cell_of_one_core),
                _ => cell_of_cores(run.iter().filter_map(|(_, row)| row.get(package))),
            });
            rows.push((self.label(run), cells.collect()));
        }
        let first = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        let widths = packages.iter().enumerate().map(|(i, package)| {
            let cells = rows.iter().filter_map(|(_, cells)| cells.get(i)).map(String::len);
            cells.max().unwrap_or(0).max(socket(*package).len())
        });
        let widths: Vec<usize> = widths.collect();

        let mut out = String::new();
        let sockets: Vec<String> = packages.iter().map(|package| socket(*package)).collect();
        let rule: Vec<String> = sockets.iter().map(|name| "-".repeat(name.len())).collect();
        push_row(&mut out, "", first, &sockets, &widths);
        push_row(&mut out, "", first, &rule, &widths);
        for (label, cells) in &rows {
            push_row(&mut out, label, first, cells, &widths);
        }
        out
    }

    /// `Core 3`, `Die 1 Core 3`, or `Core 0-63` for a run.
    fn label(&self, run: &[Row]) -> String {
        let parts = self.words.iter().enumerate().map(|(i, word)| {
            let numbers = run.iter().filter_map(|(key, _)| key.get(i).copied());
            format!("{word} {}", ranges(numbers))
        });
        parts.collect::<Vec<_>>().join(" ")
    }
}

fn socket(package: u32) -> String {
    format!("Socket {package}")
}

fn core_key(cpu: &Cpu, words: &[&str]) -> Option<CoreKey> {
    let part = |word: &&str| match *word {
        "Die" => Some(cpu.die.unwrap_or(0)),
        "Cluster" => Some(cpu.cluster.unwrap_or(0)),
        _ => cpu.core,
    };
    words.iter().map(part).collect()
}

/// Whether a row continues the one before: the same packages and nodes, and each CPU is one more.
fn follows(topology: &Topology, a: &Row, b: &Row) -> bool {
    let place = |row: &Row| row.0.split_last().map(|(_, place)| place.to_vec());
    let counts_up = |(a, b): (&CpuSet, &CpuSet)| {
        a.len() == b.len()
            && a.iter().zip(b.iter()).all(|(a, b)| a.0.checked_add(1) == Some(b.0))
            && topology.nodes_of(a) == topology.nodes_of(b)
    };
    place(a) == place(b)
        && a.1.keys().eq(b.1.keys())
        && a.1.values().zip(b.1.values()).all(counts_up)
}

fn cell_of_one_core(cpus: &CpuSet) -> String {
    format!("[{}]", joined(cpus.iter().map(|cpu| cpu.0)))
}

/// The CPUs of several cores, a range for each SMT thread: `[0-63, 512-575]`.
fn cell_of_cores<'a>(cores: impl Iterator<Item = &'a CpuSet>) -> String {
    let mut threads: Vec<Vec<u32>> = Vec::new();
    for cpus in cores {
        for (thread, cpu) in cpus.iter().enumerate() {
            if threads.len() <= thread {
                threads.push(Vec::new());
            }
            threads[thread].push(cpu.0);
        }
    }
    if threads.is_empty() {
        return String::new();
    }
    format!("[{}]", threads.into_iter().map(ranges).collect::<Vec<_>>().join(", "))
}

fn push_row(out: &mut String, label: &str, first: usize, cells: &[String], widths: &[usize]) {
    let mut row = format!("{label:first$}");
    for (cell, width) in cells.iter().zip(widths) {
        row.push_str(&format!("  {cell:width$}"));
    }
    line!(*out, "{}", row.trim_end());
}
