//! Connections over loopback: each is accepted once and answered, and both sides end on request.

use super::*;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const PATIENCE: Duration = Duration::from_secs(20);

fn load() -> ConnectionLoad {
    ConnectionLoad {
        callers: 3,
        rate_hz: 50,
        requests: 4,
        request_bytes: 100,
        response_bytes: 200_000,
    }
}

/// Runs workers, and callers until each of them has ended this many connections.
fn run(load: &ConnectionLoad, workers: usize, each: u64) -> (CallersReport, Vec<WorkerReport>) {
    let first = Worker::listen(ANY, load).unwrap();
    let address = first.address().unwrap();
    let more = (1..workers).map(|_| Worker::listen(address, load).unwrap());
    let workers: Vec<Worker> = std::iter::once(first).chain(more).collect();
    std::thread::scope(|scope| {
        let started = workers.into_iter().map(|worker| {
            let (end, ends) = std::os::unix::net::UnixStream::pair().unwrap();
            (end, scope.spawn(move || worker.serve(ends.as_fd()).unwrap()))
        });
        let started: Vec<_> = started.collect();
        let cpus = crate::affinity::current().unwrap();
        let callers = Callers::start(load, address, &cpus).unwrap();
        let begin = Instant::now();
        while callers.ended().iter().any(|&ended| ended < each) {
            assert!(begin.elapsed() < PATIENCE, "{:?}", callers.ended());
            std::thread::sleep(Duration::from_millis(2));
        }
        let report = callers.finish();
        let reports = started.into_iter().map(|(end, worker)| {
            drop(end);
            worker.join().unwrap()
        });
        (report, reports.collect())
    })
}

#[test]
fn every_connection_is_accepted_once_and_answered() {
    let load = load();
    let (callers, workers) = run(&load, 4, 10);
    assert_eq!((callers.failed, &callers.failures[..]), (0, &[][..]));
    assert!(callers.connected >= 30 && callers.connected <= callers.planned, "{callers:?}");
    assert_eq!(callers.answered, callers.connected * u64::from(load.requests));
    let sum = |of: fn(&WorkerReport) -> u64| workers.iter().map(of).sum::<u64>();
    assert_eq!(sum(|worker| worker.accepted), callers.connected);
    assert_eq!(sum(|worker| worker.answered), callers.answered);
    assert_eq!(sum(|worker| worker.broken), 0);
    // The kernel distributes them by a hash: of 30, hardly all to one.
    assert!(workers.iter().filter(|worker| worker.accepted > 0).count() > 1, "{workers:?}");
}

#[test]
fn a_vanished_server_is_a_failure() {
    let load = load();
    let worker = Worker::listen(ANY, &load).unwrap();
    let address = worker.address().unwrap();
    drop(worker);
    let callers = Callers::start(&load, address, &crate::affinity::current().unwrap()).unwrap();
    let begin = Instant::now();
    while callers.ended().contains(&0) && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let report = callers.finish();
    assert!(report.failed >= 3 && report.connected == 0, "{report:?}");
    assert!(report.failures[0].starts_with("a connection to 127.0.0.1:"), "{report:?}");
}

#[test]
fn invalid_loads_are_refused() {
    for spoil in [
        |load: &mut ConnectionLoad| load.callers = 0,
        |load: &mut ConnectionLoad| load.requests = 0,
        |load: &mut ConnectionLoad| load.response_bytes = u32::MAX,
    ] {
        let mut load = load();
        spoil(&mut load);
        assert!(Worker::listen(ANY, &load).is_err(), "{load:?}");
    }
    assert!(ConnectionLoad::moderate(4096).check().is_ok());
}

#[test]
fn threads_run_on_their_cpus() {
    let cpu = crate::affinity::current().unwrap().iter().last().into_iter().collect();
    let callers = Callers::start(&load(), ANY, &cpu).unwrap();
    for tid in callers.tids() {
        assert_eq!(crate::affinity::of(tid).unwrap(), cpu);
    }
    assert_eq!(callers.tids().len(), 3);
}
