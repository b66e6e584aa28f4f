//! The instrument `answers` on this kernel: a server of this test answers after a known time, and measures itself how long
//! that was, between the return of its read and the call that sends.

#[path = "common/mod.rs"]
mod common;

use common::can_run;
use nearpath_instruments::Instrument;
use nearpath_instruments::answers::{Answers, Options, Server};
use nearpath_model::Protocol;
use nearpath_model::answers::{AnswerMeasurement, ServerAnswers};
use nearpath_testing::veth::{Side, VethPair};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const PORT: u16 = 9_100;
/// What the server does before it answers, in turn.
const WORKS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(3), Duration::from_millis(20)];
const REQUESTS: usize = 60;
/// Between its own clock and the programs': the rest of both calls, and a CPU that is taken away. Of 60 in a row, half may
/// not be later than this.
const ROOM: Duration = Duration::from_millis(2);

/// Answers each request after the work; returns how long each took.
fn serve(mut receive: impl FnMut() -> Option<Box<dyn FnOnce()>>) -> Vec<Duration> {
    let mut took = Vec::new();
    while let Some(answer) = receive() {
        let begun = Instant::now();
        std::thread::sleep(WORKS[took.len() % WORKS.len()]);
        answer();
        took.push(begun.elapsed());
    }
    took
}

fn options(pair: &VethPair, protocol: Protocol) -> Options {
    let server = |port, protocol| Server { protocol, port, pid: Some(7), comm: None };
    Options {
        // Another one, which does not answer, and the same port of another protocol.
        servers: vec![server(9, protocol), server(PORT, protocol)],
        netns: Some(u32::try_from(pair.inode(Side::Server).unwrap()).unwrap()),
        ..Options::default()
    }
}

/// The one server that answered.
fn only(m: &AnswerMeasurement) -> &ServerAnswers {
    let [server] = m.servers.as_slice() else { panic!("{m:#?}") };
    assert_eq!((server.port, server.pid), (PORT, Some(7)));
    server
}

/// Its quantiles against the server's own.
fn compare(m: &AnswerMeasurement, mut took: Vec<Duration>) {
    took.sort();
    let server = only(m);
    assert_eq!(server.answers, took.len() as u64, "{m:#?}");
    let near = |ns: u64, own: Duration| {
        let (measured, least) = (Duration::from_nanos(ns), own.saturating_sub(own / 16));
        assert!(measured >= least && measured <= own + own / 16 + ROOM, "{measured:?}, {own:?}");
    };
    near(server.p50_ns, took[took.len() / 2]);
    let longest = *took.last().unwrap();
    assert!(
        Duration::from_nanos(server.max_ns) >= longest - longest / 16,
        "{server:?}, {longest:?}"
    );
}

#[test]
fn a_tcp_server_takes_what_it_measures_itself() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let mut answers = Answers::new(options(&pair, Protocol::Tcp));
    let listener = pair.run(Side::Server, |side| TcpListener::bind((side.ipv4(), PORT))).unwrap();
    answers.start().unwrap();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        serve(move || {
            let mut request = [0; 100];
            // In two parts: the last read counts.
            (&stream).read_exact(&mut request[..30]).ok()?;
            (&stream).read_exact(&mut request[30..]).ok()?;
            let mut answer = stream.try_clone().unwrap();
            Some(Box::new(move || answer.write_all(&[1; 300]).unwrap()))
        })
    });
    let client = |_| {
        let mut stream = TcpStream::connect(SocketAddr::new(Side::Server.ipv4(), PORT))?;
        stream.set_nodelay(true)?;
        for _ in 0..REQUESTS {
            stream.write_all(&[2; 100])?;
            stream.read_exact(&mut [0; 300])?;
        }
        Ok(())
    };
    pair.run(Side::Client, client).unwrap();
    let took = server.join().unwrap();
    compare(&answers.stop().unwrap(), took);
}

#[test]
fn a_udp_server_too_and_only_it() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let mut answers = Answers::new(options(&pair, Protocol::Udp));
    let socket = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), PORT))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    answers.start().unwrap();
    let server = std::thread::spawn(move || {
        serve(move || {
            let mut request = [0; 100];
            let (_, from) = socket.recv_from(&mut request).ok()?;
            let answer = socket.try_clone().unwrap();
            Some(Box::new(move || assert_eq!(answer.send_to(&[1; 300], from).unwrap(), 300)))
        })
    });
    let client = |side: Side| {
        let socket = UdpSocket::bind((side.ipv4(), 0))?;
        socket.connect((Side::Server.ipv4(), PORT))?;
        for _ in 0..REQUESTS {
            socket.send(&[2; 100])?;
            socket.recv(&mut [0; 300])?;
        }
        Ok(())
    };
    pair.run(Side::Client, client).unwrap();
    let took = server.join().unwrap();
    let measured = answers.stop().unwrap();
    if let Some(reason) = measured.unknown.first() {
        nearpath_testing::skip(&reason.reason);
        return;
    }
    compare(&measured, took);
}

/// A server that never answers, and one whose port is another's, have no times; and the programs stop at their budget.
#[test]
fn they_stop_at_their_budget() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let budget = Some(Duration::from_micros(300));
    let mut answers = Answers::new(Options { budget, ..options(&pair, Protocol::Udp) });
    answers.start().unwrap();
    let sends = |side: Side| {
        let socket = UdpSocket::bind((side.ipv4(), 0))?;
        socket.connect((Side::Server.ipv4(), PORT))?;
        // Nothing listens there.
        (0..20_000).for_each(|_| drop(socket.send(&[2; 100])));
        Ok(())
    };
    pair.run(Side::Client, sends).unwrap();
    let measured = answers.read().unwrap();
    assert!(measured.servers.is_empty(), "{measured:#?}");
    assert!(measured.observed_s < measured.duration_s / 2.0, "{measured:#?}");
    let again = answers.stop().unwrap();
    assert_eq!(again.observed_s, measured.observed_s, "it does not begin again");
}
