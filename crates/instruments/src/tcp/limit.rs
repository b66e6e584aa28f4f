//! What limits a connection between two readings. Input: the kernel's figures at both. Output: the time between
//! them, divided among limits.
//!
//! The kernel itself counts how long a sender is busy, stopped by the receiver's window, and stopped by its
//! buffer (`tcp_chrono_start`, net/ipv4/tcp_output.c; `tcp_get_info_chrono_stats`, net/ipv4/tcp.c), to a jiffy.
//! The time in which it is busy for another reason, and all time of a receiver, is attributed by the state at
//! the second reading: with ten readings per interval, that is a sample of its states.

use super::receiver::{
    ARRIVES_MS, is_full, is_left_unread, is_receiver, receive_rate, receive_window, receiver_limit,
};
use nearpath_host::{TcpInfo, TcpSocket};
use nearpath_model::tcp::{TcpLimit, TcpState};
use std::collections::BTreeMap;

/// Congestion state (`enum tcp_ca_state`): a time-out has expired.
pub(super) const CA_LOSS: u8 = 4;
/// Timer of `struct inet_diag_msg`: probes a window that is closed.
const TIMER_PROBE: u8 = 4;
/// Number of limits.
const LIMITS: usize = 10;
/// A slow start threshold that was never reduced (`TCP_INFINITE_SSTHRESH`).
pub(super) const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// RTT above the minimum that is no queue, but the noise of timers and schedulers, in µs and as a factor.
const RTT_NOISE_US: u32 = 1000;
const RTT_NOISE_FACTOR: f64 = 1.25;
/// A queue that stands raises the RTT by more than it varies: by this many mean deviations.
const RTT_NOISE_DEVIATIONS: u32 = 2;
/// A writer that waits for buffer space continues when a third is free (`sk_stream_is_writeable`,
/// include/net/sock.h): a send buffer is full from here on.
const FULL_SEND_BUFFER: f64 = 0.6;
/// A window that is too small for the round-trip time is sent once per round trip, and one that is opened by a slow reader
/// less often: the reader is the limit below this share of the window per round trip.
const FILLS_SEND_WINDOW: f64 = 0.2;
/// A slow reader opens the window for moments: one that was closed less than so many milliseconds ago closes again.
const CLOSED_MS: u16 = 200;
/// Less than this may be a delayed acknowledgement (`TCP_DELACK_MIN` is 40 ms), in ms.
const SILENCE_MS: u32 = 50;
/// A recovery from a timeout that the path makes slow: its round-trip time is at least this part of the timeout.
const SLOW_RECOVERY: u64 = 8;

/// Time per limit, in seconds; small, as there is one per connection.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Times([f32; LIMITS]);

const ORDER: [TcpLimit; LIMITS] = [
    TcpLimit::Application,
    TcpLimit::Reader,
    TcpLimit::ReceiveWindow,
    TcpLimit::SendBuffer,
    TcpLimit::CongestionWindow,
    TcpLimit::Path,
    TcpLimit::Backlog,
    TcpLimit::Timeouts,
    TcpLimit::Cpu,
    TcpLimit::Peer,
];

impl Times {
    /// Of one limit.
    pub fn of(limit: TcpLimit, seconds: f32) -> Self {
        let mut times = Self::default();
        times.add(limit, seconds.into());
        times
    }

    /// The limit and its time, if there is one alone.
    pub fn only(&self) -> Option<(TcpLimit, f32)> {
        let mut spent = ORDER.into_iter().zip(self.0).filter(|(_, seconds)| *seconds != 0.0);
        let only = spent.next()?;
        spent.next().is_none().then_some(only)
    }

    /// Adds those of another time.
    pub fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, seconds)| *sum += seconds);
    }

    /// Adds seconds to a limit.
    pub fn add(&mut self, limit: TcpLimit, seconds: f64) {
        let at = ORDER.iter().position(|one| *one == limit);
        if let Some(time) = at.and_then(|at| self.0.get_mut(at)) {
            *time += seconds as f32;
        }
    }

    /// Those that are not zero.
    pub fn by_limit(&self) -> BTreeMap<TcpLimit, f64> {
        let times = ORDER.iter().zip(self.0);
        times.filter(|(_, time)| *time > 0.0).map(|(limit, time)| (*limit, time.into())).collect()
    }
}

/// What is remembered of a reading.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Before {
    pub busy_us: u64,
    pub rwnd_us: u64,
    pub sndbuf_us: u64,
    pub timeout_ms: Option<u32>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// The largest window that the peer offered, and that was offered to it, so far.
    pub widest_send_window: u32,
    pub widest_receive_window: u32,
    /// Milliseconds since the peer's window was closed at a reading; `None` if it never was, or longer ago.
    pub closed_ms: Option<u16>,
    /// Whether the receive queue was full.
    pub was_full: bool,
    /// Average of the rate at which data is received, in bytes per second.
    pub receive_rate: f32,
}

impl Before {
    /// Of this reading, `seconds` after the earlier one; the widest windows are carried on.
    pub fn of(info: &TcpInfo, socket: &TcpSocket, earlier: Option<&Self>, seconds: f64) -> Self {
        let widest = |of: fn(&Self) -> u32, now: u32| earlier.map_or(now, |old| of(old).max(now));
        Self {
            busy_us: info.busy_time,
            rwnd_us: info.rwnd_limited,
            sndbuf_us: info.sndbuf_limited,
            timeout_ms: info.total_rto_time_ms,
            bytes_sent: info.bytes_sent,
            bytes_received: info.bytes_received,
            widest_send_window: widest(|old| old.widest_send_window, info.snd_wnd),
            widest_receive_window: widest(|old| old.widest_receive_window, receive_window(info)),
            closed_ms: match is_window_closed(info, socket) {
                true => Some(0),
                false => earlier
                    .and_then(|old| old.closed_ms?.checked_add((seconds * 1e3) as u16))
                    .filter(|ms| *ms < CLOSED_MS),
            },
            was_full: earlier.is_some_and(|old| is_full(old, socket, info)),
            receive_rate: earlier.map_or(0.0, |old| receive_rate(old, info, seconds) as f32),
        }
    }
}

/// How the time between two readings was spent by the sender, in seconds; small, as there is one per connection.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SenderTimes {
    pub busy: f32,
    pub receive_window: f32,
    pub send_buffer: f32,
    /// Nothing to send, or everything sent.
    pub application: f32,
}

impl SenderTimes {
    /// Of a sender with one limit that was never busy.
    pub fn idle(limit: TcpLimit, seconds: f32) -> Self {
        let application = if limit == TcpLimit::Application { seconds } else { 0.0 };
        Self { application, ..Self::default() }
    }

    /// Adds those of another time.
    pub fn add(&mut self, other: &Self) {
        self.busy += other.busy;
        self.receive_window += other.receive_window;
        self.send_buffer += other.send_buffer;
        self.application += other.application;
    }
}

fn is_window_closed(info: &TcpInfo, socket: &TcpSocket) -> bool {
    info.snd_wnd == 0 || info.probes > 0 || socket.timer == TIMER_PROBE
}

/// Why a CPU processes packets late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lateness {
    /// It has time for little else than interrupts and softirqs.
    Busy,
    /// Its ksoftirqd waits, so many microseconds each time. Most softirqs need no ksoftirqd.
    Waits(u32),
}

/// How a reader waits for its CPU most of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReaderLateness {
    /// In between it has read everything, and sleeps.
    Waits,
    /// When it is given the CPU, it mostly has data left to read: it would read faster with more of the CPU.
    Saturated,
}

/// Whether packets of a connection wait for a CPU of this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Late {
    /// For that which processes them.
    pub softirq: Option<Lateness>,
    /// For that of their reader, which has data to read.
    pub reader: Option<ReaderLateness>,
}

impl Late {
    /// The limit, or the CPU if that explains it.
    fn explain(self, limit: TcpLimit, info: &TcpInfo) -> TcpLimit {
        // Of what the round trip takes longer than it has to, a CPU that explains it causes at least half.
        let is_most_of = |rtt: u32, us: u32| {
            let longer = rtt.saturating_sub(info.min_rtt);
            longer > RTT_NOISE_US && us >= longer / 2
        };
        let is_late = match (self.softirq, limit) {
            (None, _) => false,
            (Some(Lateness::Busy), _) => true,
            (Some(Lateness::Waits(us)), TcpLimit::Path) => is_most_of(info.rtt, us),
            (Some(Lateness::Waits(us)), TcpLimit::Peer) => is_most_of(info.rcv_rtt, us),
            // What was lost did not wait.
            _ => false,
        };
        // While data arrives, and the window has room for it, a late reader stops nothing if it catches up.
        let waits_for_reader = match self.reader {
            Some(ReaderLateness::Saturated) => true,
            Some(ReaderLateness::Waits) => info.last_data_recv_ms >= ARRIVES_MS,
            None => false,
        };
        match limit {
            TcpLimit::Reader if self.reader.is_some() => TcpLimit::Cpu,
            TcpLimit::Peer if waits_for_reader => TcpLimit::Cpu,
            TcpLimit::Peer | TcpLimit::Path | TcpLimit::CongestionWindow if is_late => {
                TcpLimit::Cpu
            }
            limit => limit,
        }
    }
}

/// Divides the `seconds` since an earlier reading, and adds them to `times`.
pub(super) fn divide(
    before: &Before,
    socket: &TcpSocket,
    info: &TcpInfo,
    seconds: f64,
    late: Late,
    times: &mut Times,
) -> SenderTimes {
    let rise = |now: u64, old: u64| now.saturating_sub(old) as f64 / 1e6;
    let busy = rise(info.busy_time, before.busy_us).min(seconds);
    let receive_window = rise(info.rwnd_limited, before.rwnd_us).min(busy);
    let send_buffer = rise(info.sndbuf_limited, before.sndbuf_us).min(busy - receive_window);
    let mut sender = SenderTimes {
        busy: busy as f32,
        receive_window: receive_window as f32,
        send_buffer: send_buffer as f32,
        application: 0.0,
    };
    if socket.state == TcpState::SynSent || is_not_accepted(socket) {
        times.add(TcpLimit::Backlog, seconds);
        return sender;
    }
    let idle = seconds - busy;
    if is_left_unread(socket, info) {
        times.add(late.explain(TcpLimit::Reader, info), idle);
    } else if is_receiver(before, info) {
        times.add(late.explain(receiver_limit(before, socket, info, seconds), info), idle);
    } else {
        times.add(TcpLimit::Application, idle);
        sender.application += idle as f32;
    }
    let in_queue = |limit| match fills_a_queue(info) {
        true => late.explain(TcpLimit::Path, info),
        false => limit,
    };
    let window = match window_limit(before, socket, info, receive_window) {
        TcpLimit::ReceiveWindow => in_queue(TcpLimit::ReceiveWindow),
        limit => limit,
    };
    times.add(window, receive_window);
    times.add(in_queue(TcpLimit::SendBuffer), send_buffer);
    let mut rest = busy - receive_window - send_buffer;
    let timeouts = timeouts(before, info, rest);
    // What is sent again into a closed window only probes it ("our retransmits become zero probes", tcp_retransmit_timer).
    let is_closed = info.snd_wnd == 0 || before.closed_ms.is_some();
    let waits_for = if is_closed { TcpLimit::Reader } else { TcpLimit::Timeouts };
    times.add(waits_for, timeouts);
    rest -= timeouts;
    let limit = late.explain(sending_limit(socket, info), info);
    times.add(limit, rest);
    if limit == TcpLimit::Application {
        sender.application += rest as f32;
    }
    sender
}

/// Whether it waits for accept(2): until then it has no inode. Subflows of MPTCP never have one.
pub(super) fn is_not_accepted(socket: &TcpSocket) -> bool {
    // Its client may have given up: once it was accepted, a socket that nobody has open is not in this state.
    let waits = matches!(socket.state, TcpState::Established | TcpState::CloseWait);
    socket.inode == 0 && waits && socket.ulp.is_none()
}

/// The peer's window stops the sender for so many seconds: because the peer's application does not read, if the window has
/// shrunk or opens more slowly than acknowledgements come back, or because it is small.
fn window_limit(before: &Before, socket: &TcpSocket, info: &TcpInfo, seconds: f64) -> TcpLimit {
    let has_shrunk = info.snd_wnd < before.widest_send_window / 2;
    // At most this was sent in that time. If the window alone stopped it, it was a window per round trip.
    let sent = info.bytes_sent.saturating_sub(before.bytes_sent) as f64;
    let per_rtt = sent * f64::from(info.rtt) / 1e6;
    let opens_slowly = per_rtt < FILLS_SEND_WINDOW * f64::from(info.snd_wnd) * seconds;
    let was_closed = before.closed_ms.is_some();
    if has_shrunk || opens_slowly || was_closed || is_window_closed(info, socket) {
        TcpLimit::Reader
    } else {
        TcpLimit::ReceiveWindow
    }
}

/// How much of the time in which data was in flight the sender waited for a time-out to expire, or recovered
/// from it. The kernel counts from the first time-out on; before that, the sender waits in silence.
fn timeouts(before: &Before, info: &TcpInfo, rest: f64) -> f64 {
    if info.backoff > 0 || info.retransmits > 0 || is_silent(info) {
        return rest;
    }
    // A recovery takes as long as the path needs for the lost segments: with a queue, the path is the limit. A few round
    // trips that are far shorter than the timeout would be over.
    let is_slow = u64::from(info.rtt) * SLOW_RECOVERY >= u64::from(info.rto);
    match (info.total_rto_time_ms, before.timeout_ms) {
        _ if has_queue(info) && is_slow => 0.0,
        (Some(now), Some(old)) if now > old => (f64::from(now - old) / 1e3).min(rest),
        _ if info.ca_state == CA_LOSS => rest,
        _ => 0.0,
    }
}

/// Whether data is in flight, and for two round-trip times nothing was sent and nothing acknowledged: acknowledgements
/// and tail loss probes, which are sent after that time (RFC 8985), would have come.
fn is_silent(info: &TcpInfo) -> bool {
    let silence_ms = info.last_data_sent_ms.min(info.last_ack_recv_ms);
    let silence_us = u64::from(silence_ms) * 1000;
    info.unacked > 0 && silence_ms >= SILENCE_MS && silence_us > 2 * u64::from(info.rtt)
}

/// What a sender that is busy, and not stopped by a window or buffer, waits for.
fn sending_limit(socket: &TcpSocket, info: &TcpInfo) -> TcpLimit {
    let gone = info.sacked.saturating_add(info.lost);
    let in_flight = info.unacked.saturating_sub(gone).saturating_add(info.retrans);
    let is_full = socket.memory.is_some_and(|memory| {
        f64::from(memory.send_queued) > FULL_SEND_BUFFER * f64::from(memory.send_limit)
    });
    if info.notsent_bytes == 0 && in_flight < info.snd_cwnd {
        // It has sent all it has, and waits for the acknowledgement.
        return match (is_full, fills_a_queue(info)) {
            (false, _) => TcpLimit::Application,
            (true, false) => TcpLimit::SendBuffer,
            (true, true) => TcpLimit::Path,
        };
    }
    let in_window = u64::from(info.unacked) * u64::from(info.snd_mss);
    // Data waits although the congestion window has room: for its time to be sent (as with BBR), or in this host's queues.
    // For a third of the window the kernel waits until it can send larger segments (`tcp_tso_should_defer`).
    let has_room = u64::from(in_flight) * 3 < u64::from(info.snd_cwnd) * 2;
    let is_open = in_window + u64::from(info.snd_mss) <= u64::from(info.snd_wnd);
    if has_room && is_open && is_held_by_nagle(info) {
        return TcpLimit::Application;
    }
    if has_room && is_open || paces_by_rate(socket) {
        // It is sent at the rate at which it was delivered before: if most of a full buffer is in flight without a queue,
        // at a buffer per round-trip time.
        let is_in_flight = u64::from(info.notsent_bytes) < in_window;
        return match is_full && is_in_flight && !has_queue(info) {
            true => TcpLimit::SendBuffer,
            false => TcpLimit::Path,
        };
    }
    let was_reduced = info.snd_ssthresh < INFINITE_SSTHRESH && info.total_retrans > 0;
    match (has_queue(info), was_reduced) {
        // Losses without a queue; or no queue yet, as the window still grows.
        (false, true) => TcpLimit::CongestionWindow,
        (false, false) if info.snd_ssthresh >= INFINITE_SSTHRESH && !is_paced(info) => {
            TcpLimit::CongestionWindow
        }
        _ => TcpLimit::Path,
    }
}

/// Whether what is unsent is less than a segment, which Nagle's algorithm holds until what is in flight is acknowledged
/// (`tcp_nagle_check`): the application writes in small pieces. (Pacing does not hold a segment back for another one.)
fn is_held_by_nagle(info: &TcpInfo) -> bool {
    (1..=2).contains(&info.unacked) && info.notsent_bytes < info.snd_mss && !is_paced(info)
}

/// Whether its congestion control sends at the rate that it has measured, and not a window at a time. A window that BBR
/// reduces after losses is no less than what is in flight, and its ssthresh is the bandwidth-delay product
/// (`bbr_set_cwnd_to_recover_or_restore`, `bbr_check_drain`, net/ipv4/tcp_bbr.c).
fn paces_by_rate(socket: &TcpSocket) -> bool {
    socket.congestion.as_deref().is_some_and(|name| name.starts_with("bbr"))
}

/// Whether packets wait in a queue of the path: the round-trip time is well above its minimum.
pub(super) fn has_queue(info: &TcpInfo) -> bool {
    let share = (f64::from(info.min_rtt) * (RTT_NOISE_FACTOR - 1.0)) as u32;
    let noise = RTT_NOISE_US.max(share).max(info.rttvar.saturating_mul(RTT_NOISE_DEVIATIONS));
    info.min_rtt != u32::MAX && info.rtt > info.min_rtt.saturating_add(noise)
}

/// Whether packets wait in a queue for longer than they travel. What is in flight is then more than twice the
/// bandwidth-delay product: neither a window nor a buffer is too small.
fn fills_a_queue(info: &TcpInfo) -> bool {
    has_queue(info) && info.rtt / 2 > info.min_rtt
}

/// Whether the application has limited the rate (`SO_MAX_PACING_RATE`), and it is reached.
fn is_paced(info: &TcpInfo) -> bool {
    info.max_pacing_rate != u64::MAX && info.pacing_rate >= info.max_pacing_rate
}
