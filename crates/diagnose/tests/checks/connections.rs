//! TCP connections of healthy hosts, as noisy as real ones, and one that is limited.

use nearpath_model::tcp::{
    TcpConnection, TcpCounts, TcpLimit, TcpListener, TcpMeasurement, TcpOptions, TcpState,
};
use std::net::{IpAddr, Ipv4Addr};

const MS: u64 = 1_000_000;
const MSS: u64 = 1448;

fn server() -> IpAddr {
    IpAddr::from([192, 0, 2, 1])
}

/// An established connection that was idle for ten seconds.
fn idle(number: u32) -> TcpConnection {
    let client = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number / 4));
    let port = 10_000 + (number % 50_000) as u16;
    let mut c = TcpConnection::between((server(), 443), (client, port));
    (c.comm, c.pid) = (Some("nginx".to_owned()), Some(800));
    c.cookie = Some(number.into());
    c.observed_s = 10.0;
    c.limits.insert(TcpLimit::Application, 10.0);
    c.options =
        Some(TcpOptions { timestamps: true, sack: true, window_scale: Some((7, 7)), ecn: false });
    (c.mss, c.pmtu, c.advertised_mss) = (Some(MSS as u32), Some(1500), Some(1448));
    (c.rtt_ns, c.rttvar_ns, c.min_rtt_ns) = (Some(31 * MS), Some(2 * MS), Some(30 * MS));
    c.congestion_control = Some("cubic".to_owned());
    (c.receive_buffer_bytes, c.send_buffer_bytes) = (Some(131_072), Some(87_040));
    (c.receive_window_bytes, c.send_window_bytes) = (Some(65_536), Some(65_536));
    c
}

/// Full segments sent, and these retransmitted.
fn sent(segments: u64, retransmits: u64) -> TcpCounts {
    TcpCounts {
        bytes_sent: segments * MSS,
        bytes_acked: segments * MSS,
        segments_out: segments,
        segments_in: segments / 2,
        segments_sent: segments,
        delivered: segments,
        retransmits,
        timeouts: Some(0),
        timeout_s: Some(0.0),
        ..TcpCounts::default()
    }
}

/// Of every sixteen connections, some do what alarms nobody.
fn ordinary(number: u32) -> TcpConnection {
    let mut c = idle(number);
    let limit = |c: &mut TcpConnection, limit, seconds| {
        c.limits = [(limit, seconds), (TcpLimit::Application, 10.0 - seconds)].into();
    };
    match number % 16 {
        // A transfer over the cable, full speed, over a path that loses one in ten thousand.
        1 => {
            c.interval = sent(200_000, 20);
            (c.rtt_ns, c.rttvar_ns, c.min_rtt_ns) = (Some(MS), Some(MS / 4), Some(MS / 5));
            c.ssthresh = Some(80);
            limit(&mut c, TcpLimit::CongestionWindow, 4.0);
        }
        // A client on a wireless link.
        2 => {
            c.interval = sent(900, 4);
            (c.rtt_ns, c.rttvar_ns) = (Some(90 * MS), Some(40 * MS));
            (c.unsent_bytes, c.delivery_rate_bps) = (Some(900_000), Some(6_000_000));
            limit(&mut c, TcpLimit::Path, 8.0);
        }
        // A peer that has gone away.
        3 if number < 64 => {
            c.interval = TcpCounts { timeouts: Some(5), segments_in: 0, ..sent(5, 5) };
            c.rto_ns = Some(6_400 * MS);
            limit(&mut c, TcpLimit::Timeouts, 10.0);
        }
        // Over loopback, where the receiver's window is what limits.
        4 => {
            (c.src, c.dst) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST));
            c.interval = sent(3_000_000, 0);
            c.interval.bytes_received = c.interval.bytes_sent * 2;
            (c.min_rtt_ns, c.rttvar_ns) = (Some(20_000), Some(9 * MS));
            c.receive_buffer_bytes = Some(6_291_456);
            limit(&mut c, TcpLimit::ReceiveWindow, 9.0);
        }
        // A far peer with a small buffer: its own affair.
        5 => {
            c.interval = sent(4_000, 0);
            limit(&mut c, TcpLimit::ReceiveWindow, 9.5);
        }
        // An application that sets a small SO_SNDBUF.
        6 => {
            c.interval = sent(3_000, 0);
            c.send_buffer_bytes = Some(32_768);
            limit(&mut c, TcpLimit::SendBuffer, 8.0);
        }
        // Requests now and then, whose acknowledgements are delayed.
        7 => {
            c.interval = TcpCounts { bytes_sent: 9_000, bytes_acked: 9_000, ..sent(60, 0) };
            (c.rtt_ns, c.rttvar_ns, c.min_rtt_ns) = (Some(41 * MS), Some(18 * MS), Some(MS));
        }
        // A queue stands in the path of an upload: the window that it fills is no limit.
        8 => {
            c.interval.bytes_received = 12_000_000;
            (c.receiver_rtt_ns, c.receive_buffer_bytes) = (Some(400 * MS), Some(6_291_456));
            limit(&mut c, TcpLimit::ReceiveWindow, 9.0);
        }
        // An old client: no options, little data.
        9 => {
            c.options = Some(TcpOptions::default());
            c.interval = sent(40, 1);
        }
        10 => (c.state, c.options) = (TcpState::SynSent, Some(TcpOptions::default())),
        11 => c.closed = true,
        _ => {}
    }
    c
}

/// What was measured on a healthy host with so many connections.
pub fn busy_and_healthy(connections: u32) -> TcpMeasurement {
    let listener = TcpListener {
        src: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        sport: 443,
        pid: Some(800),
        comm: Some("nginx".to_owned()),
        backlog: 3,
        backlog_max_seen: 512,
        backlog_limit: 511,
        full_share: 0.01,
        drops: Some(0),
        verdict: None,
    };
    TcpMeasurement {
        duration_s: 10.0,
        total: connections.into(),
        connections: (0..connections).map(ordinary).collect(),
        listeners: vec![listener],
        ..TcpMeasurement::default()
    }
}

/// A transfer over 30 ms that this limits for nine seconds of ten.
pub fn limited(limit: TcpLimit) -> TcpConnection {
    let mut c = idle(1_000_000);
    c.limits = [(limit, 9.0), (TcpLimit::Application, 1.0)].into();
    match limit {
        TcpLimit::ReceiveWindow => {
            c.interval.bytes_received = 900_000_000;
            (c.receive_window_bytes, c.receive_buffer_bytes) = (Some(3_000_000), Some(6_291_456));
        }
        TcpLimit::SendBuffer => {
            c.interval = sent(600_000, 0);
            c.send_buffer_bytes = Some(4_194_304);
        }
        _ => {
            c.interval = sent(20_000, 200);
            c.ssthresh = Some(10);
        }
    }
    c
}
