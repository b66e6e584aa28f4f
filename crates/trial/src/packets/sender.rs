//! A sending thread. Input: a connected socket and a rate. Output: the number of packets that the kernel
//! accepted.

use super::batch::{Batch, MOST};
use super::receiver::thread_ns;
use super::wire::Header;
use crate::clock::{SECOND_NS, now_ns};
use crate::pacer::wait_until;
use std::io;
use std::net::UdpSocket;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};

/// Packets due within this time are sent in one call.
const BURST_NS: f64 = 100_000.0;

/// The task of a thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) session: u32,
    pub(super) trial: u32,
    /// Bytes of a packet.
    pub(super) size: usize,
    /// Packets per second; `None`: unlimited.
    pub(super) rate_per_s: Option<f64>,
    /// On the monotonic clock.
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
}

/// The result of a thread.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Packets that the kernel accepted.
    pub(super) packets: u64,
    /// Calls that it refused, and the last error.
    pub(super) refused: u64,
    pub(super) reason: Option<io::Error>,
    /// From the start to the last packet.
    pub(super) duration_ns: u64,
    /// CPU time of the thread meanwhile.
    pub(super) used_ns: u64,
}

/// Sends until the time is over. A packet that the kernel refuses is retried: it was not sent.
pub(super) fn send(socket: &UdpSocket, flow: &Flow, stop: &AtomicBool) -> Sent {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut batch = Batch::new(flow.size);
    let per_ns = flow.rate_per_s.map(|rate| rate / SECOND_NS as f64);
    let burst = per_ns.map_or(MOST as f64, |per_ns| (per_ns * BURST_NS).ceil());
    let burst = (burst as u64).clamp(1, batch.capacity() as u64);
    let mut sent = Sent::default();
    wait_until(flow.begin_ns, false, stop);
    let used_ns = thread_ns();
    let mut last_ns = flow.begin_ns;
    while !stop.load(Ordering::Relaxed) {
        let now = now_ns();
        if now >= flow.end_ns {
            break;
        }
        let due = per_ns.map_or(burst, |per_ns| {
            let due = (now.saturating_sub(flow.begin_ns) as f64 * per_ns) as u64;
            due.saturating_sub(sent.packets)
        });
        if due < burst {
            // When the burst is due; per_ns is set, or everything would be due.
            let until = (sent.packets + burst) as f64 / per_ns.unwrap_or(1.0);
            wait_until((flow.begin_ns + until as u64).min(flow.end_ns), false, stop);
            continue;
        }
        let count = usize::try_from(due.min(batch.capacity() as u64)).unwrap_or(MOST);
        for (sequence, packet) in (sent.packets..).zip(batch.packets_mut().take(count)) {
            Header { session: flow.session, trial: flow.trial, sequence }.write(packet);
        }
        match batch.send(socket, count) {
            Ok(taken) => {
                sent.packets += taken as u64;
                last_ns = now_ns();
            }
            Err(reason) => {
                sent.refused += 1;
                sent.reason = Some(reason);
                std::thread::yield_now();
            }
        }
    }
    sent.used_ns = thread_ns().saturating_sub(used_ns);
    sent.duration_ns = last_ns.saturating_sub(flow.begin_ns);
    sent
}
