//! `nearpath show memory` and `measure memory` on this kernel: the bytes of this process, which maps memory of each kind,
//! against move_pages(2) and numastat(8); pages moved, against the kernel's own count; DAMON's estimates, against its
//! regions and memory that is touched; and the time that reading takes.

#![allow(clippy::print_stdout, reason = "the figures are worth reading")]

use nearpath_model::memory::{MemoryMeasurement, NodeBytes, ProcessPlacement};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");
const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const POOL: &str = "/proc/sys/vm/nr_hugepages";

/// Mapped memory, every page of which is touched.
struct Mapped {
    start: *mut u8,
    length: usize,
}

impl Mapped {
    /// Maps it; `None` if the kernel refuses.
    fn new(length: usize, flags: i32, file: i32, advice: Option<i32>) -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        if let Some(advice) = advice {
            // SAFETY: the range was just mapped.
            unsafe { libc::madvise(start, length, advice) };
        }
        let mapped = Self { start: start.cast(), length };
        for at in (0..length).step_by(PAGE) {
            // SAFETY: within the mapping, which nobody else uses.
            unsafe { mapped.start.add(at).write_volatile(1) };
        }
        Some(mapped)
    }

    /// Bytes that move_pages(2) finds on node 0.
    fn on_node_0(&self, step: usize) -> u64 {
        let count = self.length / step;
        // SAFETY: pointers within the mapping, of which only the address is used.
        let pages: Vec<*mut u8> = (0..count).map(|n| unsafe { self.start.add(n * step) }).collect();
        let mut status = vec![-1i32; count];
        // SAFETY: both arrays have `count` elements; no nodes are given, so nothing moves.
        let error = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                count,
                pages.as_ptr(),
                std::ptr::null::<i32>(),
                status.as_mut_ptr(),
                0,
            )
        };
        assert_eq!(error, 0, "{}", std::io::Error::last_os_error());
        (status.iter().filter(|&&node| node == 0).count() * step) as u64
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not used after this.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A hugetlb pool with two pages more than before, as long as this lives.
struct Pool(String);

impl Pool {
    fn new() -> Option<Self> {
        let before = std::fs::read_to_string(POOL).ok()?;
        let wanted = before.trim().parse::<u64>().ok()? + 2;
        let pool = Self(before);
        std::fs::write(POOL, wanted.to_string()).ok()?;
        (std::fs::read_to_string(POOL).ok()?.trim() == wanted.to_string()).then_some(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::write(POOL, &self.0);
    }
}

fn json(args: &[&str]) -> MemoryMeasurement {
    let output = Command::new(NEARPATH).args(args).arg("--json").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn shown(pid: u32) -> ProcessPlacement {
    let mut m = json(&["show", "memory", "--pid", &pid.to_string()]);
    assert_eq!(m.processes.len(), 1, "{m:?}");
    m.processes.remove(0)
}

fn sum(process: &ProcessPlacement, of: fn(&NodeBytes) -> u64) -> u64 {
    process.nodes.values().map(of).sum()
}

/// The sums of `numastat -p` in MiB: huge, and all.
fn numastat(pid: u32) -> (f64, f64) {
    let output = Command::new("numastat").args(["-p", &pid.to_string()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line.split_whitespace().last().unwrap().parse::<f64>().unwrap()
    };
    (row("Huge"), row("Total"))
}

/// A process that does nothing, and ends with this one.
struct Idle(Child);

impl Idle {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_kind_of_memory_is_counted_to_the_page() {
    if !nearpath_testing::require_root() || !nearpath_testing::require_program("numastat") {
        return;
    }
    const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let pid = std::process::id();
    // What is mapped already is read now, not while the test counts, by this test or by one beside it.
    // SAFETY: neither call has a pointer.
    unsafe {
        assert_eq!(libc::mlockall(libc::MCL_CURRENT), 0);
        libc::munlockall();
    }
    let before = shown(pid);
    let pool = Pool::new();
    let small = Mapped::new(12 * MIB, PRIVATE, -1, Some(libc::MADV_NOHUGEPAGE)).unwrap();
    let thp = Mapped::new(8 * MIB, PRIVATE, -1, Some(libc::MADV_HUGEPAGE)).unwrap();
    let shared = Mapped::new(5 * MIB, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, None).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(dir.path().join("x"))
        .unwrap();
    file.set_len(3 * MIB as u64).unwrap();
    let of_file = Mapped::new(3 * MIB, libc::MAP_SHARED, file.as_raw_fd(), None).unwrap();
    let huge =
        pool.as_ref().and_then(|_| Mapped::new(4 * MIB, PRIVATE | libc::MAP_HUGETLB, -1, None));
    let after = shown(pid);
    let rise = |of: fn(&NodeBytes) -> u64| sum(&after, of) - sum(&before, of);
    assert_eq!(rise(|node| node.shared_bytes), shared.on_node_0(PAGE), "{after:?}");
    assert_eq!(shared.on_node_0(PAGE), 5 * MIB as u64);
    match &huge {
        Some(huge) => {
            assert_eq!(rise(|node| node.hugetlb_bytes), huge.on_node_0(2 * MIB));
            assert_eq!(after.hugetlb["2MiB"].values().sum::<u64>(), 4 * MIB as u64);
            assert_eq!(after.dma_mapped, None, "hugetlb pages may be mapped for a device");
        }
        None => nearpath_testing::skip("no hugepages could be reserved"),
    }
    // This process allocates a little besides, for the results.
    let slack = MIB as u64;
    let anon = small.on_node_0(PAGE) + thp.on_node_0(PAGE);
    let (anon_rise, file_rise) = (rise(|node| node.anon_bytes), rise(|node| node.file_bytes));
    assert!(anon_rise >= anon && anon_rise < anon + slack, "{anon} {anon_rise}");
    let files = of_file.on_node_0(PAGE);
    assert!(file_rise >= files && file_rise < files + slack, "{files} {file_rise}");

    // Of a process that does not change meanwhile, numastat has the same sums; it rounds to hundredths of a MiB.
    let idle = Idle::new();
    let pid = idle.0.id();
    nearpath_testing::wait_for("the program to be loaded", || {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (comm == "sleep\n").then_some(())
    });
    // SAFETY: a signal to a child of this process.
    unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
    let (_, all) = numastat(pid);
    let of_idle = shown(pid);
    assert!((of_idle.total() as f64 / MIB as f64 - all).abs() <= 0.0051, "{all} {of_idle:?}");
}

#[test]
fn pages_moved_are_as_many_as_the_kernel_counts() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    // Where memory has few other holes, compaction has nothing to do for a small one.
    for length in [64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB] {
        let m = measured_while_compacting(length);
        let moved: u64 = m.moves.iter().map(|of| of.pages.moved).sum();
        let failed: u64 = m.moves.iter().map(|of| of.pages.failed).sum();
        // Others may compact as well, and the kernel counts only the sum of all.
        let counted = (m.vmstat["pgmigrate_success"], m.vmstat["pgmigrate_fail"]);
        assert_eq!((moved, failed), counted, "{:?}", m.moves);
        let own = m.moves.iter().filter(|of| of.by_pid == std::process::id());
        if own.filter(|of| of.reason == "compaction").any(|of| of.pages.moved > 0) {
            return;
        }
    }
    nearpath_testing::skip("compaction moves no page here");
}

/// Measures while this process requests compaction, and every other page of a mapping of its own is free.
fn measured_while_compacting(length: usize) -> MemoryMeasurement {
    let mut child = Command::new(NEARPATH)
        .args(["measure", "memory", "--for", "1h", "--json", "--pid"])
        .arg(std::process::id().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.contains("measuring for"), "{said}");
    // Holes, which compaction fills.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mapped = Mapped::new(length, flags, -1, Some(libc::MADV_NOHUGEPAGE)).unwrap();
    for at in (0..length).step_by(2 * PAGE) {
        // SAFETY: within the mapping; the page is zero afterwards.
        unsafe { libc::madvise(mapped.start.add(at).cast(), PAGE, libc::MADV_DONTNEED) };
    }
    File::options()
        .write(true)
        .open("/proc/sys/vm/compact_memory")
        .and_then(|mut file| file.write_all(b"1"))
        .unwrap();
    // SAFETY: a signal to a child of this process.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    serde_json::from_str(&text).unwrap()
}

/// A kdamond of DAMON's sysfs that monitors physical memory, with the addresses that it was given.
struct RunningDamon {
    pid: u32,
    interval: Duration,
    regions: Vec<std::ops::Range<u64>>,
}

fn running_damon() -> Option<RunningDamon> {
    let number = |path: String| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    for at in 0..8 {
        let folder = format!("/sys/kernel/mm/damon/admin/kdamonds/{at}");
        let context = format!("{folder}/contexts/0");
        let is = |file: String, wanted: &str| {
            std::fs::read_to_string(file).is_ok_and(|text| text.trim() == wanted)
        };
        if is(format!("{folder}/state"), "on") && is(format!("{context}/operations"), "paddr") {
            let interval = number(format!("{context}/monitoring_attrs/intervals/aggr_us"))?;
            let regions = format!("{context}/targets/0/regions");
            let unit = number(format!("{context}/addr_unit")).unwrap_or(1);
            let range = |region| {
                let address = |file| Some(unit * number(format!("{regions}/{region}/{file}"))?);
                Some(address("start")?..address("end")?)
            };
            let regions =
                (0..number(format!("{regions}/nr_regions"))?).map(range).collect::<Option<_>>()?;
            return Some(RunningDamon {
                pid: number(format!("{folder}/pid"))?.try_into().ok()?,
                interval: Duration::from_micros(interval),
                regions,
            });
        }
    }
    None
}

/// Bytes of a mapping whose pages are in these physical ranges (Documentation/admin-guide/mm/pagemap.rst).
fn within(mapped: &Mapped, ranges: &[std::ops::Range<u64>]) -> usize {
    let mut words = vec![0; 8 * mapped.length / PAGE];
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let at = 8 * (mapped.start as u64 / PAGE as u64);
    std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut words, at).unwrap();
    let pages = words.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    let is_in = |frame: u64| ranges.iter().any(|range| range.contains(&(frame * PAGE as u64)));
    pages.filter(|page| page >> 63 == 1 && is_in(page & ((1 << 55) - 1))).count() * PAGE
}

/// The judges are the regions that DAMON was given, and memory that is written to all the time.
#[test]
fn what_damon_finds_is_all_of_its_regions_and_what_is_touched() {
    if !nearpath_testing::require_lengthy() || !nearpath_testing::require_bpf() {
        return;
    }
    let Some(damon) = running_damon() else {
        nearpath_testing::skip("DAMON does not run here");
        return;
    };
    let interval = damon.interval;
    if interval > Duration::from_secs(10) {
        nearpath_testing::skip("DAMON's aggregation interval is too long");
        return;
    }
    const TOUCHED: usize = 512 * MIB;
    let mapped =
        Mapped::new(TOUCHED, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, None).expect("memory");
    // The interval in which it began to be touched is not the last one.
    let lasts = format!("{}ms", (3 * interval).as_millis() + 500);
    let mut child = Command::new(NEARPATH)
        .args(["measure", "memory", "--json", "--for", &lasts])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut text = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut json = String::new();
        text.read_to_string(&mut json).map(|_| json)
    });
    while child.try_wait().unwrap().is_none() {
        for at in (0..TOUCHED).step_by(PAGE) {
            // SAFETY: within the mapping, which nobody else uses.
            unsafe { mapped.start.add(at).write_volatile(2) };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let measured: MemoryMeasurement =
        serde_json::from_str(&reader.join().unwrap().unwrap()).unwrap();
    let after = running_damon().map(|damon| damon.regions);
    if after.as_ref() != Some(&damon.regions) {
        nearpath_testing::skip("DAMON was given other regions meanwhile");
        return;
    }
    let estimates = measured.accesses.expect("estimates");
    let kdamond = estimates.kdamonds.iter().find(|kdamond| kdamond.pid == damon.pid).unwrap();
    let [target] = &*kdamond.targets else { panic!("{kdamond:?}") };
    assert!(target.aggregations >= 2, "{target:?}");
    let bytes: u64 = damon.regions.iter().map(|range| range.end - range.start).sum();
    assert_eq!(target.all.accessed_bytes + target.all.idle_bytes, bytes, "{target:?}");
    assert_eq!(estimates.lost, 0);
    // A check looks at one page of a region: not each region of the memory is found in each interval.
    let (accessed, touched) = (target.all.accessed_bytes, within(&mapped, &damon.regions));
    println!("{accessed} bytes found to be accessed, {touched} touched");
    assert!(accessed >= touched as u64 / 2, "{accessed} of {touched} bytes: {target:?}");
}

#[test]
fn a_process_that_ends_meanwhile_is_left_out() {
    if !nearpath_testing::require_root() {
        return;
    }
    let (idle, other) = (Idle::new(), Idle::new());
    let mut child = Command::new(NEARPATH)
        .args(["measure", "memory", "--for", "700ms", "--json", "--pid"])
        .arg(idle.0.id().to_string())
        .arg("--pid")
        .arg(other.0.id().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let gone = idle.0.id();
    drop(idle);
    let m: MemoryMeasurement = serde_json::from_reader(child.stdout.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    let pids: Vec<u32> = m.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [other.0.id()]);
    assert!(!m.not_available.iter().any(|n| n.what.contains(&gone.to_string())), "{m:?}");
}

/// The fastest of five runs.
fn fastest(mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let began = Instant::now();
        run();
        began.elapsed()
    };
    (0..5).map(time).min().unwrap()
}

#[test]
#[ignore = "a benchmark: make bench-memory"]
fn ten_thousand_mappings_and_a_thousand_processes() {
    assert!(nearpath_testing::require_root() && nearpath_testing::require_program("numastat"));
    // Every other page may not be written to, so that neighbours are not merged.
    let length = 10_000 * PAGE;
    let mapped = Mapped::new(
        length,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        Some(libc::MADV_NOHUGEPAGE),
    )
    .unwrap();
    for at in (0..length).step_by(2 * PAGE) {
        // SAFETY: within the mapping.
        let error = unsafe { libc::mprotect(mapped.start.add(at).cast(), PAGE, libc::PROT_READ) };
        assert_eq!(error, 0);
    }
    let pid = std::process::id().to_string();
    let mut read = f64::INFINITY;
    let mut mappings = 0;
    let ours = fastest(|| {
        let m = json(&["show", "memory", "--pid", &pid]);
        mappings = m.cost.mappings;
        read = read.min((m.cost.numa_maps_ns + m.cost.other_ns) as f64 / 1e6);
    });
    let theirs = fastest(|| {
        numastat(std::process::id());
    });
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!(
        "{mappings} mappings: read in {read:.1} ms; the whole command {ours:.1?}, numastat -p {theirs:.1?}, ratio {ratio:.2}"
    );
    assert!(mappings >= 10_000);
    assert!(read < 100.0, "{read} ms");

    let children: Vec<Idle> = (0..1000).map(|_| Idle::new()).collect();
    let ours = fastest(|| {
        let m = json(&["show", "memory", "--comm", "sleep"]);
        assert!(m.processes.len() >= children.len(), "{}", m.processes.len());
    });
    let theirs = fastest(|| {
        let output = Command::new("numastat").args(["-p", "sleep"]).output().unwrap();
        assert!(output.status.success());
    });
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!("1,000 processes: {ours:.1?}, numastat -p {theirs:.1?}, ratio {ratio:.2}");
    assert!(ours < Duration::from_secs(2));
}
