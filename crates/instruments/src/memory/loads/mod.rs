//! Samples of loads, where the machine has a PMU for them: the event (`pmu`), the kernel's rings (`perf`), records
//! (`record`, `data_src`), and sums (`sum`, `places`, `elf`). The method is described in `docs/memory.md`.

mod data_src;
mod elf;
mod perf;
mod places;
pub mod pmu;
mod record;
mod sum;

use nearpath_host::Root;
use nearpath_model::{CpuSet, LoadSamples};
use perf::{Perf, Rate};
use places::Places;
use record::Record;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sum::Sums;

/// Samples per second and CPU.
const RATE: u64 = 1000;
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
        let pmu = events.first().map(|event| event.pmu.clone()).unwrap_or_default();
        let perf = Perf::open(&events, cpus, Rate::Frequency(RATE))
            .map_err(|error| format!("the kernel does not sample with the PMU {pmu}: {error}"))?;
        let shared = Arc::new(Shared {
            sums: Mutex::new(Sums::new(&pmu)),
            is_stopped: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("nearpath-loads".to_owned())
            .spawn(move || sample_until_stopped(&theirs, perf))
            .map_err(|error| error.to_string())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What was sampled so far.
    pub fn read(&self, root: &Root) -> LoadSamples {
        lock(&self.shared.sums).result(&mut Places::new(root))
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

fn sample_until_stopped(shared: &Shared, mut perf: Perf) {
    let root = Root::live();
    let mut places = Places::new(&root);
    let mut is_stopped = lock(&shared.is_stopped);
    while !*is_stopped {
        let wait = shared.stopped.wait_timeout_while(is_stopped, PAUSE, |stopped| !*stopped);
        is_stopped = wait.unwrap_or_else(PoisonError::into_inner).0;
        let mut sums = lock(&shared.sums);
        perf.take(|record| match record {
            Record::Sample(sample) => sums.add(&sample, &mut places),
            Record::Lost(count) => sums.lost(count),
            Record::Throttled => sums.throttled(),
            Record::Other => {}
        });
    }
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

    /// The symbols of a file.
    pub fn elf(bytes: &[u8]) {
        let _ = super::elf::functions(bytes).name(4096);
    }
}
