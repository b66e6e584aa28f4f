//! On which CPU the packets of each connection are processed, and whether that CPU, or the reader's, is late.
//!
//! Input: an iterator over the sockets (`bpf/tcp_cpus.bpf.c`), `/proc/stat`, and how long threads waited for a CPU
//! (`/proc/PID/schedstat`). Output: the CPU and queue of each connection; the share of time in which a CPU had
//! no time for packets, and in which a process waited for a CPU. Nothing of this costs anything per packet.

use crate::InstrumentError;
use crate::kernel::{Kernel, has_btf, listening, may_load, open, refused};
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{Iter, Link};
use nearpath_host::{Root, TcpFilter, read_cpu_time, run_delays, softirq_threads};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read};
use std::time::{Duration, Instant};

#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/tcp_cpus.skel.rs"));
}

/// `struct arrival`.
const RECORD_BYTES: usize = 32;
const NONE: u32 = u32::MAX;
/// From this share of its time in interrupts and softirqs, or with ksoftirqd waiting, packets wait for a CPU.
const LATE: f64 = 0.8;
/// From this share of its time waiting for a CPU, a process is a late reader.
const READER_LATE: f64 = 0.5;
/// Processes whose waiting is observed: each is a file per thread.
const READERS_MAX: usize = 64;

/// Shortest time over which a CPU or process is judged: `/proc/stat` counts in ticks of 10 ms.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// Where the last packet of a connection arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Address of the socket, by which programs know it.
    pub sock: u64,
    /// The CPU that processed it.
    pub cpu: Option<u32>,
    pub queue: Option<u32>,
    /// The device that has the queue.
    pub ifindex: Option<u32>,
}

/// The iterator, loaded.
pub(super) struct Arrivals {
    link: Link,
    #[allow(dead_code, reason = "it holds the program")]
    skeleton: skeleton::TcpCpusSkel<'static>,
}

impl Arrivals {
    /// Loads the iterator.
    ///
    /// # Errors
    /// The process may not use BPF, or the kernel has no iterators (before 5.9) or no BTF.
    pub fn load(filter: &TcpFilter) -> Result<Self, InstrumentError> {
        may_load()?;
        if !has_btf() {
            return Err(InstrumentError::Unsupported(
                "this kernel has no BTF (/sys/kernel/btf/vmlinux), which BPF iterators need"
                    .to_owned(),
            ));
        }
        let kernel = Kernel::inspect(&[], None)?;
        listening(|| {
            let mut open = open::<skeleton::TcpCpusSkelBuilder>(&kernel)?;
            if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
                constants.wanted_sport = filter.sport.unwrap_or(0);
                constants.wanted_dport = filter.dport.unwrap_or(0);
                constants.wanted_port = filter.port.unwrap_or(0);
            }
            let step = "loading the iterator of TCP sockets";
            let skeleton = open.load().map_err(|e| refused(step, &e))?;
            let link = skeleton.progs.connections.attach().map_err(|e| refused(step, &e))?;
            Ok(Self { link, skeleton })
        })
    }

    /// Passes each connection of the calling thread's network namespace to `each`, by its cookie.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn read(&self, mut each: impl FnMut(u64, Arrival)) -> Result<(), InstrumentError> {
        let failed = |error: io::Error| refused("reading TCP sockets", &error.into());
        let iter = Iter::new(&self.link).map_err(|e| refused("reading TCP sockets", &e))?;
        // A read returns whole records, as many as fit into a page or so.
        let mut reader = BufReader::with_capacity(RECORD_BYTES * 2048, iter);
        let mut record = [0; RECORD_BYTES];
        while !reader.fill_buf().map_err(failed)?.is_empty() {
            reader.read_exact(&mut record).map_err(failed)?;
            if let Some((cookie, arrival)) = arrival(&record) {
                each(cookie, arrival);
            }
        }
        Ok(())
    }
}

fn arrival(record: &[u8]) -> Option<(u64, Arrival)> {
    let cookie = u64::from_ne_bytes(*record.first_chunk()?);
    let number = |at: usize| Some(u32::from_ne_bytes(*record.get(at..)?.first_chunk()?));
    let known = |value: u32| (value != NONE).then_some(value);
    let arrival = Arrival {
        sock: u64::from_ne_bytes(*record.get(8..)?.first_chunk()?),
        cpu: known(number(16)?),
        queue: known(number(20)?),
        ifindex: Some(number(24)?).filter(|&index| index != 0),
    };
    Some((cookie, arrival))
}

/// Time of a CPU, in ticks: all, and in interrupts and softirqs.
type Ticks = (u64, u64);

/// How late CPUs and readers are, since the last look.
#[derive(Default)]
pub(super) struct Pressure {
    looked: Option<Instant>,
    ticks: BTreeMap<u32, Ticks>,
    /// How long each thread has waited so far, in nanoseconds, by process.
    waits: HashMap<u32, BTreeMap<u32, u64>>,
    ksoftirqd: Option<BTreeMap<u32, u32>>,
    late_cpus: HashSet<u32>,
    late_readers: HashSet<u32>,
}

impl Pressure {
    /// Looks at these CPUs and processes; what was seen last holds until enough time has passed.
    pub fn look(&mut self, root: &Root, cpus: &HashSet<u32>, readers: &HashSet<u32>) {
        let now = Instant::now();
        let passed = self.looked.map(|last| now.saturating_duration_since(last));
        if passed.is_some_and(|passed| passed < SHORTEST_LOOK) {
            return;
        }
        self.looked = Some(now);
        let passed_ns = passed.map_or(0.0, |passed| passed.as_nanos() as f64);
        (self.late_cpus, self.late_readers) = Default::default();
        let ksoftirqd = self.ksoftirqd.get_or_insert_with(|| softirq_threads(root));
        let of_cpus = cpus.iter().filter_map(|cpu| ksoftirqd.get(cpu));
        let readers = readers.iter().take(READERS_MAX);
        let threads: HashSet<u32> = readers.chain(of_cpus).copied().collect();
        let waits: HashMap<u32, _> =
            threads.iter().map(|&pid| (pid, run_delays(root, pid))).collect();
        // Of the thread that waited longest: which one reads is not known, and their sum is the wait of none.
        let share = |pid: &u32| {
            let (now, old) = (waits.get(pid)?, self.waits.get(pid)?);
            let rise = |(tid, now): (&u32, &u64)| Some(now.saturating_sub(*old.get(tid)?));
            let most = now.iter().filter_map(rise).max()?;
            (passed_ns > 0.0).then(|| most as f64 / passed_ns)
        };
        let is_late = |pid: &u32, from: f64| share(pid).is_some_and(|share| share >= from);
        // Of all CPUs, so that one on which packets arrive later has a start.
        for time in read_cpu_time(root) {
            let softirqs = time.irq.saturating_add(time.softirq);
            let all = time.total();
            let old = self.ticks.insert(time.cpu.0, (all, softirqs));
            let is_busy = old.is_some_and(|(old_all, old_softirqs)| {
                let rise = softirqs.saturating_sub(old_softirqs) as f64;
                all > old_all && rise >= LATE * (all - old_all) as f64
            });
            let waits = ksoftirqd.get(&time.cpu.0).is_some_and(|pid| is_late(pid, READER_LATE));
            if cpus.contains(&time.cpu.0) && (is_busy || waits) {
                self.late_cpus.insert(time.cpu.0);
            }
        }
        self.late_readers =
            threads.iter().copied().filter(|pid| is_late(pid, READER_LATE)).collect();
        self.waits = waits;
    }

    /// Whether packets wait for this CPU.
    pub fn is_cpu_late(&self, cpu: Option<u32>) -> bool {
        cpu.is_some_and(|cpu| self.late_cpus.contains(&cpu))
    }

    /// Whether this process waits for a CPU.
    pub fn is_reader_late(&self, pid: Option<u32>) -> bool {
        pid.is_some_and(|pid| self.late_readers.contains(&pid))
    }
}
