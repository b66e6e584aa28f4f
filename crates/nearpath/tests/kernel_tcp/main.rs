//! `nearpath measure tcp` on this kernel: the numbers of ss(8), and the verdict of connections whose limit is made.

mod capture;
mod mixed;
mod races;
mod samples;
mod scale;
mod scenes;
mod stages;

use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use nearpath_testing::veth::{Side, VethPair};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// The program: of these tests, or another build.
fn nearpath() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_nearpath").into();
    nearpath_testing::other_build().unwrap_or_else(built)
}

fn can_run() -> bool {
    nearpath_testing::require_netns()
}

/// What it prints, a document per line.
fn measured(pair: &VethPair, side: Side, args: &[&str]) -> Vec<TcpMeasurement> {
    let output = Command::new(nearpath())
        .args(["measure", "tcp", "--json", "--netns", &pair.path(side)])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap).collect()
}

/// The last document, of the whole time.
fn whole(pair: &VethPair, side: Side, args: &[&str]) -> TcpMeasurement {
    measured(pair, side, args).pop().unwrap()
}

/// A measurement that has begun.
fn begin(pair: &VethPair, side: Side, args: &[&str]) -> Child {
    begin_with(pair, side, "tcp", args)
}

/// The same with another instrument.
fn begin_with(pair: &VethPair, side: Side, instrument: &str, args: &[&str]) -> Child {
    let mut command = Command::new(nearpath());
    command.args(["measure", instrument, "--json", "--for", "60s", "--netns", &pair.path(side)]);
    nearpath_testing::begin(command.args(args), "Ctrl-C")
}

/// Ends it like Ctrl-C; its document.
fn ended(child: Child) -> TcpMeasurement {
    ended_with(child)
}

/// The same with another instrument.
fn ended_with<Document: serde::de::DeserializeOwned>(mut child: Child) -> Document {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    serde_json::from_str(&text).unwrap()
}

/// A connection from the client to the server.
fn connect(pair: &VethPair, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let address = listener.local_addr().unwrap();
    let client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
    (client, listener.accept().unwrap().0)
}

fn listen(pair: &VethPair) -> TcpListener {
    listen_at(pair, Side::Server.ipv4())
}

fn listen_at(pair: &VethPair, address: IpAddr) -> TcpListener {
    pair.run(Side::Server, |_| TcpListener::bind((address, 0))).unwrap()
}

/// The words of `ss -tieHn` for the connection with this local port: `cwnd:10`, and after a name without a colon its
/// value: `pacing_rate 8Mbps`.
fn ss(pair: &VethPair, side: Side, port: u16) -> BTreeMap<String, String> {
    let run = |_| {
        let filter = format!("sport = :{port}");
        Ok(Command::new("ss").args(["-tieHnO", "state", "established", &filter]).output()?.stdout)
    };
    let text = String::from_utf8(pair.run(side, run).unwrap()).unwrap();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let mut found = BTreeMap::new();
    for (at, word) in words.iter().enumerate() {
        match word.split_once(':') {
            Some((name, value)) => found.insert(name.to_owned(), value.to_owned()),
            None => found.insert((*word).to_owned(), words.get(at + 1).unwrap_or(&"").to_string()),
        };
    }
    found
}

/// The numbers of ss as this program has them; those that ss leaves out are 0 or unknown.
fn as_ss(c: &TcpConnection) -> BTreeMap<&'static str, String> {
    let ms = |ns: Option<u64>| {
        let text = format!("{:.3}", ns.unwrap_or(0) as f64 / 1e6);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let number = |value: Option<u32>| value.unwrap_or(0).to_string();
    let rate = |value: Option<u64>| format!("{}bps", value.unwrap_or(0));
    BTreeMap::from([
        ("rtt", format!("{}/{}", ms(c.rtt_ns), ms(c.rttvar_ns))),
        ("minrtt", ms(c.min_rtt_ns)),
        ("rto", ms(c.rto_ns)),
        ("ato", ms(c.ato_ns)),
        ("mss", number(c.mss)),
        ("pmtu", number(c.pmtu)),
        ("rcvmss", number(c.receive_mss)),
        ("advmss", number(c.advertised_mss)),
        ("cwnd", number(c.cwnd)),
        ("bytes_sent", c.totals.bytes_sent.to_string()),
        ("bytes_acked", c.totals.bytes_acked.to_string()),
        ("bytes_received", c.totals.bytes_received.to_string()),
        ("segs_out", c.totals.segments_out.to_string()),
        ("segs_in", c.totals.segments_in.to_string()),
        ("data_segs_out", c.totals.segments_sent.to_string()),
        ("data_segs_in", c.totals.segments_received.to_string()),
        ("delivered", c.totals.delivered.to_string()),
        ("pacing_rate", rate(c.pacing_rate_bps)),
        ("delivery_rate", rate(c.delivery_rate_bps)),
        ("rcv_space", number(c.receive_space_bytes)),
        ("rcv_ssthresh", number(c.receive_ssthresh_bytes)),
        ("rcv_rtt", ms(c.receiver_rtt_ns)),
        ("snd_wnd", number(c.send_window_bytes)),
    ])
}

/// Between two readings of nstat(8) in a namespace of which only these connections are: every counter of TCP.
#[test]
fn the_counters_are_those_of_nstat() {
    if !can_run() || !nearpath_testing::require_program("nstat") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let port = listener.local_addr().unwrap().port();
    let counters = || {
        let run = |_| Ok(Command::new("nstat").arg("-azsj").output()?.stdout);
        let text = pair.run(Side::Server, run).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        serde_json::from_value::<BTreeMap<String, u64>>(document["kernel"].clone()).unwrap()
    };
    let child = begin(&pair, Side::Server, &["--sport", "1"]);
    let before = counters();
    // Connections that transfer, one that is refused, and one that is reset.
    for round in 0..5 {
        let (mut client, mut server) = connect(&pair, &listener);
        client.write_all(&[1; 100_000]).unwrap();
        server.read_exact(&mut [0; 100_000]).unwrap();
        if round == 0 {
            client.write_all(&[1; 10]).unwrap();
        }
    }
    let closed = (Side::Server.ipv4(), port + 1);
    assert!(pair.run(Side::Client, |_| TcpStream::connect(closed)).is_err());
    let after = counters();
    let document = ended(child);
    let risen: BTreeMap<String, u64> = after
        .into_iter()
        .filter_map(|(name, now)| Some((name.clone(), now.checked_sub(*before.get(&name)?)?)))
        .filter(|(name, rise)| *rise > 0 && name.starts_with("Tcp"))
        .collect();
    assert!(risen.len() >= 8, "{risen:?}");
    // What closing left may arrive after the second reading.
    for (name, rise) in &risen {
        let ours = document.counters.get(name).copied().unwrap_or(0);
        assert!((*rise..=rise + 5).contains(&ours), "{name}: {rise} by nstat, {ours}");
    }
    let ours = document.counters.keys().filter(|name| name.starts_with("Tcp"));
    assert!(ours.clone().count() >= risen.len(), "{ours:?} {risen:?}");
}

/// Of two idle connections, one that has sent and one that has received.
#[test]
fn the_numbers_are_those_of_ss() {
    if !can_run() || !nearpath_testing::require_program("ss") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let (mut client, mut server) = connect(&pair, &listener);
    client.write_all(&[1; 300_000]).unwrap();
    server.read_exact(&mut [0; 300_000]).unwrap();
    server.write_all(&[2; 777]).unwrap();
    client.read_exact(&mut [0; 700]).unwrap();
    // The last delayed acknowledgement is sent within 200 ms (TCP_DELACK_MAX).
    nearpath_testing::wait_for("the acknowledgements", || {
        let left = ss(&pair, Side::Server, server.local_addr().unwrap().port());
        (!left.contains_key("unacked")).then_some(())
    });
    for (side, end) in [(Side::Client, &client), (Side::Server, &server)] {
        let port = end.local_addr().unwrap().port();
        let said = ss(&pair, side, port);
        let sport = port.to_string();
        let document = whole(&pair, side, &["--sport", &sport, "--for", "200ms"]);
        let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
        let ours = as_ss(connection);
        let compared: Vec<_> = ours.iter().filter(|(name, _)| said.contains_key(**name)).collect();
        for (name, value) in &compared {
            assert_eq!(said.get(**name), Some(*value), "{name} of {said:?}");
        }
        assert!(compared.len() >= 18, "{compared:?} {said:?}");
        assert_eq!(connection.receive_queue_bytes, if side == Side::Client { 77 } else { 0 });
        assert_eq!(connection.pid, Some(std::process::id()));
        assert_eq!(said.get("cwnd"), Some(&connection.cwnd.unwrap().to_string()));
    }
}

#[test]
fn a_backlog_that_is_full() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    // Fewer than the default of the standard library.
    rustix::net::listen(&listener, 2).unwrap();
    let address = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            pair.run(Side::Client, |_| {
                let flags = rustix::net::SocketFlags::NONBLOCK;
                let family = rustix::net::AddressFamily::INET;
                let kind = rustix::net::SocketType::STREAM;
                let socket = rustix::net::socket_with(family, kind, flags, None)?;
                // It is under way.
                let _ = rustix::net::connect(&socket, &address);
                Ok(socket)
            })
            .unwrap()
        })
        .collect();
    let port = address.port().to_string();
    let document = whole(&pair, Side::Server, &["--sport", &port, "--for", "500ms"]);
    let [seen] = document.listeners.as_slice() else { panic!("{document:?}") };
    assert_eq!((seen.backlog, seen.backlog_limit, seen.full_share), (3, 2, 1.0));
    assert_eq!(seen.verdict.as_ref().map(|v| v.limit), Some(TcpLimit::Backlog));
    let waits = |c: &TcpConnection| c.verdict.as_ref().map(|v| v.limit) == Some(TcpLimit::Backlog);
    assert_eq!(document.connections.iter().filter(|c| waits(c)).count(), 3, "{document:?}");
    let document = whole(&pair, Side::Client, &["--dport", &port, "--for", "500ms"]);
    assert!(document.connections.iter().filter(|c| waits(c)).count() >= 4, "{document:?}");
    drop(clients);
}

/// A port that is used again is another connection; what has ended is still listed, and counted.
#[test]
fn connections_that_end_are_listed() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let port = listener.local_addr().unwrap().port().to_string();
    let child = begin(&pair, Side::Server, &["--sport", &port]);
    for round in 1..=3 {
        let (mut client, mut server) = connect(&pair, &listener);
        client.write_all(&vec![0; 100 * round]).unwrap();
        server.read_exact(&mut vec![0; 100 * round]).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    let document = ended(child);
    let mut received: Vec<u64> =
        document.connections.iter().map(|c| c.interval.bytes_received).collect();
    received.sort_unstable();
    // The kernel counts the FIN as a byte received, if it arrived before the socket ended.
    let all = |least: &u64, at: usize| (100 * at as u64..=100 * at as u64 + 1).contains(least);
    let right = received.iter().zip(1..).all(|(bytes, at)| all(bytes, at));
    assert!(received.len() == 3 && right, "{received:?}: {:?}", document.connections);
    assert!(document.connections.iter().all(|c| c.closed && c.age_s.is_some()), "{document:?}");
}

/// Without privileges, the kernel reports all connections, but not whose they are.
#[test]
fn without_privilege_the_processes_are_unknown() {
    if !can_run() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let port = client.local_addr().unwrap().port().to_string();
    let program = std::env::temp_dir().join(format!("nearpath-{}", std::process::id()));
    std::fs::copy(nearpath(), &program).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"])
        .arg(&program)
        .args(["measure", "tcp", "--json", "--for", "200ms", "--sport", &port])
        .output();
    std::fs::remove_file(&program).unwrap();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: TcpMeasurement = serde_json::from_slice(&output.stdout).unwrap();
    let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
    assert_eq!((connection.pid, connection.processed_on_cpu), (None, None));
    assert!(connection.cwnd.is_some() && document.unknown.len() >= 2, "{document:?}");
}

/// Connections that live for less than a reading takes are counted one by one.
#[test]
fn no_short_connection_is_missed() {
    const MANY: u64 = 3000;
    if !can_run() || !nearpath_testing::require_bpf() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let port = listener.local_addr().unwrap().port();
    let sport = port.to_string();
    let children = [(Side::Server, "--sport"), (Side::Client, "--dport")]
        .map(|(side, option)| begin(&pair, side, &[option, &sport]));
    let accept = std::thread::spawn(move || {
        for _ in 0..MANY {
            let (mut server, _) = listener.accept().unwrap();
            // The client has sent 10 bytes and closed: so TIME-WAIT, and the port, are the server's.
            server.read_to_end(&mut Vec::new()).unwrap();
        }
    });
    let began = std::time::Instant::now();
    pair.run(Side::Client, |_| {
        for _ in 0..MANY {
            let mut client = TcpStream::connect((Side::Server.ipv4(), port))?;
            client.write_all(&[0; 10])?;
        }
        Ok(())
    })
    .unwrap();
    accept.join().unwrap();
    let seconds = began.elapsed().as_secs_f64();
    // The last one ends when its final acknowledgement arrives.
    nearpath_testing::wait_for("the end of all connections", || {
        let left = pair.run(Side::Server, |_| {
            let states = ["-Htn", "state", "connected", "exclude", "time-wait"];
            Ok(Command::new("ss").args(states).output()?.stdout)
        });
        left.unwrap().is_empty().then_some(())
    });
    for (child, is_client) in children.into_iter().zip([false, true]) {
        let document = ended(child);
        let rate = MANY as f64 / seconds;
        assert_eq!((document.total, document.events_lost), (MANY, 0), "{rate} per second");
        // The kernel counts the FIN as a byte received.
        let bytes = |c: &TcpConnection| match is_client {
            true => c.totals.bytes_sent,
            false => c.totals.bytes_received - 1,
        };
        let right = |c: &&TcpConnection| bytes(c) == 10 && c.pid == Some(std::process::id());
        assert_eq!(document.connections.iter().filter(right).count() as u64, MANY);
        let known = |c: &&TcpConnection| c.connect_ns.is_some() && c.age_s.is_some() && c.closed;
        assert_eq!(document.connections.iter().filter(known).count() as u64, MANY);
    }
}
