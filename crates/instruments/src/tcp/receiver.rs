//! What a connection that receives waits for: its peer, its own window, or its reader. Input: the kernel's figures at two
//! readings. Output: the limit.

use super::limit::Before;
use nearpath_host::{TcpInfo, TcpSocket};
use nearpath_model::tcp::TcpLimit;

/// A receiver's rate × RTT is that of its window from this share of the window. The kernel grows a buffer to twice what is
/// read per round trip (`tcp_rcv_space_adjust`), so that of one which may grow stays near a half.
const FILLS_WINDOW: f64 = 0.65;
/// A window full of data arrives at once, once per round trip: the rate is averaged over this time, in seconds.
const RATE_S: f64 = 0.5;
/// Data that arrived less than this ago has not waited for its reader yet, in ms.
pub(super) const ARRIVES_MS: u32 = 10;
/// Data that waits for this long, while no more arrives, is what the connection waits for, in ms.
const UNREAD_MS: u32 = 100;
/// Shorter waits than this are no queue, but the noise of timers and schedulers.
const QUEUE_US: u64 = 1000;

/// Whether this end only receives: now, or, if nothing is transferred, so far.
pub(super) fn is_receiver(before: &Before, info: &TcpInfo) -> bool {
    let received = info.bytes_received.saturating_sub(before.bytes_received);
    let sent = info.bytes_sent.saturating_sub(before.bytes_sent);
    match (received, sent) {
        (0, 0) => info.bytes_received / 2 > info.bytes_sent,
        _ => received / 2 > sent,
    }
}

/// Whether data waits for its reader although no more arrives, be it a small request.
pub(super) fn is_left_unread(socket: &TcpSocket, info: &TcpInfo) -> bool {
    socket.receive_queue > 0 && info.last_data_recv_ms >= UNREAD_MS
}

/// What a receiver waits for.
pub(super) fn receiver_limit(
    before: &Before,
    socket: &TcpSocket,
    info: &TcpInfo,
    seconds: f64,
) -> TcpLimit {
    let has_waited = before.was_full || info.last_data_recv_ms >= ARRIVES_MS;
    if has_waited && is_full(before, socket, info) {
        return TcpLimit::Reader;
    }
    let has_timestamps = info.options & 1 != 0;
    let per_rtt = receive_rate(before, info, seconds) * f64::from(info.rcv_rtt) / 1e6;
    let widest = before.widest_receive_window.max(receive_window(info));
    // Where packets wait in a queue for longer than they travel, a larger window would only fill it more.
    let queues = (1..u32::MAX).contains(&info.min_rtt)
        && u64::from(info.rcv_rtt) > 2 * u64::from(info.min_rtt) + QUEUE_US;
    if has_timestamps && info.rcv_rtt > 0 && !queues && per_rtt > FILLS_WINDOW * f64::from(widest) {
        return TcpLimit::ReceiveWindow;
    }
    TcpLimit::Peer
}

/// The window offered to the peer, or its limit before Linux 6.2.
pub(super) fn receive_window(info: &TcpInfo) -> u32 {
    info.rcv_wnd.unwrap_or(info.rcv_ssthresh)
}

/// Whether data waits for the reader that fills a large part of the window, or of the buffer.
pub(super) fn is_full(before: &Before, socket: &TcpSocket, info: &TcpInfo) -> bool {
    let widest = before.widest_receive_window.max(receive_window(info));
    let is_memory_full = socket.memory.is_some_and(|m| m.receive > m.receive_limit / 2);
    // It opens again only when there is room for a large part of it (`__tcp_select_window`).
    let is_closing = info.rcv_wnd.is_some_and(|now| now < widest / 2);
    socket.receive_queue > 0 && (socket.receive_queue > widest / 2 || is_memory_full || is_closing)
}

/// The average of the rate at which data is received, including the last `seconds`.
pub(super) fn receive_rate(before: &Before, info: &TcpInfo, seconds: f64) -> f64 {
    let average = f64::from(before.receive_rate);
    if seconds <= 0.0 {
        return average;
    }
    let now = info.bytes_received.saturating_sub(before.bytes_received) as f64 / seconds;
    // Without an average so far, the last rate is the first one.
    let weight = if average > 0.0 { 1.0 - (-seconds / RATE_S).exp() } else { 1.0 };
    average + weight * (now - average)
}
