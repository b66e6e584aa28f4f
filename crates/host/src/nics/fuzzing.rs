//! The parsers of what kernels and snapshots say of NICs, for fuzz targets: any bytes go in,
//! and nothing may panic.

use super::netlink::attributes::{attributes, text_of};
use super::netlink::{Message, ethtool, generic_body, messages, netdev, rtnetlink};
use super::{irq_names, ntuple};
use crate::IrqNumber;
use std::collections::BTreeMap;

/// A datagram of netlink, each message of which is read as every kind of reply.
pub fn netlink(datagram: &[u8]) {
    for message in messages(datagram) {
        let Message::Data { payload, .. } = message else { continue };
        let _ = (rtnetlink::link(payload), rtnetlink::qdisc(payload));
        let body = generic_body(payload);
        let names = ethtool::feature_names(body);
        let _ = (ethtool::interface(body), ethtool::channels(body), ethtool::rings(body));
        let _ = (ethtool::coalesce(body), ethtool::features(body, &names), ethtool::rss(body));
        let mut queues = BTreeMap::new();
        netdev::add_queue(body, &mut queues);
        let _ = netdev::napi_irq(body);
        attributes(body).for_each(|(_, value)| drop(text_of(value)));
    }
}

/// An n-tuple rule as the driver's ioctl fills it.
pub fn ntuple_rule(bytes: &[u8]) {
    let mut bytes = bytes.iter().copied();
    let mut next = || bytes.next().unwrap_or_default();
    let mut spec = ntuple::FlowSpec {
        flow_type: u32::from_ne_bytes(std::array::from_fn(|_| next())),
        ring_cookie: u64::from_ne_bytes(std::array::from_fn(|_| next())),
        ..ntuple::FlowSpec::default()
    };
    spec.value.fill_with(&mut next);
    spec.mask.fill_with(&mut next);
    spec.value_ext.fill_with(&mut next);
    spec.mask_ext.fill_with(&mut next);
    ntuple::rule(&spec, 0);
}

/// Lines of `/proc/interrupts`' names, as those of one device.
pub fn irq_names(text: &str) {
    let irqs: Vec<_> = (1..).map(IrqNumber).zip(text.lines()).collect();
    irq_names::assign(text.lines().next().unwrap_or_default(), &irqs, 8, 8);
}
