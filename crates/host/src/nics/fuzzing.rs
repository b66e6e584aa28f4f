//! The parsers of NIC data from kernels and snapshots, for fuzz targets: no input may cause a panic.

use super::irq_names::{self, Lone, Named};
use super::netlink::attributes::{attributes, text_of};
use super::netlink::{Message, ethtool, generic_body, messages, netdev, rtnetlink, schedulers};
use super::ntuple;
use nearpath_model::IrqNumber;
use std::collections::BTreeMap;

/// A netlink datagram; each message is parsed as every kind of reply.
pub fn netlink(datagram: &[u8]) {
    for message in messages(datagram) {
        let Message::Data { payload, .. } = message else { continue };
        let _ = (rtnetlink::link(payload), rtnetlink::qdisc(payload));
        for kind in ["mqprio", "etf", "taprio", "cbs"] {
            let _ = schedulers::scheduler(kind, payload);
            let _ = schedulers::scheduler(kind, generic_body(payload));
        }
        let body = generic_body(payload);
        let names = ethtool::feature_names(body);
        let _ = (ethtool::interface(body), ethtool::channels(body), ethtool::rings(body));
        let _ = (ethtool::coalesce(body), ethtool::features(body, &names), ethtool::rss(body));
        let mut queues = BTreeMap::new();
        netdev::add_queue(body, &mut queues);
        let _ = (netdev::napi_irq(body), netdev::napi_parameters(body));
        netdev::add_packets(body, &mut BTreeMap::new());
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

/// Interrupt names from `/proc/interrupts`, as those of one device.
pub fn irq_names(text: &str) {
    let irqs: Vec<_> = (1..).map(IrqNumber).zip(text.lines()).collect();
    let mut names = text.lines();
    let [interface, device, driver] = [(); 3].map(|()| names.next().unwrap_or_default());
    let of = Named { interface, devices: [device; 2], driver: Some(driver) };
    irq_names::assign(of, &irqs, [8, 8], Lone::One);
}

#[cfg(test)]
mod tests {
    use super::super::netlink::{
        attributes::{attribute, nested},
        generic,
    };
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..400)) {
            netlink(&bytes);
            ntuple_rule(&bytes);
        }

        /// Attributes within attributes, in a message whose length is right.
        #[test]
        fn any_attributes_are_read(
            attributes in vec((0u16..40, vec(any::<u8>(), 0..60)), 0..12),
            cut in 0usize..40,
        ) {
            let write = |(kind, value): &(u16, Vec<u8>)| attribute(*kind, value);
            let inner: Vec<Vec<u8>> = attributes.iter().map(write).collect();
            let outer: Vec<Vec<u8>> = (1..6).map(|kind| nested(kind, &inner)).collect();
            let mut payload = generic(0, &outer.concat());
            payload.truncate(payload.len().saturating_sub(cut));
            let length = u32::try_from(16 + payload.len()).unwrap();
            let header = [&length.to_ne_bytes()[..], &[20, 0], &[0; 10]].concat();
            netlink(&[header, payload].concat());
        }

        #[test]
        fn any_names_are_read(names in "([a-z0-9@:._-]{0,12}(TxRx|rx|input|comp)?[-.]?[0-9]{0,12}\n){0,12}") {
            irq_names(&names);
        }
    }
}
