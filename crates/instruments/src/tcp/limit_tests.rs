//! What limits a connection, by readings of the kernel's figures.

use super::limit::*;
use super::receiver::receiver_limit;
use nearpath_host::{SocketMemory, TcpInfo, TcpSocket};
use nearpath_model::tcp::{TcpLimit, TcpState};
use proptest::prelude::*;

/// One of an established connection, of which nothing else is known.
pub(super) fn socket() -> TcpSocket {
    let end = std::net::SocketAddr::from(([127, 0, 0, 1], 80));
    TcpSocket {
        v6: false,
        state: TcpState::Established,
        timer: 0,
        local: end,
        remote: end,
        interface: 0,
        cookie: Some(1),
        inode: 1,
        uid: 0,
        receive_queue: 0,
        send_queue: 0,
        memory: None,
        congestion: None,
        ulp: None,
        cgroup: None,
        info: None,
    }
}

/// A sender with data to send and a full congestion window, on a path of 20 ms.
fn sender() -> TcpInfo {
    TcpInfo {
        options: 7,
        rtt: 20_000,
        min_rtt: 20_000,
        snd_cwnd: 10,
        unacked: 10,
        notsent_bytes: 50_000,
        snd_ssthresh: INFINITE_SSTHRESH,
        snd_wnd: 25_000,
        pacing_rate: u64::MAX,
        max_pacing_rate: u64::MAX,
        busy_time: 1_000_000,
        bytes_sent: 1_000_000,
        ..TcpInfo::default()
    }
}

/// The limit of one second that was busy from its start.
fn limit(info: TcpInfo, socket: &TcpSocket, late: Late) -> Option<TcpLimit> {
    let start = TcpInfo {
        busy_time: 0,
        rwnd_limited: 0,
        sndbuf_limited: 0,
        bytes_sent: 0,
        bytes_received: 0,
        ..info
    };
    let before = Before { was_full: true, ..Before::of(&start, socket, None, 0.0) };
    let mut times = Times::default();
    divide(&before, socket, &info, 1.0, late, &mut times);
    nearpath_model::tcp::main_limit(&times.by_limit(), 1.0).map(|(limit, _)| limit)
}

#[test]
fn a_sender_is_limited_by_what_its_figures_say() {
    let of = |change: fn(&mut TcpInfo)| {
        let mut info = sender();
        change(&mut info);
        limit(info, &socket(), Late::default())
    };
    let lossy = |info: &mut TcpInfo| (info.snd_ssthresh, info.total_retrans) = (5, 30);
    for (wanted, change) in [
        // In slow start.
        (TcpLimit::CongestionWindow, (|_: &mut TcpInfo| {}) as fn(&mut TcpInfo)),
        (TcpLimit::CongestionWindow, lossy),
        (TcpLimit::Path, |info| info.rtt = 60_000),
        // As much as it varies anyway: no queue that stands.
        (TcpLimit::CongestionWindow, |info| (info.rtt, info.rttvar) = (60_000, 30_000)),
        (TcpLimit::Path, |info| (info.pacing_rate, info.max_pacing_rate) = (9, 9)),
        (TcpLimit::Application, |info| info.busy_time = 0),
        (TcpLimit::Application, |info| (info.notsent_bytes, info.unacked) = (0, 2)),
        // The second piece of a request, which Nagle's algorithm holds until the first one is acknowledged, late.
        (TcpLimit::Application, |info| {
            (info.notsent_bytes, info.unacked, info.snd_mss) = (100, 1, 1448);
            (info.min_rtt, info.rtt, info.rttvar) = (20, 21_000, 24_000);
        }),
        (TcpLimit::ReceiveWindow, |info| info.rwnd_limited = 900_000),
        (TcpLimit::SendBuffer, |info| info.sndbuf_limited = 900_000),
        // A bottleneck whose queue they fill.
        (TcpLimit::Path, |info| (info.rwnd_limited, info.rtt) = (900_000, 60_000)),
        (TcpLimit::Path, |info| (info.sndbuf_limited, info.rtt) = (900_000, 60_000)),
        // Less than the product of rate and minimum RTT twice over.
        (TcpLimit::ReceiveWindow, |info| (info.rwnd_limited, info.rtt) = (900_000, 30_000)),
        // Paced by BBR, which keeps half of its window in flight.
        (TcpLimit::Path, |info| (info.snd_cwnd, info.unacked) = (100, 50)),
        (TcpLimit::Reader, |info| (info.rwnd_limited, info.snd_wnd) = (900_000, 0)),
        // The window is open at both readings, but so little is sent per round trip that it was closed between them.
        (TcpLimit::Reader, |info| (info.rwnd_limited, info.bytes_sent) = (900_000, 100_000)),
        (TcpLimit::Timeouts, |info| info.backoff = 3),
        (TcpLimit::Timeouts, |info| {
            (info.last_data_sent_ms, info.last_ack_recv_ms) = (150, 180);
        }),
        // After a pause, data was just sent.
        (TcpLimit::CongestionWindow, |info| info.last_ack_recv_ms = 5000),
        (TcpLimit::Timeouts, |info| info.ca_state = CA_LOSS),
        // It recovers at the rate of the path.
        (TcpLimit::Path, |info| {
            (info.ca_state, info.rtt, info.rto) = (CA_LOSS, 60_000, 260_000);
        }),
        // It recovers from timeouts again and again, on a path whose round trips differ by a millisecond or two.
        (TcpLimit::Timeouts, |info| {
            (info.ca_state, info.min_rtt, info.rtt, info.rto) = (CA_LOSS, 300, 1700, 202_000);
        }),
    ] {
        assert_eq!(of(change), Some(wanted));
    }
}

/// BBR sends at the rate that it measured: losses do not make it smaller, a send buffer does.
#[test]
fn a_sender_that_paces_is_limited_by_its_path_or_its_buffer() {
    let bbr = |send_queued| {
        let memory = SocketMemory { send_queued, send_limit: 100_000, ..SocketMemory::default() };
        TcpSocket { congestion: Some("bbr".to_owned()), memory: Some(memory), ..socket() }
    };
    let lossy = TcpInfo { snd_mss: 1448, snd_ssthresh: 5, total_retrans: 30, ..sender() };
    let room = TcpInfo { snd_cwnd: 100, unacked: 50, snd_wnd: 1_000_000, ..lossy };
    for info in [lossy, room] {
        // 10 or 50 segments are in flight.
        let of = |unsent, send_queued, rtt| {
            let info = TcpInfo { notsent_bytes: unsent, rtt, ..info };
            limit(info, &bbr(send_queued), Late::default())
        };
        assert_eq!(
            of(200_000, 90_000, 20_000),
            Some(TcpLimit::Path),
            "the buffer is larger than the path"
        );
        assert_eq!(of(10_000, 30_000, 20_000), Some(TcpLimit::Path), "the buffer has room");
        assert_eq!(of(10_000, 90_000, 60_000), Some(TcpLimit::Path), "a queue");
        assert_eq!(of(10_000, 90_000, 20_000), Some(TcpLimit::SendBuffer));
    }
    let cubic = TcpSocket { congestion: Some("cubic".to_owned()), ..bbr(90_000) };
    assert_eq!(limit(lossy, &cubic, Late::default()), Some(TcpLimit::CongestionWindow));
}

#[test]
fn a_late_cpu_explains_the_path_but_no_window() {
    let late = Late { softirq: Some(Lateness::Busy), reader: None };
    let windowed = TcpInfo { rwnd_limited: 1_000_000, ..sender() };
    assert_eq!(limit(sender(), &socket(), late), Some(TcpLimit::Cpu));
    assert_eq!(limit(windowed, &socket(), late), Some(TcpLimit::ReceiveWindow));
    // 40 ms of the round trip are spent in queues: for the CPU, or elsewhere.
    let queued = TcpInfo { rtt: 60_000, ..sender() };
    for (us, wanted) in [(25_000, TcpLimit::Cpu), (3000, TcpLimit::Path)] {
        let late = Late { softirq: Some(Lateness::Waits(us)), reader: None };
        assert_eq!(limit(queued, &socket(), late), Some(wanted));
        assert_eq!(limit(sender(), &socket(), late), Some(TcpLimit::CongestionWindow));
    }
}

#[test]
fn a_receiver_waits_for_its_peer_its_window_or_its_reader() {
    let receiver = TcpInfo {
        options: 1,
        bytes_received: 1_000_000,
        rcv_wnd: Some(100_000),
        rcv_rtt: 20_000,
        snd_ssthresh: INFINITE_SSTHRESH,
        min_rtt: u32::MAX,
        ..TcpInfo::default()
    };
    let none = Late::default();
    assert_eq!(limit(receiver, &socket(), none), Some(TcpLimit::Peer));
    // 20 kB per round trip fill a window of 20 kB.
    let narrow = TcpInfo { rcv_wnd: Some(20_000), ..receiver };
    assert_eq!(limit(narrow, &socket(), none), Some(TcpLimit::ReceiveWindow));
    // They wait in a queue, as the handshake took a millisecond: the path is slower than the window.
    let queueing = TcpInfo { min_rtt: 1000, ..narrow };
    assert_eq!(limit(queueing, &socket(), none), Some(TcpLimit::Peer));
    let far = TcpInfo { min_rtt: 15_000, ..narrow };
    assert_eq!(limit(far, &socket(), none), Some(TcpLimit::ReceiveWindow));
    let queued = TcpSocket { receive_queue: 60_000, ..socket() };
    assert_eq!(limit(receiver, &queued, none), Some(TcpLimit::Reader));
    // The window that was offered before the queue filled was wider.
    let closing = TcpInfo { rcv_wnd: Some(0), ..receiver };
    let slow = TcpSocket { receive_queue: 4_000, ..socket() };
    let before = Before { widest_receive_window: 100_000, was_full: true, ..Before::default() };
    assert_eq!(receiver_limit(&before, &slow, &closing, 1.0), TcpLimit::Reader);
    assert_eq!(receiver_limit(&before, &socket(), &closing, 1.0), TcpLimit::Peer);
    // What has just arrived did not wait.
    let fresh = Before { was_full: false, ..before };
    assert_eq!(receiver_limit(&fresh, &slow, &closing, 1.0), TcpLimit::Peer);
    let old = TcpInfo { last_data_recv_ms: 30, ..closing };
    assert_eq!(receiver_limit(&fresh, &slow, &old, 1.0), TcpLimit::Reader);
    // A request that nobody reads, to a server that has sent more than it has received.
    let unread = TcpInfo { last_data_recv_ms: 300, ..receiver };
    let server = TcpInfo { bytes_sent: 0, bytes_received: 0, ..unread };
    for info in [unread, server] {
        let request = TcpSocket { receive_queue: 100, ..socket() };
        assert_eq!(limit(info, &request, none), Some(TcpLimit::Reader));
        assert_ne!(limit(info, &socket(), none), Some(TcpLimit::Reader));
    }
    let full = SocketMemory { receive: 70, receive_limit: 100, ..SocketMemory::default() };
    let full = TcpSocket { receive_queue: 10, memory: Some(full), ..socket() };
    assert_eq!(limit(receiver, &full, none), Some(TcpLimit::Reader));
    let late = Late { softirq: None, reader: Some(ReaderLateness::Waits) };
    assert_eq!(limit(receiver, &queued, late), Some(TcpLimit::Cpu));
    // A request waits for it; a stream that the window lets pass does not, if the reader catches up.
    let request = TcpSocket { receive_queue: 100, ..socket() };
    for (ms, wanted) in [(40, TcpLimit::Cpu), (1, TcpLimit::Peer)] {
        let info = TcpInfo { last_data_recv_ms: ms, ..receiver };
        assert_eq!(limit(info, &request, late), Some(wanted));
        let saturated = Late { reader: Some(ReaderLateness::Saturated), ..late };
        assert_eq!(limit(info, &request, saturated), Some(TcpLimit::Cpu));
    }
}

/// A full window arrives in one of three readings, and once in 50 ms: that is the rate of the window.
#[test]
fn a_window_full_of_data_arrives_at_once() {
    let mut info = TcpInfo {
        options: 1,
        rcv_ssthresh: 15_000,
        rcv_rtt: 50_000,
        last_data_recv_ms: 20,
        ..TcpInfo::default()
    };
    let mut before = Before::of(&info, &socket(), None, 0.0);
    let mut found = Vec::new();
    for windows in [3, 1, 2].repeat(10) {
        info.bytes_received += windows * 14_500;
        found.push(receiver_limit(&before, &socket(), &info, 0.1));
        before = Before::of(&info, &socket(), Some(&before), 0.1);
    }
    assert_eq!(found, [TcpLimit::ReceiveWindow; 30]);
}

#[test]
fn a_connection_that_is_not_accepted_waits_in_the_backlog() {
    let waits = TcpSocket { inode: 0, ..socket() };
    assert_eq!(limit(sender(), &waits, Late::default()), Some(TcpLimit::Backlog));
    let given_up = TcpSocket { state: TcpState::CloseWait, receive_queue: 4, ..waits.clone() };
    assert_eq!(limit(sender(), &given_up, Late::default()), Some(TcpLimit::Backlog));
    let subflow = TcpSocket { ulp: Some("mptcp".to_owned()), ..waits };
    assert_ne!(limit(sender(), &subflow, Late::default()), Some(TcpLimit::Backlog));
}

proptest! {
    /// Whatever the kernel reports, the parts add up to the whole.
    #[test]
    fn the_time_is_divided_without_a_rest(
        numbers in proptest::collection::vec(any::<u32>(), 12),
        seconds in 0.001f64..100.0,
    ) {
        let info = TcpInfo {
            busy_time: numbers[0].into(),
            rwnd_limited: numbers[1].into(),
            sndbuf_limited: numbers[2].into(),
            bytes_sent: numbers[3].into(),
            bytes_received: numbers[4].into(),
            rtt: numbers[5],
            min_rtt: numbers[6],
            snd_cwnd: numbers[7],
            unacked: numbers[8],
            snd_wnd: numbers[9],
            total_rto_time_ms: Some(numbers[10]),
            notsent_bytes: numbers[11],
            ..TcpInfo::default()
        };
        let mut times = Times::default();
        let before = Before { timeout_ms: Some(0), ..Before::default() };
        divide(&before, &socket(), &info, seconds, Late::default(), &mut times);
        let sum: f64 = times.by_limit().values().sum();
        prop_assert!((sum - seconds).abs() <= seconds * 1e-4, "{sum} of {seconds}");
    }
}

/// A slow reader's window is open at most readings.
#[test]
fn a_window_that_was_just_closed_is_a_slow_readers() {
    let closed = TcpInfo { snd_wnd: 0, ..sender() };
    let limit_after = |readings: usize| {
        let mut before = Before::of(&closed, &socket(), None, 0.0);
        for _ in 0..readings {
            before = Before::of(&sender(), &socket(), Some(&before), 0.05);
        }
        let later = TcpInfo {
            busy_time: 2_000_000,
            rwnd_limited: 1_000_000,
            bytes_sent: 2_000_000,
            ..sender()
        };
        let mut times = Times::default();
        divide(&before, &socket(), &later, 1.0, Late::default(), &mut times);
        nearpath_model::tcp::main_limit(&times.by_limit(), 1.0).map(|(limit, _)| limit)
    };
    for (readings, wanted) in
        [(0, TcpLimit::Reader), (3, TcpLimit::Reader), (4, TcpLimit::ReceiveWindow)]
    {
        assert_eq!(limit_after(readings), Some(wanted), "{readings}");
    }
}
