//! Budgets on this kernel: faults that the test itself injects, one at a time, while packets flow
//! over a veth pair. The cause that a slow packet's budget names first must be the fault.

use nearpath_host::{Cpu, CpuId, CpuSet, LlcId, NodeId, Topology};
use nearpath_instruments::stages::{Filter, Options, Stages};
use nearpath_instruments::{Direction, Instrument, Measurement, Outlier, Passed, ShareKind};
use nearpath_testing::veth::{Side, VethPair};
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const ROUNDS: usize = 100;
/// The CPU of the fault and its victim, and the one that everything else is on.
const VICTIM: u32 = 1;
const OTHER: u32 = 0;

/// Two CPUs with caches and nodes of their own, so that crossings can be told.
fn topology() -> Topology {
    let cpu = |number: u32| Cpu {
        cpu: CpuId(number),
        online: true,
        core: Some(number),
        package: Some(0),
        die: None,
        cluster: None,
        llc: Some(LlcId(number)),
        node: Some(NodeId(number)),
        siblings: CpuSet::new(),
        kind: None,
        capacity: None,
    };
    let highest = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
    let possible: CpuSet = (0..highest.max(2)).map(CpuId).collect();
    let cpus = possible.iter().map(|id| cpu(id.0)).collect();
    Topology { possible, cpus, ..Topology::default() }
}

/// Whether the machine can run these tests.
fn can_run() -> bool {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        return false;
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        nearpath_testing::skip("one CPU: faults and their victims need two");
    }
    cpus >= 2
}

fn pin(cpu: u32) {
    let mut only = rustix::thread::CpuSet::new();
    only.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
}

fn make_fifo(priority: i32) -> std::io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: sets the scheduling of the calling thread; the structure is whole.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn socket(pair: &VethPair, side: Side) -> UdpSocket {
    let socket = pair.run(side, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Explains what is slower than `slow` while `work` runs; only datagrams to `port`.
fn explain(port: u16, slow: Duration, work: impl FnOnce()) -> Measurement {
    let filter = Filter { dport: Some(port), ..Filter::default() };
    let options = Options {
        filter,
        budgets: true,
        slow: Some(slow),
        outliers: 10 * ROUNDS,
        ..Options::default()
    };
    let mut stages = Stages::new(&topology(), options);
    stages.start().unwrap();
    work();
    stages.stop().unwrap()
}

/// Of the slow packets between two kinds of stages: how many there are, and how many of them
/// name the fault first. Every budget adds up.
fn named(m: &Measurement, spans: &[&str], fault: impl Fn(&Outlier) -> bool) -> (usize, usize) {
    for outlier in &m.outliers {
        let sum: u64 = outlier.budget.iter().map(|share| share.ns).sum();
        assert_eq!(sum, outlier.span_ns, "{outlier:?}");
    }
    let of_span = |o: &&Outlier| spans.contains(&o.to.as_str());
    let all = m.outliers.iter().filter(of_span).count();
    (all, m.outliers.iter().filter(of_span).filter(|o| fault(o)).count())
}

#[test]
fn a_real_time_task_before_the_reader_is_named() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = (socket(&pair, Side::Client), socket(&pair, Side::Server));
    let port = server.local_addr().unwrap().port();
    client.connect(server.local_addr().unwrap()).unwrap();
    let (asked, runs, over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let m = std::thread::scope(|scope| {
        let hog = || {
            pin(VICTIM);
            make_fifo(50).unwrap();
            let mut done = 0;
            while !over.load(SeqCst) {
                if asked.load(SeqCst) == done {
                    std::thread::park_timeout(Duration::from_millis(50));
                    continue;
                }
                done += 1;
                runs.store(done, SeqCst);
                spin(Duration::from_millis(3));
            }
        };
        let hog = std::thread::Builder::new().name("hog".to_owned()).spawn_scoped(scope, hog);
        let hog = hog.unwrap();
        let reader = scope.spawn(|| {
            pin(VICTIM);
            let mut buffer = [0; 64];
            for _ in 0..ROUNDS {
                server.recv_from(&mut buffer).unwrap();
            }
        });
        pin(OTHER);
        let m = explain(port, Duration::from_millis(1), || {
            for round in 1..=u32::try_from(ROUNDS).unwrap() {
                asked.store(round, SeqCst);
                hog.thread().unpark();
                // The datagram comes while the hog runs.
                while runs.load(SeqCst) != round {
                    std::hint::spin_loop();
                }
                spin(Duration::from_micros(u64::from(round % 7) * 50));
                client.send(b"now").unwrap();
                spin(Duration::from_millis(5));
            }
            reader.join().unwrap();
        });
        over.store(true, SeqCst);
        hog.thread().unpark();
        m
    });
    let is_hog = |o: &Outlier| {
        let first = o.budget.first();
        first.is_some_and(|share| {
            share.share == ShareKind::Runqueue
                && share.who.as_ref().is_some_and(|who| {
                    who.comm.as_deref() == Some("hog")
                        && who.policy.as_deref() == Some("SCHED_FIFO")
                        && who.prio == Some(50)
                })
        })
    };
    let (all, right) = named(&m, &["sched_switch"], is_hog);
    assert!(all * 10 >= ROUNDS * 9, "{all} of {ROUNDS} were slow: {m:#?}");
    assert!(right * 20 >= all * 19, "{right} of {all} name the hog: {:#?}", m.outliers);
    assert_eq!(m.budget_totals[0].who.as_ref().and_then(|who| who.comm.as_deref()), Some("hog"));
}

/// Each slow packet's path holds its slow spans, and goes on to where its path ended.
#[test]
fn slow_packets_have_their_whole_path() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = (socket(&pair, Side::Client), socket(&pair, Side::Server));
    let port = server.local_addr().unwrap().port();
    client.connect(server.local_addr().unwrap()).unwrap();
    let exchange = || {
        client.send(b"now").unwrap();
        server.recv_from(&mut [0; 64]).unwrap();
    };
    // The very first packet waits for its neighbour's address, and a softirq sends it.
    exchange();
    // Every span is slow; all of them fit into the ring of slow packets.
    let rounds = 8;
    let m = explain(port, Duration::from_nanos(1), || (0..rounds).for_each(|_| exchange()));
    assert_eq!((m.slow.lost, m.slow.paths_lost), (0, 0), "{:?}", m.slow);
    let mut whole = BTreeSet::new();
    for outlier in &m.outliers {
        let ends = |pair: &[Passed]| outlier.ends_at(&pair[0], &pair[1]);
        let at = outlier.path.windows(2).find(|pair| ends(pair));
        let [before, stage] = at.unwrap_or_else(|| panic!("{outlier:#?}")) else { panic!() };
        assert_eq!(stage.at_ns - before.at_ns, outlier.span_ns, "{outlier:#?}");
        assert_eq!((before.cpu, stage.cpu), (outlier.from_cpu, outlier.cpu), "{outlier:#?}");
        assert!(outlier.path.iter().all(|passed| passed.node.map(|n| n.0) == Some(passed.cpu.0)));
        let (begin, end) = (&outlier.path[0].stage, &outlier.path.last().unwrap().stage);
        match outlier.direction {
            Direction::Rx => {
                let begins = ["netif_rx", "irq_handler", "net_rx_raise", "net_rx_entry"];
                assert!(begins.contains(&begin.as_str()), "{outlier:#?}");
            }
            Direction::Tx => assert_eq!(begin, "sock_send", "{outlier:#?}"),
        }
        if ["sock_recv", "consume_skb", "netif_rx"].contains(&end.as_str()) {
            whole.insert(outlier.packet);
        }
    }
    // Of each datagram one packet was sent and one received.
    let packets: BTreeSet<u64> = m.outliers.iter().map(|outlier| outlier.packet).collect();
    assert_eq!(packets.len() as u64, m.packets.started);
    assert_eq!(whole.len() as u64, m.packets.completed, "{:#?}", m.outliers);
    assert!(whole.len() > rounds, "{:?}", m.packets);
}
