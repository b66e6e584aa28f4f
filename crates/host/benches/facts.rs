//! The cost of reading all facts of a large host: 1,024 CPUs on 16 nodes and 4 NICs with 128 queues, from a
//! tree in memory. Goal: under 200ms and 50 MB.
//!
//! `cargo bench -p nearpath-host --bench facts` prints the best and the median of 20 reads, and the peak memory
//! of a fresh process that reads once. With `-- TREE` it reads that tree.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use nearpath_host::{Root, Wanted};
use nearpath_model::Host;
use nearpath_testing::trees::{Layout, Machine, Nic};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const RUNS: usize = 20;

/// Passes the tree to the process whose memory is measured.
const READ_ONCE: &str = "NEARPATH_BENCH_READ_ONCE";

fn main() {
    if let Some(tree) = std::env::var_os(READ_ONCE) {
        return read_once(Path::new(&tree));
    }
    // Cargo adds `--bench`.
    if let Some(tree) = std::env::args().skip(1).find(|arg| !arg.starts_with("--")) {
        return measure(Path::new(&tree));
    }
    let started = Instant::now();
    let tree = big_host().write();
    println!("tree written in {:.1} s", started.elapsed().as_secs_f64());
    measure(tree.path());
}

fn big_host() -> Machine {
    let layout = Layout { packages: 4, nodes: 4, llcs: 4, cores: 8, threads: 2 };
    (0..4u32).fold(Machine::regular(layout), |machine, i| {
        let (name, bus) = (format!("eth{i}"), format!("0000:{:02x}:00.0", 0x10 + i));
        let nic = Nic::pci(&name, "mlx5_core", &bus).on_node(i64::from(i) * 4);
        machine.nic(nic.queues(128, 100 + i * 128))
    })
}

fn measure(tree: &Path) {
    let root = Root::tree(tree).expect("a tree");
    let mut times: Vec<Duration> = (0..RUNS).map(|_| read(&root).1).collect();
    times.sort_unstable();
    let (host, _) = read(&root);
    println!(
        "{} CPUs, {} nodes, {} NICs, {} interrupts, {} unknown",
        host.topology.cpus.len(),
        host.topology.nodes.len(),
        host.nics.len(),
        host.irqs.len(),
        host.unknown.len(),
    );
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!("best {:.1} ms, median {:.1} ms of {RUNS}", ms(times[0]), ms(times[RUNS / 2]));
    let this = std::env::current_exe().expect("this program");
    let memory = Command::new(this).env(READ_ONCE, tree).output().expect("this program");
    print!("{}", String::from_utf8_lossy(&memory.stdout));
}

fn read(root: &Root) -> (Host, Duration) {
    let started = Instant::now();
    let host = nearpath_host::read(root, &Wanted::default()).expect("a host");
    (host, started.elapsed())
}

/// Reads the host and prints the peak memory of this process.
fn read_once(tree: &Path) {
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.map_or("unknown", str::trim).to_owned()
    };
    let before = peak();
    let root = Root::tree(tree).expect("a tree");
    let (host, _) = read(&root);
    println!("peak memory {} (before reading: {before})", peak());
    drop(host);
}
