//! Links and queueing disciplines from rtnetlink: one dump of each.

use super::Connection;
use super::attributes::{attributes, find, text_of, u16_of, u32_of};
use super::schedulers;
use nearpath_model::{IfIndex, Qdisc, XdpMode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// `sizeof(struct ifinfomsg)`, include/uapi/linux/rtnetlink.h.
const IFINFOMSG_BYTES: usize = 16;
/// `sizeof(struct tcmsg)`, the same header.
const TCMSG_BYTES: usize = 20;
/// Omits the counters from a link dump (`RTEXT_FILTER_SKIP_STATS`).
const SKIP_STATS: u32 = 1 << 3;
/// `IFLA_VLAN_ID` in the data of a link of kind `vlan`, include/uapi/linux/if_link.h.
const IFLA_VLAN_ID: u16 = 1;
/// `IFLA_VLAN_EGRESS_QOS` there, with an `IFLA_VLAN_QOS_MAPPING` for each entry: `struct ifla_vlan_qos_mapping`.
const IFLA_VLAN_EGRESS_QOS: u16 = 3;
const IFLA_VLAN_QOS_MAPPING: u16 = 1;
/// `IFLA_XDP_ATTACHED` in `IFLA_XDP`, include/uapi/linux/if_link.h.
const IFLA_XDP_ATTACHED: u16 = 2;
/// `TCA_STATS_QUEUE` in `TCA_STATS2`, include/uapi/linux/gen_stats.h.
const TCA_STATS_QUEUE: u16 = 3;

/// `TC_H_ROOT` and `TC_H_INGRESS`, include/uapi/linux/pkt_sched.h. `clsact` has the latter too.
const TC_H_ROOT: u32 = 0xffff_ffff;
const TC_H_INGRESS: u32 = 0xffff_fff1;

/// A link, with the fields that sysfs does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Name.
    pub name: String,
    /// `IFLA_INFO_KIND`: `veth`, `openvswitch`; usually absent for a device on a bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The lower device or the peer, if it is in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<IfIndex>,
    /// The device that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<IfIndex>,
    /// VLAN id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Of a VLAN, the VLAN priority by the priority of a packet that it sends, without those of 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_egress: Option<BTreeMap<u32, u8>>,
    /// Where an XDP program runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<XdpMode>,
}

/// All links of the namespace.
///
/// # Errors
/// The error that ended the dump.
pub(crate) fn links(route: &mut Connection) -> io::Result<BTreeMap<IfIndex, Link>> {
    let mut request = vec![0; IFINFOMSG_BYTES];
    request.extend(super::attribute(libc::IFLA_EXT_MASK, &SKIP_STATS.to_ne_bytes()));
    let mut links = BTreeMap::new();
    route.dump(libc::RTM_GETLINK, &request, |payload| links.extend(link(payload)))?;
    Ok(links)
}

/// A link message: `struct ifinfomsg` and `IFLA_*`.
pub(crate) fn link(payload: &[u8]) -> Option<(IfIndex, Link)> {
    let index = IfIndex(u32_of(payload.get(4..)?)?);
    let mut link = Link::default();
    let mut elsewhere = false;
    for (kind, value) in attributes(payload.get(IFINFOMSG_BYTES..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = text_of(value),
            libc::IFLA_LINK => link.link = u32_of(value).filter(|i| *i != 0).map(IfIndex),
            libc::IFLA_MASTER => link.master = u32_of(value).filter(|i| *i != 0).map(IfIndex),
            libc::IFLA_LINK_NETNSID => elsewhere = true,
            libc::IFLA_XDP => link.xdp = xdp(value),
            libc::IFLA_LINKINFO => {
                link.kind = find(value, libc::IFLA_INFO_KIND).map(text_of);
                if link.kind.as_deref() == Some("vlan") {
                    let data = find(value, libc::IFLA_INFO_DATA);
                    link.vlan = data.and_then(|data| find(data, IFLA_VLAN_ID)).and_then(u16_of);
                    link.vlan_egress = data.map(vlan_egress);
                }
            }
            _ => {}
        }
    }
    // The index of a link in another namespace has no meaning in this one.
    link.link = link.link.filter(|other| !elsewhere && *other != index);
    Some((index, link))
}

/// The `egress-qos-map` in the data of a VLAN; the kernel leaves it out if it is empty.
fn vlan_egress(data: &[u8]) -> BTreeMap<u32, u8> {
    let entry = |(kind, value): (u16, &[u8])| {
        let (from, to) = (u32_of(value)?, u32_of(value.get(4..)?)?);
        let pcp = u8::try_from(to).ok().filter(|pcp| (1..=7).contains(pcp))?;
        (kind == IFLA_VLAN_QOS_MAPPING).then_some((from, pcp))
    };
    attributes(find(data, IFLA_VLAN_EGRESS_QOS).unwrap_or_default()).filter_map(entry).collect()
}

/// Where an XDP program runs: `XDP_ATTACHED_*` in `IFLA_XDP_ATTACHED`.
fn xdp(value: &[u8]) -> Option<XdpMode> {
    match find(value, IFLA_XDP_ATTACHED)?.first()? {
        1 => Some(XdpMode::Native),
        2 => Some(XdpMode::Generic),
        3 => Some(XdpMode::Offloaded),
        4 => Some(XdpMode::Several),
        _ => None,
    }
}

/// All queueing disciplines by interface, the root one first.
///
/// # Errors
/// The error that ended the dump.
pub(crate) fn qdiscs(route: &mut Connection) -> io::Result<BTreeMap<IfIndex, Vec<Qdisc>>> {
    let mut qdiscs: BTreeMap<IfIndex, Vec<Qdisc>> = BTreeMap::new();
    route.dump(libc::RTM_GETQDISC, &[0; TCMSG_BYTES], |payload| {
        let Some((index, new)) = qdisc(payload) else { return };
        let known = qdiscs.entry(index).or_default();
        // A dump that changed in the meantime is read again. Several qdiscs may have handle 0:0.
        match known.iter_mut().find(|q| q.handle == new.handle && q.parent == new.parent) {
            Some(old) => *old = new,
            None => known.push(new),
        }
    })?;
    for of_one in qdiscs.values_mut() {
        of_one.sort_by_key(|qdisc| qdisc.parent != "root");
    }
    Ok(qdiscs)
}

/// A qdisc message: `struct tcmsg` and `TCA_*`.
pub(crate) fn qdisc(payload: &[u8]) -> Option<(IfIndex, Qdisc)> {
    let field = |offset| payload.get(offset..).and_then(u32_of);
    let (index, handle, parent) = (field(4)?, field(8)?, field(12)?);
    let mut qdisc = Qdisc {
        kind: String::new(),
        handle: class(handle),
        parent: match parent {
            TC_H_ROOT => "root".to_owned(),
            TC_H_INGRESS => "ingress".to_owned(),
            other => class(other),
        },
        drops: None,
        overlimits: None,
        backlog_packets: None,
        scheduler: None,
    };
    let mut options = None;
    for (kind, value) in attributes(payload.get(TCMSG_BYTES..)?) {
        match kind {
            libc::TCA_KIND => qdisc.kind = text_of(value),
            libc::TCA_OPTIONS => options = Some(value),
            // struct gnet_stats_queue: qlen, backlog in bytes, drops, requeues, overlimits
            libc::TCA_STATS2 => {
                let queue = find(value, TCA_STATS_QUEUE).unwrap_or_default();
                qdisc.backlog_packets = u32_of(queue);
                qdisc.drops = queue.get(8..).and_then(u32_of).map(u64::from);
                qdisc.overlimits = queue.get(16..).and_then(u32_of).map(u64::from);
            }
            _ => {}
        }
    }
    qdisc.scheduler = options.and_then(|options| schedulers::scheduler(&qdisc.kind, options));
    Some((IfIndex(index), qdisc))
}

/// A handle as printed by `tc`: major and minor in hexadecimal.
fn class(handle: u32) -> String {
    format!("{:x}:{:x}", handle >> 16, handle & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::super::attributes::{attribute, nested};
    use super::*;

    /// A link message as encoded by the kernel.
    fn message(index: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(index.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(attributes.concat());
        bytes
    }

    #[test]
    fn a_vlan_and_a_veth_whose_peer_is_elsewhere() {
        let name = attribute(libc::IFLA_IFNAME, b"eth0.5\0");
        let mapping = |from: u32, to: u32| {
            let both = [from.to_ne_bytes(), to.to_ne_bytes()].concat();
            attribute(IFLA_VLAN_QOS_MAPPING, &both)
        };
        let lower = attribute(libc::IFLA_LINK, &2u32.to_ne_bytes());
        let info = nested(
            libc::IFLA_LINKINFO,
            &[
                attribute(libc::IFLA_INFO_KIND, b"vlan\0"),
                nested(
                    libc::IFLA_INFO_DATA,
                    &[
                        attribute(IFLA_VLAN_ID, &5u16.to_ne_bytes()),
                        nested(
                            IFLA_VLAN_EGRESS_QOS,
                            &[mapping(3, 3), mapping(9, 7), mapping(4, 0)],
                        ),
                    ],
                ),
            ],
        );
        let (index, vlan) = link(&message(9, &[name.clone(), lower.clone(), info])).unwrap();
        assert_eq!(index, IfIndex(9));
        assert_eq!((vlan.name.as_str(), vlan.kind.as_deref()), ("eth0.5", Some("vlan")));
        assert_eq!((vlan.link, vlan.vlan), (Some(IfIndex(2)), Some(5)));
        assert_eq!(vlan.vlan_egress, Some(BTreeMap::from([(3, 3), (9, 7)])));

        let elsewhere = attribute(libc::IFLA_LINK_NETNSID, &0u32.to_ne_bytes());
        let (_, veth) = link(&message(9, &[name, lower, elsewhere])).unwrap();
        assert_eq!(veth.link, None);
    }

    #[test]
    fn xdp_programs_have_a_mode() {
        let name = attribute(libc::IFLA_IFNAME, b"eth0\0");
        let mode = |attached: &[u8]| {
            let xdp = nested(libc::IFLA_XDP, &[attribute(IFLA_XDP_ATTACHED, attached)]);
            link(&message(2, &[name.clone(), xdp])).unwrap().1.xdp
        };
        assert_eq!([mode(&[0]), mode(&[]), mode(&[9])], [None; 3]);
        assert_eq!(mode(&[1]), Some(XdpMode::Native));
        assert_eq!((mode(&[2]), mode(&[4])), (Some(XdpMode::Generic), Some(XdpMode::Several)));
    }

    #[test]
    fn truncated_messages_give_the_complete_attributes() {
        let whole = message(1, &[attribute(libc::IFLA_IFNAME, b"lo\0")]);
        // The last byte is padding.
        for end in 0..whole.len() - 1 {
            assert!(link(&whole[..end]).is_none_or(|(_, link)| link.name.is_empty()), "{end}");
        }
        for end in 0..TCMSG_BYTES {
            assert!(qdisc(&[0; TCMSG_BYTES][..end]).is_none(), "{end}");
        }
    }

    #[test]
    fn qdiscs_as_printed_by_tc() {
        let mut bytes = vec![0; 4];
        for word in [3u32, 0x8001_0000, TC_H_ROOT, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(attribute(libc::TCA_KIND, b"fq_codel\0"));
        let queue: Vec<u8> = [4u32, 6000, 17, 0, 0].iter().flat_map(|v| v.to_ne_bytes()).collect();
        bytes.extend(nested(libc::TCA_STATS2, &[attribute(TCA_STATS_QUEUE, &queue)]));
        let (index, read) = qdisc(&bytes).unwrap();
        assert_eq!(index, IfIndex(3));
        assert_eq!(
            (read.kind.as_str(), read.handle.as_str(), read.parent.as_str()),
            ("fq_codel", "8001:0", "root")
        );
        assert_eq!((read.drops, read.backlog_packets), (Some(17), Some(4)));
    }
}
