//! The parsers on datagrams recorded from kernels, in `tests/fixtures/netlink`: complete, truncated, and with
//! damaged bytes.

use super::{Message, ethtool, generic_body, messages, netdev, rtnetlink};
use crate::nics::fuzzing;
use nearpath_model::{IfIndex, IrqNumber, QueueId};
use std::collections::BTreeMap;

/// A recording: datagrams in hexadecimal, separated by empty lines, after a line that describes them.
macro_rules! recorded {
    ($name:literal) => {
        bytes(include_str!(concat!("../../../tests/fixtures/netlink/", $name, ".hex")))
    };
}

fn bytes(text: &str) -> Vec<Vec<u8>> {
    let hexadecimal = |line: &str| -> Vec<u8> {
        let pairs = line.as_bytes().chunks(2);
        pairs.map(|p| u8::from_str_radix(str::from_utf8(p).unwrap(), 16).unwrap()).collect()
    };
    let (_, text) = text.split_once('\n').unwrap();
    text.trim().split("\n\n").map(|d| d.lines().flat_map(hexadecimal).collect()).collect()
}

/// The payloads of a recording, which ends with success.
fn payloads(datagrams: &[Vec<u8>]) -> Vec<&[u8]> {
    let mut all: Vec<_> = datagrams.iter().flat_map(|datagram| messages(datagram)).collect();
    assert!(matches!(all.pop(), Some(Message::End { errno: 0, .. })));
    let payload = |message| match message {
        Message::Data { payload, .. } => payload,
        end => panic!("an end before the last: {end:?}"),
    };
    all.into_iter().map(payload).collect()
}

#[test]
fn links() {
    let recorded = recorded!("links");
    let links: BTreeMap<_, _> =
        payloads(&recorded).into_iter().filter_map(rtnetlink::link).collect();
    let link = |index, name: &str, kind: Option<&str>, link: Option<u32>, master: Option<u32>| {
        let link = rtnetlink::Link {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            link: link.map(IfIndex),
            master: master.map(IfIndex),
            vlan: None,
            vlan_egress: None,
            xdp: None,
        };
        (IfIndex(index), link)
    };
    let expected = [
        link(1, "lo", None, None, None),
        link(2, "v1", Some("veth"), Some(3), Some(4)),
        link(3, "v0", Some("veth"), Some(2), None),
        link(4, "b0", Some("bridge"), None, None),
        link(5, "mt0", Some("macvtap"), Some(3), None),
    ];
    assert_eq!(links, BTreeMap::from(expected));
}

#[test]
fn qdiscs() {
    let recorded = recorded!("qdiscs");
    let qdiscs: Vec<_> = payloads(&recorded).into_iter().filter_map(rtnetlink::qdisc).collect();
    let of_v0 = qdiscs.iter().find(|(index, _)| *index == IfIndex(3)).map(|(_, qdisc)| qdisc);
    let of_v0 = of_v0.unwrap();
    assert_eq!((of_v0.kind.as_str(), of_v0.handle.as_str()), ("tbf", "5:0"));
    assert_eq!(of_v0.parent, "root");
    assert!(of_v0.drops.is_some() && of_v0.backlog_packets.is_some());
}

#[test]
fn channels_rings_and_coalescing() {
    let recorded = recorded!("channels");
    let channels: BTreeMap<_, _> = payloads(&recorded)
        .into_iter()
        .map(generic_body)
        .filter_map(|body| ethtool::interface(body).zip(ethtool::channels(body)))
        .collect();
    let of_v0 = channels[&IfIndex(3)];
    assert_eq!((of_v0.rx, of_v0.tx, of_v0.combined), (Some(2), Some(2), None));
    assert_eq!((of_v0.rx_max, of_v0.tx_max), (Some(2), Some(2)));

    let recorded = recorded!("rings");
    let rings = ethtool::rings(generic_body(payloads(&recorded)[0])).unwrap();
    assert_eq!((rings.rx, rings.tx_max), (Some(256), Some(256)));

    let recorded = recorded!("coalesce");
    let coalesce = ethtool::coalesce(generic_body(payloads(&recorded)[0])).unwrap();
    assert_eq!((coalesce["rx-usecs"], coalesce["tx-max-frames"]), (0, 1));
}

#[test]
fn features() {
    let recorded = recorded!("feature-names");
    let names = ethtool::feature_names(generic_body(payloads(&recorded)[0]));
    let recorded = recorded!("features");
    let of_nics: BTreeMap<_, _> = payloads(&recorded)
        .into_iter()
        .map(generic_body)
        .filter_map(|body| ethtool::interface(body).zip(ethtool::features(body, &names)))
        .collect();
    let virtio = &of_nics[&IfIndex(4)];
    assert_eq!(
        (virtio["rx-gro"], virtio["rx-hashing"], virtio["rx-checksum"]),
        (true, false, true)
    );
    assert!(of_nics[&IfIndex(1)]["loopback"] && !virtio["loopback"]);
}

#[test]
fn a_hash_function_alone_is_not_rss() {
    let recorded = recorded!("rss");
    assert_eq!(ethtool::rss(generic_body(payloads(&recorded)[0])), None);
}

#[test]
fn queues_and_napi() {
    let mut queues = BTreeMap::new();
    let recorded = recorded!("queues");
    for payload in payloads(&recorded) {
        netdev::add_queue(generic_body(payload), &mut queues);
    }
    let virtio = netdev::QueueNapi { rx: [(QueueId(0), 257)].into(), tx: BTreeMap::new() };
    assert_eq!(queues, [(IfIndex(4), virtio)].into());

    // virtio-net does not report the interrupts of its NAPI instances.
    let recorded = recorded!("napis");
    let irqs = payloads(&recorded).into_iter().filter_map(|p| netdev::napi_irq(generic_body(p)));
    assert_eq!(irqs.collect::<Vec<(u32, IrqNumber)>>(), []);
}

#[test]
fn truncated_and_damaged_datagrams_do_not_panic() {
    let all = [recorded!("links"), recorded!("qdiscs"), recorded!("features"), recorded!("rss")];
    let all = all.into_iter().chain([recorded!("feature-names"), recorded!("queues")]);
    for datagram in all.flatten() {
        for at in (0..datagram.len()).step_by(7) {
            fuzzing::netlink(&datagram[..at]);
        }
        for at in (0..datagram.len()).step_by(3) {
            for byte in [0, 1, 0xff] {
                let mut damaged = datagram.clone();
                damaged[at] = byte;
                fuzzing::netlink(&damaged);
            }
        }
    }
}
