//! Threads that receive and count, one per flow. Input: connected sockets. Output: counts by trial.

use super::batch::Batch;
use super::order::Order;
use super::wire::Header;
use crate::affinity;
use nearpath_model::CpuSet;
use rustix::thread::ClockId;
use rustix::time::clock_gettime;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// After this long without a packet a thread publishes its CPU time, and checks whether to end.
pub(super) const IDLE: Duration = Duration::from_millis(40);

/// The threads of a session, stopped on drop.
#[derive(Debug)]
pub(super) struct Receivers {
    shared: Arc<Shared>,
    sockets: Vec<UdpSocket>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// The current trial.
    trial: AtomicU32,
    flows: Vec<Flow>,
}

/// The counts of the last trial that a flow's thread has seen.
#[derive(Debug, Default)]
struct Flow {
    trial: AtomicU32,
    received: AtomicU64,
    reordered: AtomicU64,
    duplicated: AtomicU64,
    /// CPU time of the thread so far.
    used_ns: AtomicU64,
}

/// Counts of all flows in a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) reordered: u64,
    pub(super) duplicated: u64,
    /// CPU time of the threads since their start.
    pub(super) used_ns: u64,
    /// Packets dropped since the sockets were opened because their buffers were full.
    pub(super) drops: Option<u64>,
}

impl Receivers {
    /// Starts a thread for each socket.
    pub(super) fn start(
        sockets: Vec<UdpSocket>,
        session: u32,
        size: usize,
        cpus: Option<&CpuSet>,
    ) -> io::Result<Self> {
        let flows = sockets.iter().map(|_| Flow::default()).collect();
        let shared = Arc::new(Shared { flows, ..Shared::default() });
        let mut receivers = Self { shared, sockets: Vec::new(), threads: Vec::new() };
        for (index, socket) in sockets.into_iter().enumerate() {
            socket.set_read_timeout(Some(IDLE))?;
            receivers.sockets.push(socket.try_clone()?);
            let (shared, cpus) = (Arc::clone(&receivers.shared), cpus.cloned());
            let name = format!("count-{index}");
            receivers.threads.push(thread::Builder::new().name(name).spawn(move || {
                // The CPUs were checked before; one that went offline in the meantime does not end the count.
                let _ = cpus.as_ref().map(affinity::pin);
                if let Some(flow) = shared.flows.get(index) {
                    receive(&socket, session, size, flow, &shared);
                }
            })?);
        }
        Ok(receivers)
    }

    /// From now on only packets of this trial count.
    pub(super) fn begin(&self, trial: u32) {
        self.shared.trial.store(trial, Ordering::Release);
    }

    /// The counts of a trial so far.
    pub(super) fn counts(&self, trial: u32) -> Counts {
        let mut all = Counts { drops: self.drops(), ..Counts::default() };
        for flow in &self.shared.flows {
            all.used_ns += flow.used_ns.load(Ordering::Relaxed);
            if flow.trial.load(Ordering::Acquire) == trial {
                all.received += flow.received.load(Ordering::Relaxed);
                all.reordered += flow.reordered.load(Ordering::Relaxed);
                all.duplicated += flow.duplicated.load(Ordering::Relaxed);
            }
        }
        all
    }

    fn drops(&self) -> Option<u64> {
        self.sockets.iter().map(|socket| dropped(socket).map(u64::from)).sum()
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn receive(socket: &UdpSocket, session: u32, size: usize, flow: &Flow, shared: &Shared) {
    let (mut batch, mut order) = (Batch::new(size), Order::new());
    let mut current = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        // An ICMP error, or the timeout.
        let Ok(count) = batch.receive(socket) else {
            flow.used_ns.store(thread_ns(), Ordering::Relaxed);
            continue;
        };
        let trial = shared.trial.load(Ordering::Acquire);
        if trial != current {
            current = trial;
            order.clear();
        }
        for header in batch.received(count).filter_map(Header::parse) {
            if (header.session, header.trial) == (session, current) {
                order.arrived(header.sequence);
            }
        }
        flow.received.store(order.received, Ordering::Relaxed);
        flow.reordered.store(order.reordered, Ordering::Relaxed);
        flow.duplicated.store(order.duplicated, Ordering::Relaxed);
        flow.trial.store(current, Ordering::Release);
    }
}

/// CPU time of the calling thread.
pub(super) fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Packets dropped because a socket's buffer was full (SO_MEMINFO, since Linux 4.12).
fn dropped(socket: &UdpSocket) -> Option<u32> {
    use std::os::fd::AsRawFd;
    /// On all architectures except parisc and sparc (include/uapi/asm-generic/socket.h).
    const SO_MEMINFO: libc::c_int = 55;
    /// Index of SK_MEMINFO_DROPS and the number of values (include/uapi/linux/sock_diag.h).
    const DROPS: usize = 8;
    const VALUES: usize = 9;
    let mut values = [0u32; VALUES];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: pointer and length are those of `values`, which outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let whole = result == 0 && length as usize >= size_of_val(&values);
    whole.then(|| values[DROPS])
}
