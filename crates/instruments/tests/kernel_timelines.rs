//! The paths of slow packets on this kernel. What their budgets say is tested in `kernel_faults`.

mod common;

use common::{can_run, each_cpu_a_node};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Direction, Measurement, Passed};
use nearpath_testing::veth::{Side, VethPair};
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::Duration;

fn socket(pair: &VethPair, side: Side) -> UdpSocket {
    let socket = pair.run(side, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Explains what is slower than `slow` while `work` runs; only datagrams to `port`.
fn explain(port: u16, slow: Duration, work: impl FnOnce()) -> Measurement {
    let filter = Filter { dport: Some(port), ..Filter::default() };
    let options =
        Options { filter, budgets: true, slow: Some(slow), outliers: 1000, ..Options::default() };
    let mut stages = Stages::new(&each_cpu_a_node(), options);
    stages.start().unwrap();
    work();
    stages.stop().unwrap()
}

/// Each slow packet's path contains its slow spans, and continues to its end.
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
