//! Prober and sink over loopback, with real sockets.

use super::*;
use nearpath_host::Root;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn sink() -> (Sink, SocketAddr) {
    let sink = Sink::start(&[V4], 0, None).unwrap();
    let at = sink.addresses()[0];
    (sink, at)
}

fn plan(target: SocketAddr, offered: Offered) -> PacketsPlan {
    PacketsPlan {
        target,
        source: None,
        offered,
        size: PACKET_MIN,
        flows: 2,
        duration: Duration::from_millis(400),
        trial: Duration::from_millis(100),
        cpus: None,
    }
}

fn sleep(time: Duration) -> bool {
    std::thread::sleep(time);
    true
}

fn measure(plan: &PacketsPlan) -> PacketsReport {
    measure_packets(plan, &Root::live(), &sleep, &mut |_| {}).unwrap()
}

#[test]
fn packets_of_a_slow_rate_all_arrive_and_cost_something() {
    let (_sink, target) = sink();
    let report = measure(&plan(target, Offered::Rate(2_000)));
    let trial = report.result.as_ref().unwrap();
    assert!(
        report.same_host && report.trials.is_empty() && report.unknown.is_empty(),
        "{report:?}"
    );
    assert_eq!((trial.lost, trial.duplicated, trial.drops.socket), (0, 0, Some(0)), "{report:?}");
    // Of 800; threads that a busy machine starts late send fewer, at the same rate.
    assert!(trial.reached && trial.sent >= 200 && trial.sent <= 801, "{report:?}");
    assert!(trial.sender_threads_ns > Some(0.0) && trial.receiver_threads_ns > Some(0.0));
    assert!(!trial.cpus.is_empty() || trial.duration_s < 0.5, "{report:?}");
}

#[test]
fn an_unlimited_rate_is_higher_and_its_loss_is_counted_at_the_socket() {
    let (_sink, target) = sink();
    let report = measure(&plan(target, Offered::Fastest));
    let trial = report.result.as_ref().unwrap();
    assert!(trial.sent > 5_000 && trial.received > 0, "{report:?}");
    assert_eq!(trial.lost, trial.sent - trial.received);
    // Over loopback packets are lost only at the sockets and the backlogs.
    let counted = trial.drops.socket.unwrap() + trial.drops.receiver_backlog.unwrap();
    assert!(trial.lost <= counted, "{report:?}");
}

#[test]
fn a_search_ends_with_a_rate_without_loss() {
    let (_sink, target) = sink();
    let mut seen = 0;
    // Allows for the occasional loss on a busy machine.
    let plan = plan(target, Offered::Search { max_loss_percent: 20.0 });
    let report = measure_packets(&plan, &Root::live(), &sleep, &mut |_| seen += 1).unwrap();
    assert!(seen >= 2 && report.trials.len() == seen, "{report:?}");
    let found = report.result.as_ref().unwrap();
    assert!(found.loss_percent <= 20.0 && Some(found) == report.trials.last(), "{report:?}");
}

#[test]
fn stop_requests_are_honoured() {
    let (_sink, target) = sink();
    let plan =
        PacketsPlan { duration: Duration::from_secs(600), ..plan(target, Offered::Rate(100)) };
    let should_continue = |time: Duration| time < Duration::from_secs(1) && sleep(time);
    let report = measure_packets(&plan, &Root::live(), &should_continue, &mut |_| {}).unwrap();
    assert!(report.ended_early && report.result.is_some());
}

#[test]
fn errors_name_the_operation() {
    let nobody = plan("127.0.0.1:1".parse().unwrap(), Offered::Fastest);
    let error = measure_packets(&nobody, &Root::live(), &sleep, &mut |_| {}).unwrap_err();
    assert!(error.to_string().starts_with("no packet sink at 127.0.0.1:1"), "{error}");
    let bad: [fn(&mut PacketsPlan); 4] = [
        |p| p.size = 3,
        |p| p.flows = 0,
        |p| p.offered = Offered::Rate(0),
        |p| p.offered = Offered::Search { max_loss_percent: f64::NAN },
    ];
    for spoil in bad {
        let mut plan = nobody.clone();
        spoil(&mut plan);
        let error = measure_packets(&plan, &Root::live(), &sleep, &mut |_| {}).unwrap_err();
        assert!(matches!(error, PacketsError::Plan(_)), "{error}");
    }
}

#[test]
fn invalid_clients_are_refused_and_disconnected() {
    let (sink, target) = sink();
    let line = |mut stream: &TcpStream, request: &str| {
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    };
    let one = TcpStream::connect(target).unwrap();
    assert!(line(&one, "GET / HTTP/1.0\n").contains("refused"));
    assert!(line(&one, "{\"begin\":{\"trial\":1}}\n").contains("refused"), "nothing is prepared");
    let prepare = "{\"prepare\":{\"ports\":[5],\"size\":64}}\n";
    assert!(line(&one, prepare).contains("ready"));
    assert!(line(&one, "{\"end\":{\"sent\":[1]}}\n").contains("no trial has been started"));
    let _more: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(target).unwrap()).collect();
    // The fifth exceeds the limit, once the others were accepted.
    let fifth = TcpStream::connect(target).unwrap();
    let mut answer = String::new();
    BufReader::new(&fifth).read_line(&mut answer).unwrap();
    assert!(answer.contains("other measurements are running"), "{answer}");
    drop(sink);
}
