//! A connection of the result, from what was kept of it and the last reading.

use super::events::Losses;
use super::limit::INFINITE_SSTHRESH;
use super::track::Track;
use nearpath_host::{ConnectionOwner, TcpInfo, TcpSocket};
use nearpath_model::CpuId;
use nearpath_model::tcp::{TcpConnection, TcpFamily, TcpOptions, TcpRole, TcpSamples};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

/// What is known of all connections.
pub(super) struct Surroundings<'a> {
    /// Inode of the network namespace.
    pub netns: Option<u64>,
    /// Processes by the inodes of their sockets.
    pub owners: &'a HashMap<u64, ConnectionOwner>,
    /// Retransmissions and reductions by cookie, if their reasons are known.
    pub losses: Option<&'a HashMap<u64, Losses>>,
    /// Whether reductions are known.
    pub knows_reductions: bool,
    /// What each packet showed, by cookie.
    pub samples: Option<&'a HashMap<u64, TcpSamples>>,
    /// How long a connection took to be established, by the address of its socket.
    pub connect_time: &'a dyn Fn(u64) -> Option<Duration>,
    /// The CPU of a device's queue.
    pub arrived_on: &'a dyn Fn(u32, u32) -> Option<CpuId>,
    /// Local ports that a socket listens on.
    pub listening: &'a dyn Fn(u16) -> bool,
}

/// The connection at its last reading; of one that has ended, only what was kept.
pub(super) fn connection(
    track: &Track,
    socket: Option<&TcpSocket>,
    around: &Surroundings<'_>,
) -> TcpConnection {
    let info = socket.and_then(|socket| socket.info.as_ref());
    let memory = socket.and_then(|socket| socket.memory);
    let owner = around.owners.get(&u64::from(track.inode));
    let observed_s = track.observed_s();
    let share =
        |seconds: f32| (observed_s > 0.0).then(|| (f64::from(seconds) / observed_s).min(1.0));
    let of = |field: fn(&TcpInfo) -> u32| info.map(field);
    let rare = track.rare();
    let losses = around.losses.map(|of| of.get(&track.cookie).copied().unwrap_or_default());
    // Of one that existed before, the kernel may have reused the address of another.
    let is_live = socket.is_some() && track.is_new;
    let connect = rare
        .and_then(|rare| rare.connect)
        .or_else(|| is_live.then(|| (around.connect_time)(track.arrival.sock?.get()))?);
    let (times, sender) = (track.times(), track.sender());
    let mut connection = TcpConnection {
        family: if track.v6 { TcpFamily::Inet6 } else { TcpFamily::Inet },
        cookie: Some(track.cookie),
        state: track.state,
        netns: around.netns,
        role: Some(role(track, around)),
        pid: owner.map(|owner| owner.pid).or(track.pid.map(NonZeroU32::get)),
        comm: owner.map(|owner| owner.comm.clone()).or_else(|| rare?.comm.clone()),
        cgroup: owner.and_then(|owner| owner.cgroup.clone()),
        uid: socket.map(|socket| socket.uid),
        age_s: match rare.and_then(|rare| rare.age) {
            Some(age) => Some(age.as_secs_f64()),
            None => track.is_new.then_some(observed_s),
        },
        connect_ns: connect.and_then(whole_ns),
        accept_wait_ns: rare.and_then(|rare| rare.accept_wait).and_then(whole_ns),
        reset: rare.and_then(|rare| rare.reset),
        arrived_on_cpu: track
            .arrival
            .ifindex
            .zip(track.arrival.queue())
            .and_then(|(ifindex, queue)| (around.arrived_on)(ifindex.get(), queue)),
        retransmit_reasons: losses.map(|(retransmits, _)| retransmits),
        reductions: losses
            .filter(|_| around.knows_reductions)
            .map(|(_, reductions)| reductions.unwrap_or_default()),
        samples: around.samples.map(|of| of.get(&track.cookie).cloned().unwrap_or_default()),
        processed_on_cpu: track.arrival.cpu().map(CpuId),
        rx_queue: track.arrival.queue(),
        observed_s,
        closed: socket.is_none(),
        rtt_ns: nanoseconds(track.rtt_us),
        rttvar_ns: of(|i| i.rttvar).filter(|_| track.rtt_us > 0).and_then(nanoseconds),
        min_rtt_ns: Some(track.min_rtt_us).filter(|&us| us != u32::MAX).and_then(nanoseconds),
        receiver_rtt_ns: of(|i| i.rcv_rtt).and_then(nanoseconds),
        rto_ns: of(|i| i.rto).and_then(nanoseconds),
        cwnd: of(|i| i.snd_cwnd),
        ssthresh: of(|i| i.snd_ssthresh).filter(|&segments| segments < INFINITE_SSTHRESH),
        in_flight: of(|i| i.unacked),
        mss: of(|i| i.snd_mss),
        receive_mss: of(|i| i.rcv_mss),
        pmtu: of(|i| i.pmtu),
        lost: of(|i| i.lost),
        reordering: of(|i| i.reordering),
        delivery_rate_bps: info.map(|i| i.delivery_rate.saturating_mul(8)),
        pacing_rate_bps: info.and_then(|i| bits(i.pacing_rate)),
        max_pacing_rate_bps: info.and_then(|i| bits(i.max_pacing_rate)),
        send_window_bytes: of(|i| i.snd_wnd),
        receive_window_bytes: info.and_then(|i| i.rcv_wnd),
        send_queue_bytes: socket.map_or(0, |socket| socket.send_queue),
        unsent_bytes: of(|i| i.notsent_bytes),
        receive_queue_bytes: socket.map_or(0, |socket| socket.receive_queue),
        receive_memory_bytes: memory.map(|memory| memory.receive),
        receive_buffer_bytes: memory.map(|memory| memory.receive_limit),
        send_memory_bytes: memory.map(|memory| memory.send_queued),
        send_buffer_bytes: memory.map(|memory| memory.send_limit),
        congestion_control: socket.and_then(|socket| socket.congestion.clone()),
        ulp: socket.and_then(|socket| socket.ulp.clone()),
        options: info.map(options),
        ato_ns: of(|i| i.ato).and_then(nanoseconds),
        advertised_mss: of(|i| i.advmss),
        sacked: of(|i| i.sacked),
        retransmits_in_flight: of(|i| i.retrans),
        unanswered_timeouts: info.map(|i| i.retransmits),
        backoff: info.map(|i| i.backoff),
        unanswered_probes: info.map(|i| i.probes),
        receive_ssthresh_bytes: of(|i| i.rcv_ssthresh),
        receive_space_bytes: of(|i| i.rcv_space),
        last_sent_ms: of(|i| i.last_data_sent_ms),
        last_received_ms: of(|i| i.last_data_recv_ms),
        last_ack_ms: of(|i| i.last_ack_recv_ms),
        ca_state: info.map(|i| ca_state(i.ca_state)),
        delivery_rate_app_limited: info.map(|i| i.delivery_rate_app_limited),
        busy_ms: info.map(|i| i.busy_time / 1000),
        rwnd_limited_ms: info.map(|i| i.rwnd_limited / 1000),
        sndbuf_limited_ms: info.map(|i| i.sndbuf_limited / 1000),
        rehash: info.and_then(|i| i.rehash),
        timeout_recoveries: info.and_then(|i| i.total_rto_recoveries),
        inode: socket.map(|socket| socket.inode),
        drops: memory.map(|memory| memory.drops),
        totals: track.totals(),
        interval: track.counts(),
        busy_share: share(sender.busy),
        rwnd_limited_share: share(sender.receive_window),
        sndbuf_limited_share: share(sender.send_buffer),
        app_limited_share: share(sender.application),
        limits: times.by_limit(),
        ..TcpConnection::between(track.local.get(), track.remote.get())
    };
    connection.classify();
    connection
}

pub(super) fn role(track: &Track, around: &Surroundings<'_>) -> TcpRole {
    if (around.listening)(track.local.get().1) { TcpRole::Server } else { TcpRole::Client }
}

fn whole_ns(time: Duration) -> Option<u64> {
    u64::try_from(time.as_nanos()).ok()
}

fn nanoseconds(us: u32) -> Option<u64> {
    (us > 0).then(|| u64::from(us) * 1000)
}

/// Bits per second of a rate in bytes per second; `None` if it is unlimited.
fn bits(rate: u64) -> Option<u64> {
    (rate != u64::MAX).then(|| rate.saturating_mul(8))
}

/// `enum tcp_ca_state`, include/uapi/linux/tcp.h.
fn ca_state(number: u8) -> String {
    const NAMES: [&str; 5] = ["open", "disorder", "cwr", "recovery", "loss"];
    NAMES.get(usize::from(number)).map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

/// `TCPI_OPT_*`, include/uapi/linux/tcp.h.
fn options(info: &TcpInfo) -> TcpOptions {
    let has = |bit: u8| info.options & bit != 0;
    TcpOptions {
        timestamps: has(1),
        sack: has(2),
        window_scale: has(4).then_some((info.snd_wscale, info.rcv_wscale)),
        ecn: has(8),
    }
}
