//! The connecting side: threads, each with one connection at a time.

use super::ConnectionLoad;
use crate::affinity;
use crate::load::LoadError;
use crate::pacer::Pacer;
use nearpath_model::CpuSet;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Timeout to establish a connection, and of an answer: a slower path is considered broken.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum number of failures whose text is kept.
const FAILURES_TOLD: usize = 3;

/// Running callers. Dropping them without [`Callers::finish`] also ends them.
#[derive(Debug)]
pub struct Callers {
    stop: Arc<AtomicBool>,
    threads: Vec<Caller>,
}

#[derive(Debug)]
struct Caller {
    tid: u32,
    /// Connections that have ended, successfully or not.
    ended: Arc<AtomicU64>,
    thread: JoinHandle<CallersReport>,
}

/// Results of the callers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallersReport {
    /// Connections that were due.
    pub planned: u64,
    /// Connections established; those missing from `planned` were skipped as too late.
    pub connected: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Connections that could not be established, or failed.
    pub failed: u64,
    /// The text of some of these failures.
    pub failures: Vec<String>,
}

impl AddAssign for CallersReport {
    fn add_assign(&mut self, other: Self) {
        self.planned += other.planned;
        self.connected += other.connected;
        self.answered += other.answered;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.truncate(FAILURES_TOLD);
    }
}

impl Callers {
    /// Starts to connect, in the network namespace of the calling thread and on these CPUs.
    ///
    /// # Errors
    /// An invalid load, CPUs that cannot be used, or no more threads.
    pub fn start(load: &ConnectionLoad, to: SocketAddr, cpus: &CpuSet) -> Result<Self, LoadError> {
        load.check()?;
        let mut callers = Self { stop: Arc::default(), threads: Vec::new() };
        for index in 0..load.callers {
            let caller = Caller::start(load, to, cpus, index, &callers.stop);
            callers.threads.push(caller.map_err(LoadError::of("starting the callers"))?);
        }
        Ok(callers)
    }

    /// The thread ids.
    pub fn tids(&self) -> Vec<u32> {
        self.threads.iter().map(|caller| caller.tid).collect()
    }

    /// Number of connections of each caller that have ended so far.
    pub fn ended(&self) -> Vec<u64> {
        self.threads.iter().map(|caller| caller.ended.load(Ordering::Relaxed)).collect()
    }

    /// Ends the load; each caller finishes its current connection.
    pub fn finish(mut self) -> CallersReport {
        self.end()
    }

    fn end(&mut self) -> CallersReport {
        self.stop.store(true, Ordering::Relaxed);
        let mut report = CallersReport::default();
        for caller in self.threads.drain(..) {
            report += caller.thread.join().unwrap_or_default();
        }
        report
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.end();
    }
}

impl Caller {
    fn start(
        load: &ConnectionLoad,
        to: SocketAddr,
        cpus: &CpuSet,
        index: u16,
        stop: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let (load, cpus, stop) = (load.clone(), cpus.clone(), Arc::clone(stop));
        let ended = Arc::<AtomicU64>::default();
        let (started, starts) = channel();
        let count = Arc::clone(&ended);
        let thread = thread::Builder::new().name("caller".to_owned()).spawn(move || {
            if !pinned(&cpus, &started) {
                return CallersReport::default();
            }
            let mut pacer = Pacer::new(load.rate_hz, index, load.callers);
            let mut report = CallersReport::default();
            while pacer.wait(&stop) {
                if let Err(error) = call(&load, to, &mut report) {
                    report.failed += 1;
                    if report.failures.len() < FAILURES_TOLD {
                        report.failures.push(format!("a connection to {to}: {error}"));
                    }
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            report.planned = pacer.planned();
            report
        })?;
        let tid = starts.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
        Ok(Self { tid, ended, thread })
    }
}

/// Pins the calling thread, and reports the result, with its id.
fn pinned(cpus: &CpuSet, started: &Sender<io::Result<u32>>) -> bool {
    let result = affinity::pin(cpus).map(|()| affinity::tid());
    let pinned = result.is_ok();
    let _ = started.send(result);
    pinned
}

/// One connection, from start to end.
fn call(load: &ConnectionLoad, to: SocketAddr, report: &mut CallersReport) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    report.connected += 1;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = vec![0x5a; load.request_bytes as usize];
    let mut response = vec![0; load.response_bytes as usize];
    for _ in 0..load.requests {
        stream.write_all(&request)?;
        stream.read_exact(&mut response)?;
        report.answered += 1;
    }
    // The server closes.
    match stream.read(&mut response)? {
        0 => Ok(()),
        more => Err(io::Error::other(format!("{more} bytes after the last response"))),
    }
}
