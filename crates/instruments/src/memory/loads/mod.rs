//! Samples of loads, where the machine has a PMU for them: the event (`pmu`), the kernel's rings (`perf`) and areas (`aux`),
//! records (`record`, `data_src`, `spe`), and sums (`sum`, `addresses`, `elf`). The method is described in `docs/memory.md`.

mod addresses;
mod aux;
mod data_src;
mod elf;
mod perf;
pub mod pmu;
mod record;
mod spe;
mod sum;

use addresses::Addresses;
use aux::AuxAreas;
use nearpath_host::Root;
use nearpath_model::{CpuSet, LoadSamples};
pub(crate) use perf::open_event;
use perf::{Perf, Rate};
use pmu::{Events, SpeEvent};
use record::{COLLISION, Record, Sample, TRUNCATED};
use spe::Codes;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sum::Sums;

/// Samples per second and CPU.
const RATE: u64 = 1000;
/// Operations between two samples of SPE: some 1,000 per second of a CPU that is busy.
const OPERATIONS: u64 = 1 << 21;
/// How often the rings are emptied: they hold samples of two seconds.
const PAUSE: Duration = Duration::from_millis(100);

/// Sampling, on a thread of its own; dropping it ends it.
#[derive(Debug)]
pub struct Loads {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    sums: Mutex<Sums>,
    is_stopped: Mutex<bool>,
    stopped: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loads {
    /// Starts to sample on these CPUs.
    ///
    /// # Errors
    /// The machine has no PMU for it, or the kernel refused; the reason.
    pub fn start(root: &Root, cpus: &CpuSet) -> Result<Self, String> {
        let events = pmu::events(root)?;
        let pmu = events.pmu().to_owned();
        let sampler = Sampler::open(root, events, cpus)
            .map_err(|error| format!("the kernel does not sample with the PMU {pmu}: {error}"))?;
        let shared = Arc::new(Shared {
            sums: Mutex::new(Sums::new(&pmu)),
            is_stopped: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("nearpath-loads".to_owned())
            .spawn(move || sample_until_stopped(&theirs, sampler))
            .map_err(|error| error.to_string())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What was sampled so far.
    pub fn read(&self, root: &Root) -> LoadSamples {
        lock(&self.shared.sums).result(&mut Addresses::new(root))
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        *lock(&self.shared.is_stopped) = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to return.
            let _ = thread.join();
        }
    }
}

fn sample_until_stopped(shared: &Shared, mut sampler: Sampler) {
    let root = Root::live();
    let mut addresses = Addresses::new(&root);
    let mut is_stopped = lock(&shared.is_stopped);
    while !*is_stopped {
        let wait = shared.stopped.wait_timeout_while(is_stopped, PAUSE, |stopped| !*stopped);
        is_stopped = wait.unwrap_or_else(PoisonError::into_inner).0;
        let mut sums = lock(&shared.sums);
        sampler.take(&mut sums, &mut addresses);
    }
}

/// Where samples come from.
enum Sampler {
    /// Records of the kernel's.
    Rings(Perf),
    /// Records of the PMU's own, and the models of its CPUs.
    Spe(Vec<(AuxAreas, BTreeMap<u32, Codes>)>),
}

impl Sampler {
    fn open(root: &Root, events: Events, cpus: &CpuSet) -> io::Result<Self> {
        match events {
            Events::Sampled(events) => {
                Perf::open(&events, cpus, Rate::Frequency(RATE)).map(Self::Rings)
            }
            Events::Spe(events) => {
                let open = |SpeEvent { event, cpus: its, shortest }| {
                    let its: CpuSet = cpus.iter().filter(|&cpu| its.contains(cpu)).collect();
                    let areas = AuxAreas::open(&event, &its, OPERATIONS.max(shortest))?;
                    let codes = its.iter().map(|cpu| (cpu.0, codes_of(root, cpu.0)));
                    Ok((areas, codes.collect()))
                };
                events.into_iter().map(open).collect::<io::Result<_>>().map(Self::Spe)
            }
        }
    }

    fn take(&mut self, sums: &mut Sums, addresses: &mut Addresses<'_>) {
        match self {
            Self::Rings(perf) => perf.take(|record| match record {
                Record::Sample(sample) => sums.add(&sample, addresses),
                Record::Lost(count) => sums.lost(count),
                Record::Throttled => sums.throttled(),
                Record::Area(_) | Record::Other => {}
            }),
            Self::Spe(pmus) => {
                for (areas, codes) in pmus {
                    areas.take(|part| {
                        let codes = codes.get(&part.cpu).copied().unwrap_or(Codes::Unknown);
                        let malformed =
                            spe::samples(part.bytes, part.begins, part.cpu, codes, |sample| {
                                let pid = addresses.process_of(sample.tid);
                                sums.add(&Sample { pid, ..sample }, addresses);
                            });
                        // How many collided is not known: one, or more.
                        let collided = u64::from(part.flags & COLLISION != 0);
                        sums.lost(collided + u64::from(malformed > 0));
                        if part.flags & TRUNCATED != 0 {
                            sums.throttled();
                        }
                    });
                }
            }
        }
    }
}

/// How a CPU's model codes sources.
fn codes_of(root: &Root, cpu: u32) -> Codes {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/regs/identification/midr_el1");
    let text = root.text(&path).unwrap_or_default();
    let hex = text.trim().trim_start_matches("0x");
    u64::from_str_radix(hex, 16).map_or(Codes::Unknown, Codes::of)
}

/// Parsers for the fuzz targets.
#[doc(hidden)]
pub mod fuzzing {
    use super::{Record, data_src, perf, record};

    /// A stream of records, and where their data were.
    pub fn records(bytes: &[u8]) {
        let Ok((records, read)) = record::parse(bytes, perf::SAMPLE_TYPE) else { return };
        assert!(read <= bytes.len());
        for record in records {
            if let Record::Sample(sample) = record {
                let _ = data_src::DataSource(sample.data_src).source();
            }
        }
    }

    /// An area of SPE; the first bytes choose the model and where it begins.
    pub fn spe(bytes: &[u8]) {
        let (midr, rest) = bytes.split_at(bytes.len().min(8));
        let midr = midr.iter().fold(0, |midr, &byte| midr << 8 | u64::from(byte));
        super::spe::samples(rest, midr, 0, super::Codes::of(midr), |sample| {
            let _ = data_src::DataSource(sample.data_src).source();
        });
    }

    /// The symbols of a file.
    pub fn elf(bytes: &[u8]) {
        let _ = super::elf::functions(bytes).name(4096);
    }
}
