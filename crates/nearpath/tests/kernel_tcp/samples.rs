//! `--detail full`: samples of the round-trip time against a packet capture, waits against those that are made, CPUs
//! against where threads are pinned, and closed windows.

use crate::capture::Capture;
use crate::{begin, can_run, connect, ended, listen, listen_at, whole};
use nearpath_model::tcp::{TcpConnection, TcpMeasurement, TcpSamples};
use nearpath_testing::veth::{Side, VethPair};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

fn can_sample() -> bool {
    can_run() && nearpath_testing::require_bpf()
}

/// The samples of the connection with this local port.
fn samples_of(document: &TcpMeasurement, port: u16) -> &TcpSamples {
    let of = |c: &&TcpConnection| c.sport == port;
    let connection = document.connections.iter().find(of).unwrap_or_else(|| panic!("{document:?}"));
    connection.samples.as_ref().unwrap_or_else(|| panic!("{document:?}"))
}

/// A measurement of this port with full detail that has begun.
fn begin_full(pair: &VethPair, side: Side, port: u16) -> std::process::Child {
    let port = port.to_string();
    begin(pair, side, &["--port", &port, "--detail", "full", "--max-overhead", "none"])
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

fn pause(ms: f64) {
    std::thread::sleep(Duration::from_secs_f64(ms / 1e3));
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Requests of which each is answered after a time of its own, which is that of the acknowledgement as well: for a
/// server that answers within the time of a delayed acknowledgement, there is no other.
fn answer_after(mut server: TcpStream, times_ms: impl Fn(u32) -> f64 + Send + 'static) {
    std::thread::spawn(move || {
        let mut request = [0; 100];
        for round in 0.. {
            if server.read_exact(&mut request).is_err() {
                return;
            }
            pause(times_ms(round));
            if server.write_all(&[1; 50]).is_err() {
                return;
            }
        }
    });
}

#[test]
fn the_median_round_trip_is_that_of_a_capture() {
    if !can_sample() || !nearpath_testing::require_program("tcpdump") {
        return;
    }
    // Steady, spread over a wide range, and two answers out of three late.
    let shapes: [fn(u32) -> f64; 3] = [
        |_| 5.0,
        |round| 2.0 + f64::from(round * 37 % 100) / 10.0,
        |round| if round % 3 == 0 { 1.0 } else { 12.0 },
    ];
    let cases = [
        (shapes[2], Side::Client.ipv4(), Side::Server.ipv4()),
        (shapes[1], Side::Client.ipv6(), Side::Server.ipv6()),
        (shapes[0], Side::Client.ipv4(), Side::Server.ipv4()),
        (shapes[1], Side::Client.ipv4(), Side::Server.ipv4()),
    ];
    for (times_ms, local, peer) in
        cases.into_iter().take(if nearpath_testing::lengthy() { 4 } else { 2 })
    {
        rtt_beside_a_capture(times_ms, local, peer).unwrap();
    }
}

/// Compares the samples of requests that are answered after these times with a capture. The error: how they differ.
fn rtt_beside_a_capture(
    times_ms: fn(u32) -> f64,
    local: IpAddr,
    peer: IpAddr,
) -> Result<(), String> {
    let pair = VethPair::new(1).unwrap();
    let listener = listen_at(&pair, peer);
    let (mut client, server) = connect(&pair, &listener);
    client.set_nodelay(true).unwrap();
    let port = client.local_addr().unwrap().port();
    answer_after(server, times_ms);
    let mut ask = || {
        client.write_all(&[2; 100]).unwrap();
        client.read_exact(&mut [0; 50]).unwrap();
    };
    // Quick acknowledgements of a new connection are over.
    (0..40).for_each(|_| ask());
    let capture = Capture::begin(&pair, Side::Client, port);
    let child = begin_full(&pair, Side::Client, port);
    (0..500).for_each(|_| ask());
    let document = ended(child);
    let mut captured: Vec<u64> = capture.end(local).into_iter().map(|(_, ns)| ns).collect();
    captured.sort_unstable();
    let rtt = &samples_of(&document, port).rtt;
    // The first acknowledgement only shows where the kernel's estimate began, the last one was not followed.
    let missing = captured.len().saturating_sub(usize::try_from(rtt.count).unwrap());
    if captured.len() < 450 || missing > 8 {
        return Err(format!("{} of {}", rtt.count, captured.len()));
    }
    // The median of a part of the samples is one of those around the median of all.
    let middle = captured.len() / 2;
    let around = &captured[middle - missing - 1..=middle + missing + 1];
    let within = |ours: u64, least: u64, most: u64| {
        let is_within = (least as f64 * 0.98..=most as f64 * 1.02).contains(&(ours as f64));
        is_within.then_some(()).ok_or_else(|| format!("{ours} ns, captured {least} to {most} ns"))
    };
    within(rtt.p50_ns.unwrap(), around[0], around[around.len() - 1])?;
    let longest = captured[captured.len() - 1];
    within(rtt.max_ns.unwrap(), longest, longest)
}

/// Acknowledgements wait at a shaper of the receiver's, and each is of many segments, or of a part of one that is as large
/// as TSO allows.
#[test]
fn the_median_round_trip_of_bulk_traffic_is_that_of_a_capture() {
    let programs = ["tcpdump", "tc"];
    if !nearpath_testing::require_lengthy()
        || !can_sample()
        || programs.iter().any(|p| !nearpath_testing::require_program(p))
    {
        return;
    }
    for (local, peer) in
        [(Side::Client.ipv4(), Side::Server.ipv4()), (Side::Client.ipv6(), Side::Server.ipv6())]
    {
        let pair = VethPair::new(1).unwrap();
        // It holds 30 acknowledgements.
        let shape = |what: &str, kbit: u32| {
            let tc = format!("qdisc {what} dev np1 root tbf rate {kbit}kbit burst 1600 limit 2000");
            let run = |_| Ok(Command::new("tc").args(tc.split(' ')).output()?.status.success());
            pair.run(Side::Server, run).unwrap()
        };
        let listener = listen_at(&pair, peer);
        let (mut client, mut server) = connect(&pair, &listener);
        if !shape("add", 400) {
            nearpath_testing::skip("this kernel has no qdisc tbf");
            return;
        }
        let port = client.local_addr().unwrap().port();
        let over = client.try_clone().unwrap();
        let reader =
            std::thread::spawn(move || while server.read(&mut [0; 65_536]).is_ok_and(|n| n > 0) {});
        let sender = std::thread::spawn(move || while client.write_all(&[4; 65_536]).is_ok() {});
        // The first window is sent.
        pause(500.0);
        let capture = Capture::begin(&pair, Side::Client, port);
        let child = begin_full(&pair, Side::Client, port);
        let began = since_1970();
        // Round trips are spread over a wide range: a percentile is interpolated within a bucket.
        for round in 0..40 {
            assert!(shape("change", 300 + round * 37 % 100 * 9));
            pause(100.0);
        }
        let over_at = since_1970();
        let document = ended(child);
        let captured = capture.end(local).into_iter();
        let captured: Vec<u64> =
            captured.filter(|(at, _)| (began..over_at).contains(at)).map(|(_, ns)| ns).collect();
        over.shutdown(std::net::Shutdown::Both).unwrap();
        sender.join().unwrap();
        reader.join().unwrap();
        let rtt = &samples_of(&document, port).rtt;
        assert!(captured.len() >= 300 && rtt.count >= 300, "{} of {}", rtt.count, captured.len());
        let (ours, theirs) = (rtt.p50_ns.unwrap() as f64, median(captured) as f64);
        assert!((ours / theirs - 1.0).abs() <= 0.02, "{ours} ns, captured {theirs} ns");
    }
}

/// The receiver lets each message wait for a known time: no less may be reported, and the median is near it.
#[test]
fn data_waits_for_its_reader_as_long_as_that_makes_it_wait() {
    if !can_sample() {
        return;
    }
    const WAIT_MS: f64 = 4.0;
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let (mut client, mut server) = connect(&pair, &listener);
    let port = server.local_addr().unwrap().port();
    let child = begin_full(&pair, Side::Server, port);
    for _ in 0..100 {
        client.write_all(&[3; 1000]).unwrap();
        pause(WAIT_MS);
        server.read_exact(&mut [0; 1000]).unwrap();
    }
    let document = ended(child);
    let samples = samples_of(&document, port);
    let (wait, least) = (&samples.read_wait, (WAIT_MS * 1e6) as u64);
    assert_eq!(wait.count, 100, "{document:?}");
    // By bucket: the lowest one may begin below.
    let (lowest, _) = wait.buckets[0];
    assert!(lowest >= least && wait.p50_ns.unwrap() < 2 * least, "{wait:?}");
    assert_eq!(document.sampling.unwrap().unmarked, 0);
}

/// A reader that waits in recv(2) has its data at once.
#[test]
fn data_that_is_awaited_waits_for_its_wake_up_only() {
    if !can_sample() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let (mut client, mut server) = connect(&pair, &listener);
    let port = server.local_addr().unwrap().port();
    let child = begin_full(&pair, Side::Server, port);
    let reader = std::thread::spawn(move || {
        let mut read = 0;
        while read < 100_000 {
            read += server.read(&mut [0; 4096]).unwrap();
        }
    });
    for _ in 0..100 {
        client.write_all(&[3; 1000]).unwrap();
        pause(2.0);
    }
    reader.join().unwrap();
    let document = ended(child);
    let wait = &samples_of(&document, port).read_wait;
    assert!(wait.count >= 95 && wait.p50_ns.unwrap() < 1_000_000, "{wait:?}");
}

#[test]
fn a_closed_window_and_the_cpu_of_the_reader_are_seen() {
    if !can_sample() || !nearpath_testing::require_program("taskset") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let (client, server) = connect(&pair, &listener);
    let ports = [&client, &server].map(|end| end.local_addr().unwrap().port());
    let server_child = begin_full(&pair, Side::Server, ports[1]);
    let client_child = begin_full(&pair, Side::Client, ports[1]);
    let sender = std::thread::spawn(move || {
        let mut client = client;
        // Until the reader closes.
        while client.write_all(&[4; 65_536]).is_ok() {}
    });
    // The reader stops three times, long enough for the window to close, and runs on CPU 0 alone. Its buffer does not
    // grow: a slow machine would not fill it (33: SO_RCVBUFFORCE).
    let mut reader = Command::new("taskset")
        .args(["-c", "0", "python3", "-c"])
        .arg(
            "import os, socket, time\n\
             socket.socket(fileno=os.dup(0)).setsockopt(socket.SOL_SOCKET, 33, 1 << 20)\n\
             for _ in range(3):\n\
             \ttime.sleep(0.7)\n\
             \tleft = 60_000_000\n\
             \twhile left > 0: left -= len(os.read(0, 65536))\n",
        )
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(server)))
        .spawn()
        .unwrap();
    assert!(reader.wait().unwrap().success());
    sender.join().unwrap();
    let (at_server, at_client) = (ended(server_child), ended(client_child));
    let (server, client) = (samples_of(&at_server, ports[1]), samples_of(&at_client, ports[0]));
    // The kernel's own count. A window that opens and closes between two segments is seen by neither end.
    let counted = at_server.counters.get("TcpExtTCPToZeroWindowAdv").copied().unwrap_or(0);
    assert!(counted >= 2, "{:?}", at_server.counters);
    for (seen, of_other) in [
        (server.own_zero_windows, server.peer_zero_windows),
        (client.peer_zero_windows, client.own_zero_windows),
    ] {
        assert!((counted.div_ceil(2)..=counted).contains(&seen), "{seen} of {counted}");
        assert_eq!(of_other, 0);
    }
    assert_eq!(server.read_on_cpu.map(|cpu| cpu.0), Some(0));
    // What waited during a stop.
    assert!(server.read_wait.max_ns.unwrap() >= 500_000_000, "{server:?}");
}

/// The limit is kept by time slices, and the output says for how long packets were observed.
#[test]
fn the_overhead_limit_pauses_sampling() {
    if !nearpath_testing::require_lengthy() || !can_sample() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let (mut client, mut server) = connect(&pair, &listener);
    let both = [client.try_clone().unwrap(), server.try_clone().unwrap()];
    let port = listener.local_addr().unwrap().port().to_string();
    let reader =
        std::thread::spawn(move || while server.read(&mut [0; 64]).is_ok_and(|n| n > 0) {});
    let sender = std::thread::spawn(move || {
        // Small segments, each a program's run.
        client.set_nodelay(true).unwrap();
        while client.write_all(&[5; 64]).is_ok() {}
    });
    let args = ["--port", &port, "--for", "3s", "--detail", "full", "--max-overhead", "0.5%"];
    let document = whole(&pair, Side::Server, &args);
    let sampling = document.sampling.unwrap();
    // Either may have ended with the other.
    both.iter().for_each(|end| drop(end.shutdown(std::net::Shutdown::Both)));
    sender.join().unwrap();
    reader.join().unwrap();
    assert!(sampling.observed > 100, "{sampling:?}");
    assert!(sampling.observed_s < 0.9 * document.duration_s, "{sampling:?}");
}
