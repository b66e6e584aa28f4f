//! Sums samples up: by process, source, node and region, and by cache line with the code on both sides.
//!
//! Input: samples, the node of each physical address, and each process's mappings and symbols. Output: [`LoadSamples`].
//! Memory is bounded: by limits on processes, regions, lines, and instructions of a line.

use super::addresses::Addresses;
use super::data_src::DataSource;
use super::record::Sample;
use nearpath_model::{
    CodeOfLine, CpuId, CpuSet, LoadSamples, LoadSource, ProcessLoads, RegionLoads, SharedLine,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of processes.
const PROCESSES: usize = 4096;
/// Maximum number of regions of a process; the others count as `other`.
const REGIONS: usize = 256;
/// Maximum number of lines of which accesses are kept.
const LINES: usize = 1 << 16;
/// Maximum number of instructions kept of a line.
const INSTRUCTIONS: usize = 64;
/// Lines, and functions of each side, in the result.
const SHOWN: usize = 20;
/// Bytes of a cache line on the machines that have such PMUs.
const LINE: u64 = 64;

/// Samples, summed up.
#[derive(Debug, Default)]
pub struct Sums {
    result: LoadSamples,
    processes: HashMap<u32, ProcessLoads>,
    lines: HashMap<(u32, u64), Line>,
}

/// What is known of a line.
#[derive(Debug, Default)]
struct Line {
    hitm: u64,
    remote_hitm: u64,
    /// By instruction.
    loads: BTreeMap<u64, Code>,
    stores: BTreeMap<u64, Code>,
}

/// An instruction that uses a line.
#[derive(Debug, Default, Clone)]
struct Code {
    samples: u64,
    offsets: BTreeSet<u8>,
    cpus: CpuSet,
}

impl Sums {
    /// Those of a PMU.
    pub fn new(pmu: &str) -> Self {
        let result = LoadSamples { pmu: pmu.to_owned(), ..LoadSamples::default() };
        Self { result, ..Self::default() }
    }

    /// Counts samples that were lost.
    pub fn lost(&mut self, count: u64) {
        self.result.lost = self.result.lost.saturating_add(count);
    }

    /// Counts a pause of sampling.
    pub fn throttled(&mut self) {
        self.result.throttled += 1;
    }

    /// Adds a sample. Those that are neither loads nor stores (IBS samples any operation) do not count.
    pub fn add(&mut self, sample: &Sample, addresses: &mut Addresses<'_>) {
        let source = DataSource(sample.data_src);
        if source.is_load() {
            self.result.loads += 1;
            self.load(sample, source, addresses);
        }
        if source.is_store() {
            self.result.stores += 1;
        }
        self.line(sample, source);
    }

    fn load(&mut self, sample: &Sample, source: DataSource, addresses: &mut Addresses<'_>) {
        if self.processes.len() >= PROCESSES && !self.processes.contains_key(&sample.pid) {
            self.result.not_counted += 1;
            return;
        }
        let node = addresses.node(sample.physical);
        let region = addresses.region(sample.pid, sample.address);
        let source = source.source();
        let process = self.processes.entry(sample.pid).or_default();
        (process.pid, process.loads) = (sample.pid, process.loads + 1);
        *process.sources.entry(source).or_default() += 1;
        let known = process.regions.iter().position(|its| its.name == region);
        let at = known.unwrap_or_else(|| {
            let full = process.regions.len() >= REGIONS;
            let name = if full { "other".to_owned() } else { region };
            let other = process.regions.iter().position(|its| full && its.name == name);
            other.unwrap_or_else(|| {
                process.regions.push(RegionLoads { name, ..RegionLoads::default() });
                process.regions.len() - 1
            })
        });
        let Some(region) = process.regions.get_mut(at) else { return };
        region.loads += 1;
        region.remote += u64::from(source.is_remote());
        if let Some(node) = node {
            *process.nodes.entry(node).or_default() += 1;
            *region.nodes.entry(node).or_default() += 1;
        }
    }

    /// Keeps who uses which line: stores of it, and loads that found it modified elsewhere.
    fn line(&mut self, sample: &Sample, source: DataSource) {
        let is_hitm = source.is_load() && source.is_hitm();
        if sample.address == 0 || !(is_hitm || source.is_store()) {
            return;
        }
        let key = (sample.pid, sample.address & !(LINE - 1));
        if self.lines.len() >= LINES && !self.lines.contains_key(&key) {
            return;
        }
        let line = self.lines.entry(key).or_default();
        if is_hitm {
            line.hitm += 1;
            line.remote_hitm += u64::from(source.source().is_remote());
        }
        for (is_used, side) in [(is_hitm, &mut line.loads), (source.is_store(), &mut line.stores)] {
            if !is_used || (side.len() >= INSTRUCTIONS && !side.contains_key(&sample.ip)) {
                continue;
            }
            let code = side.entry(sample.ip).or_default();
            code.samples += 1;
            code.cpus.insert(CpuId(sample.cpu));
            code.offsets.extend(u8::try_from(sample.address % LINE));
        }
    }

    /// What was sampled so far.
    pub fn result(&self, addresses: &mut Addresses<'_>) -> LoadSamples {
        let mut result = self.result.clone();
        result.processes = self.processes.values().cloned().collect();
        for process in &mut result.processes {
            process.comm = addresses.comm(process.pid);
            let of = |which: &dyn Fn(LoadSource) -> bool| -> u64 {
                process.sources.iter().filter(|(its, _)| which(**its)).map(|(_, n)| n).sum()
            };
            let known = of(&|source| source != LoadSource::Unknown);
            let remote = of(&LoadSource::is_remote);
            process.remote_share = (known > 0).then(|| remote as f64 / known as f64);
            process.regions.sort_by(|a, b| b.loads.cmp(&a.loads).then(a.name.cmp(&b.name)));
            process.regions.truncate(SHOWN);
        }
        let remote = |process: &ProcessLoads| -> u64 {
            process.sources.iter().filter(|(its, _)| its.is_remote()).map(|(_, n)| n).sum()
        };
        result.processes.sort_by_key(|its| (Reverse(remote(its)), Reverse(its.loads), its.pid));
        let mut lines: Vec<_> = self.lines.iter().filter(|(_, line)| line.hitm > 0).collect();
        lines.sort_by_key(|(key, line)| (Reverse(line.hitm), **key));
        let shown = lines.into_iter().take(SHOWN);
        result.shared_lines = shown.map(|(key, line)| line.shown(*key, addresses)).collect();
        result
    }
}

impl Line {
    fn shown(&self, (pid, address): (u32, u64), addresses: &mut Addresses<'_>) -> SharedLine {
        let offsets = |side: &BTreeMap<u64, Code>| -> BTreeSet<u8> {
            side.values().flat_map(|code| code.offsets.iter().copied()).collect()
        };
        let (read, written) = (offsets(&self.loads), offsets(&self.stores));
        SharedLine {
            address,
            pid,
            region: addresses.region(pid, address),
            hitm: self.hitm,
            remote_hitm: self.remote_hitm,
            is_false: (!written.is_empty()).then(|| read.is_disjoint(&written)),
            readers: functions(&self.loads, pid, addresses),
            writers: functions(&self.stores, pid, addresses),
        }
    }
}

/// The functions of instructions, most samples first.
fn functions(
    side: &BTreeMap<u64, Code>,
    pid: u32,
    addresses: &mut Addresses<'_>,
) -> Vec<CodeOfLine> {
    let mut functions: BTreeMap<String, Code> = BTreeMap::new();
    for (ip, code) in side {
        let function = functions.entry(addresses.function(pid, *ip)).or_default();
        function.samples += code.samples;
        function.offsets.extend(&code.offsets);
        function.cpus = function.cpus.union(&code.cpus);
    }
    let mut all: Vec<CodeOfLine> = functions
        .into_iter()
        .map(|(function, code)| CodeOfLine {
            function,
            samples: code.samples,
            offsets: code.offsets.into_iter().collect(),
            cpus: code.cpus.to_string(),
        })
        .collect();
    all.sort_by(|a, b| b.samples.cmp(&a.samples).then(a.function.cmp(&b.function)));
    all.truncate(SHOWN);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_host::Root;
    use nearpath_model::NodeId;
    use std::fs;

    /// A load, and how the kernel says it: Skylake's local memory, remote memory, remote HITM; a store.
    const LOCAL: u64 = 2 | (0x80 | 2) << 5 | 4 << 19 | 0xd << 33;
    const REMOTE: u64 = 2 | (0x100 | 2) << 5 | 4 << 19 | 0xd << 33 | 1 << 37;
    const HITM: u64 = 2 | 0x10 << 19 | 0xb << 33 | 1 << 37;
    const STORE: u64 = 4 | (8 | 2) << 5;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        // Blocks of 128 MiB: 0 on node 0, 1 on node 1.
        write("sys/devices/system/memory/block_size_bytes", "8000000\n");
        write("sys/devices/system/node/node0/memory0/state", "online\n");
        write("sys/devices/system/node/node1/memory1/state", "online\n");
        write("proc/70/comm", "app\n");
        write(
            "proc/70/maps",
            "400000-500000 r-xp 00000000 08:01 7 /usr/bin/app\n\
             600000-700000 rw-p 00000000 00:00 0 [heap]\n\
             7f0000000000-7f0000100000 rw-s 00000000 00:17 9 /dev/shm/ring\n\
             7f0000200000-7f0000300000 rw-p 00000000 00:00 0 \n",
        );
        write("proc/kallsyms", "ffffffff81000000 T tcp_v4_rcv\n");
        dir
    }

    fn sample(ip: u64, address: u64, cpu: u32, data_src: u64, physical: u64) -> Sample {
        Sample { ip, pid: 70, tid: 70, address, cpu, weight: 9, data_src, physical }
    }

    #[test]
    fn loads_have_shares_by_source_node_and_region() {
        let dir = tree();
        let root = Root::tree(dir.path()).unwrap();
        let (mut addresses, mut sums) = (Addresses::new(&root), Sums::new("cpu"));
        for _ in 0..3 {
            sums.add(&sample(0x40_0010, 0x60_0000, 0, LOCAL, 0x1000), &mut addresses);
        }
        sums.add(&sample(0x40_0010, 0x7f00_0000_0040, 0, REMOTE, 0x800_0040), &mut addresses);
        // An operation without memory, and a source that is not reported.
        sums.add(&sample(0x40_0010, 0, 0, 1, 0), &mut addresses);
        sums.add(&sample(0xffff_ffff_8100_0010, 0xffff_8880_0000_0000, 0, 2, 0), &mut addresses);
        sums.lost(5);
        let result = sums.result(&mut addresses);
        assert_eq!((result.loads, result.stores, result.lost), (5, 0, 5));
        let process = &result.processes[0];
        assert_eq!((process.comm.as_deref(), process.loads), (Some("app"), 5));
        assert_eq!(process.remote_share, Some(0.25));
        assert_eq!(process.nodes, [(NodeId(0), 3), (NodeId(1), 1)].into());
        let regions: Vec<_> =
            process.regions.iter().map(|r| (r.name.as_str(), r.loads, r.remote)).collect();
        assert_eq!(regions, [("[heap]", 3, 0), ("/dev/shm/ring", 1, 1), ("kernel", 1, 0)]);
        assert!(result.shared_lines.is_empty());
    }

    #[test]
    fn a_line_has_the_functions_on_both_sides() {
        let dir = tree();
        let root = Root::tree(dir.path()).unwrap();
        let (mut addresses, mut sums) = (Addresses::new(&root), Sums::new("cpu"));
        let line = 0x7f00_0020_0000;
        for _ in 0..4 {
            sums.add(&sample(0x40_0100, line + 8, 0, HITM, 0), &mut addresses);
            sums.add(&sample(0x40_0200, line + 32, 2, STORE, 0), &mut addresses);
        }
        sums.add(&sample(0xffff_ffff_8100_0010, line + 8, 1, HITM, 0), &mut addresses);
        // Another line, which one core reads where the other writes.
        sums.add(&sample(0x40_0100, line + 64, 0, HITM, 0), &mut addresses);
        sums.add(&sample(0x40_0200, line + 64, 2, STORE, 0), &mut addresses);
        // Written, and never read modified.
        sums.add(&sample(0x40_0200, line + 128, 2, STORE, 0), &mut addresses);
        let result = sums.result(&mut addresses);
        let [first, second] = &result.shared_lines[..] else { panic!("{result:?}") };
        assert_eq!((first.address, first.hitm, first.remote_hitm), (line, 5, 5));
        assert_eq!((first.is_false, second.is_false), (Some(true), Some(false)));
        assert_eq!(first.region, "anonymous");
        let code = |side: &[CodeOfLine]| -> Vec<(String, u64, Vec<u8>, String)> {
            side.iter()
                .map(|c| (c.function.clone(), c.samples, c.offsets.clone(), c.cpus.clone()))
                .collect()
        };
        assert_eq!(
            code(&first.readers),
            [
                ("app+0x100".to_owned(), 4, vec![8], "0".to_owned()),
                ("tcp_v4_rcv".to_owned(), 1, vec![8], "1".to_owned())
            ]
        );
        assert_eq!(code(&first.writers), [("app+0x200".to_owned(), 4, vec![32], "2".to_owned())]);
    }

    #[test]
    fn memory_is_bounded() {
        let dir = tree();
        let root = Root::tree(dir.path()).unwrap();
        let (mut addresses, mut sums) = (Addresses::new(&root), Sums::new("cpu"));
        for pid in 0..PROCESSES as u32 + 10 {
            sums.add(&Sample { pid, data_src: LOCAL, ..Sample::default() }, &mut addresses);
        }
        let result = sums.result(&mut addresses);
        assert_eq!((result.processes.len(), result.not_counted), (PROCESSES, 10));
    }
}
