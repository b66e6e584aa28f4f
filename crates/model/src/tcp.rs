//! Results of the instrument `tcp`: connections, what limits each, and the counters of the host.

mod counts;
mod group;
mod interval;
mod limit;
mod samples;
mod state;
mod verdict;

pub use counts::TcpCounts;
pub use group::{TcpGroup, TcpPer};
pub use limit::{TcpLimit, TcpVerdict, main_limit};
pub use samples::{TcpReductions, TcpReset, TcpSamples, TcpSampling, TcpTimes};
pub use state::TcpState;

use crate::{CpuId, EventCost, Unknown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Version of the JSON form of [`TcpMeasurement`].
pub const TCP_MEASUREMENT_SCHEMA: u32 = 1;

/// TCP connections in an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpMeasurement {
    /// [`TCP_MEASUREMENT_SCHEMA`].
    pub schema: u32,
    /// Duration of the interval, in seconds.
    pub duration_s: f64,
    /// The filter, as on the command line; empty if all connections were observed.
    pub filter: String,
    /// Connections seen, including those that are not listed.
    pub total: u64,
    /// The connections, those with the most bytes first.
    pub connections: Vec<TcpConnection>,
    /// Listening sockets.
    pub listeners: Vec<TcpListener>,
    /// The same by group, if grouping was requested.
    pub groups: Vec<TcpGroup>,
    /// Counters of the network namespace that changed, by their names in nstat(8), with their increase.
    pub counters: BTreeMap<String, u64>,
    /// Events that the kernel dropped because a buffer was full.
    pub events_lost: u64,
    /// How each packet was observed; `None` unless the detail is `full`.
    #[serde(default)]
    pub sampling: Option<TcpSampling>,
    /// What reading cost.
    pub cost: TcpCost,
    /// What could not be observed, with the reason.
    pub unknown: Vec<Unknown>,
}

/// What reading the connections cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpCost {
    /// How often the sockets were read.
    pub dumps: u64,
    /// Sockets in them, in total.
    pub sockets: u64,
    /// CPU time per socket read, in nanoseconds; `None` if none was read.
    pub ns_per_socket: Option<f64>,
    /// CPU time of reading; 100 is one whole CPU.
    pub cpu_percent: f64,
    /// Cost of the programs in the kernel, if any were attached.
    pub programs: Option<EventCost>,
    /// Cost of those that run for each packet (detail `full`).
    #[serde(default)]
    pub sampling: Option<EventCost>,
}

/// A family of addresses, as in `ss -f`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TcpFamily {
    /// An IPv4 socket.
    #[default]
    Inet,
    /// An IPv6 socket, which may carry IPv4.
    Inet6,
}

/// Which end of a connection this host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TcpRole {
    /// A socket listens on the local port.
    Server,
    /// None does.
    Client,
}

/// A connection, as it was at the end of the interval, with the numbers of ss(8); what the kernel did not report
/// is `None`. Fields that end in `_share` are shares of the time in which it was observed, 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TcpConnection {
    /// Family of the socket.
    pub family: TcpFamily,
    /// Local address.
    pub src: IpAddr,
    /// Local port.
    pub sport: u16,
    /// Remote address.
    pub dst: IpAddr,
    /// Remote port.
    pub dport: u16,
    /// Identifies the socket until the next boot.
    pub cookie: Option<u64>,
    /// State at the end.
    pub state: TcpState,
    /// Inode of the network namespace.
    pub netns: Option<u64>,
    /// Which end this host is.
    pub role: Option<TcpRole>,
    /// The process that has it open.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: Option<String>,
    /// Its cgroup.
    pub cgroup: Option<String>,
    /// Owner of the socket.
    pub uid: Option<u32>,
    /// Time since its SYN, in seconds; known if it began during the measurement.
    pub age_s: Option<f64>,
    /// From its SYN until it was established; known with BPF, of connections that began during the measurement.
    pub connect_ns: Option<u64>,
    /// How long it waited for accept(2), if that was long enough to be seen: longer than the time between two readings,
    /// and exact to that time.
    #[serde(default)]
    pub accept_wait_ns: Option<u64>,
    /// Who reset it, if it ended so; known with BPF.
    #[serde(default)]
    pub reset: Option<TcpReset>,
    /// The CPU that handles the interrupts of the queue that received its last packet; `None` if the queue has none.
    #[serde(default)]
    pub arrived_on_cpu: Option<CpuId>,
    /// The CPU that processed its last packet; `None` without BPF.
    pub processed_on_cpu: Option<CpuId>,
    /// The queue of the device that received its last packet.
    pub rx_queue: Option<u32>,
    /// How long it was observed, in seconds.
    pub observed_s: f64,
    /// Whether it ended in the interval; the rest is then of the last moment at which it was seen.
    pub closed: bool,

    /// Smoothed round-trip time (RFC 6298).
    pub rtt_ns: Option<u64>,
    /// Its mean deviation.
    pub rttvar_ns: Option<u64>,
    /// The minimum of the last 5 minutes (`net.ipv4.tcp_min_rtt_wlen`).
    pub min_rtt_ns: Option<u64>,
    /// The receiver's estimate of the round-trip time.
    pub receiver_rtt_ns: Option<u64>,
    /// Retransmission time-out.
    pub rto_ns: Option<u64>,
    /// Congestion window, in segments.
    pub cwnd: Option<u32>,
    /// Slow start threshold, in segments; `None` if it was never reduced.
    pub ssthresh: Option<u32>,
    /// Segments sent and not acknowledged.
    pub in_flight: Option<u32>,
    /// Size of the segments sent, in bytes.
    pub mss: Option<u32>,
    /// Size of the largest segments received.
    pub receive_mss: Option<u32>,
    /// MTU of the path.
    pub pmtu: Option<u32>,
    /// Segments that are considered lost at the end.
    pub lost: Option<u32>,
    /// By how many segments the path reorders.
    pub reordering: Option<u32>,
    /// Rate at which the receiver gets data, in bits per second.
    pub delivery_rate_bps: Option<u64>,
    /// Rate at which segments are sent; `None` if it is not limited.
    pub pacing_rate_bps: Option<u64>,
    /// Upper limit of that, set by the application.
    pub max_pacing_rate_bps: Option<u64>,
    /// Window that the peer offers, in bytes.
    pub send_window_bytes: Option<u32>,
    /// Window offered to the peer.
    pub receive_window_bytes: Option<u32>,
    /// Data written by the application and not acknowledged.
    pub send_queue_bytes: u32,
    /// The part of it that has not been sent.
    pub unsent_bytes: Option<u32>,
    /// Data received and not read by the application.
    pub receive_queue_bytes: u32,
    /// Memory of received packets, and its limit.
    pub receive_memory_bytes: Option<u32>,
    /// Limit of the receive memory (`SO_RCVBUF`, or tuned by the kernel).
    pub receive_buffer_bytes: Option<u32>,
    /// Memory of data to send.
    pub send_memory_bytes: Option<u32>,
    /// Limit of the send memory (`SO_SNDBUF`, or tuned by the kernel).
    pub send_buffer_bytes: Option<u32>,
    /// Congestion control.
    pub congestion_control: Option<String>,
    /// Protocol above TCP in the kernel: `tls`, `mptcp`.
    pub ulp: Option<String>,
    /// Whether these were negotiated.
    pub options: Option<TcpOptions>,

    /// Delayed acknowledgement timer.
    pub ato_ns: Option<u64>,
    /// Size of segments announced to the peer, in bytes.
    pub advertised_mss: Option<u32>,
    /// Segments in flight that were selectively acknowledged.
    pub sacked: Option<u32>,
    /// Segments in flight that are retransmissions.
    pub retransmits_in_flight: Option<u32>,
    /// Time-outs since the last acknowledgement.
    pub unanswered_timeouts: Option<u8>,
    /// Doublings of the time-out.
    pub backoff: Option<u8>,
    /// Probes of a closed window that were not answered.
    pub unanswered_probes: Option<u8>,
    /// Limit of the window offered to the peer, in bytes.
    pub receive_ssthresh_bytes: Option<u32>,
    /// What the application reads per round-trip time, in bytes.
    pub receive_space_bytes: Option<u32>,
    /// Time since data was last sent.
    pub last_sent_ms: Option<u32>,
    /// Time since data was last received.
    pub last_received_ms: Option<u32>,
    /// Time since an acknowledgement was last received.
    pub last_ack_ms: Option<u32>,
    /// State of congestion control (`TCP_CA_*`): `open`, `disorder`, `cwr`, `recovery`, `loss`.
    #[serde(default)]
    pub ca_state: Option<String>,
    /// Whether `delivery_rate_bps` was limited by the application.
    #[serde(default)]
    pub delivery_rate_app_limited: Option<bool>,
    /// Since the connection began, in milliseconds: data in flight or waiting to be sent,
    #[serde(default)]
    pub busy_ms: Option<u64>,
    /// of this stopped by the receiver's window,
    #[serde(default)]
    pub rwnd_limited_ms: Option<u64>,
    /// and by the send buffer.
    #[serde(default)]
    pub sndbuf_limited_ms: Option<u64>,
    /// Changes of the flow's hash after timeouts; since Linux 6.2.
    #[serde(default)]
    pub rehash: Option<u32>,
    /// Recoveries that began with a timeout; since Linux 6.7.
    #[serde(default)]
    pub timeout_recoveries: Option<u16>,
    /// Inode of the socket; 0 if no process has it open.
    #[serde(default)]
    pub inode: Option<u32>,
    /// Packets that the socket dropped because a queue was full.
    #[serde(default)]
    pub drops: Option<u32>,

    /// Counts since the connection began.
    #[serde(flatten)]
    pub totals: TcpCounts,
    /// Their increase in the interval.
    pub interval: TcpCounts,
    /// Retransmissions by their reason, since the start of the measurement; `None` without BPF.
    pub retransmit_reasons: Option<TcpRetransmits>,
    /// Reductions of the congestion window, since the start of the measurement; `None` without BPF or before
    /// Linux 5.19.
    #[serde(default)]
    pub reductions: Option<TcpReductions>,
    /// What each packet showed; `None` unless the detail is `full`.
    #[serde(default)]
    pub samples: Option<TcpSamples>,
    /// Share of time in which data was in flight or waited to be sent.
    pub busy_share: Option<f64>,
    /// Share of time in which the receiver's window stopped it.
    pub rwnd_limited_share: Option<f64>,
    /// Share of time in which the send buffer stopped it.
    pub sndbuf_limited_share: Option<f64>,
    /// Share of time in which the application had nothing to send.
    pub app_limited_share: Option<f64>,
    /// What limited it, with the time.
    pub limits: BTreeMap<TcpLimit, f64>,
    /// What limited it most.
    pub verdict: Option<TcpVerdict>,
}

impl TcpConnection {
    /// Whether it stands: data or a request waits, and nothing was acknowledged or received in the interval.
    pub fn is_stuck(&self) -> bool {
        const WAITS: [TcpLimit; 3] = [TcpLimit::Backlog, TcpLimit::Timeouts, TcpLimit::Reader];
        let counts = &self.interval;
        let limit = main_limit(&self.limits, self.observed_s);
        !self.closed
            && counts.bytes_acked == 0
            && counts.bytes_received == 0
            && limit.is_some_and(|(limit, _)| WAITS.contains(&limit))
    }

    /// A connection of which only the ends are known.
    pub fn between((src, sport): (IpAddr, u16), (dst, dport): (IpAddr, u16)) -> Self {
        Self {
            family: if src.is_ipv4() { TcpFamily::Inet } else { TcpFamily::Inet6 },
            src,
            sport,
            dst,
            dport,
            cookie: None,
            state: TcpState::Established,
            netns: None,
            role: None,
            pid: None,
            comm: None,
            cgroup: None,
            uid: None,
            age_s: None,
            connect_ns: None,
            accept_wait_ns: None,
            reset: None,
            arrived_on_cpu: None,
            processed_on_cpu: None,
            rx_queue: None,
            observed_s: 0.0,
            closed: false,
            rtt_ns: None,
            rttvar_ns: None,
            min_rtt_ns: None,
            receiver_rtt_ns: None,
            rto_ns: None,
            cwnd: None,
            ssthresh: None,
            in_flight: None,
            mss: None,
            receive_mss: None,
            pmtu: None,
            lost: None,
            reordering: None,
            delivery_rate_bps: None,
            pacing_rate_bps: None,
            max_pacing_rate_bps: None,
            send_window_bytes: None,
            receive_window_bytes: None,
            send_queue_bytes: 0,
            unsent_bytes: None,
            receive_queue_bytes: 0,
            receive_memory_bytes: None,
            receive_buffer_bytes: None,
            send_memory_bytes: None,
            send_buffer_bytes: None,
            congestion_control: None,
            ulp: None,
            options: None,
            ato_ns: None,
            advertised_mss: None,
            sacked: None,
            retransmits_in_flight: None,
            unanswered_timeouts: None,
            backoff: None,
            unanswered_probes: None,
            receive_ssthresh_bytes: None,
            receive_space_bytes: None,
            last_sent_ms: None,
            last_received_ms: None,
            last_ack_ms: None,
            ca_state: None,
            delivery_rate_app_limited: None,
            busy_ms: None,
            rwnd_limited_ms: None,
            sndbuf_limited_ms: None,
            rehash: None,
            timeout_recoveries: None,
            inode: None,
            drops: None,
            totals: TcpCounts::default(),
            interval: TcpCounts::default(),
            retransmit_reasons: None,
            reductions: None,
            samples: None,
            busy_share: None,
            rwnd_limited_share: None,
            sndbuf_limited_share: None,
            app_limited_share: None,
            limits: BTreeMap::new(),
            verdict: None,
        }
    }
}

/// Options of a connection (`TCPI_OPT_*`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpOptions {
    /// Timestamps (RFC 7323).
    pub timestamps: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Window scaling: the shift of the peer's and of the own window.
    pub window_scale: Option<(u8, u8)>,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

/// Retransmissions by their reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpRetransmits {
    /// Found by duplicate or selective acknowledgements.
    pub fast: u64,
    /// After a time-out.
    pub timeout: u64,
    /// Tail loss probes (RFC 8985).
    pub probe: u64,
}

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TcpListener {
    /// Its address.
    pub src: IpAddr,
    /// Its port.
    pub sport: u16,
    /// The process that has it open.
    pub pid: Option<u32>,
    /// Its name.
    pub comm: Option<String>,
    /// Connections that wait to be accepted.
    pub backlog: u32,
    /// The highest number seen.
    pub backlog_max_seen: u32,
    /// How many it holds (`listen(2)`, `net.core.somaxconn`).
    pub backlog_limit: u32,
    /// Share of the readings in which it was full, 0 to 1.
    pub full_share: f64,
    /// Connections dropped by this socket.
    pub drops: Option<u64>,
    /// That it is full, if so.
    pub verdict: Option<TcpVerdict>,
}
