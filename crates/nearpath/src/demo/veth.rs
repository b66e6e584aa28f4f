//! The path between the two namespaces: a veth pair with several queues, its addresses and its qdiscs, created
//! over rtnetlink.

use super::namespace::Namespace;
use super::rtnl::Rtnl;
use anyhow::{Context, Result, anyhow};
use netlink_packet_core::DefaultNla;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rustix::net::{AddressFamily as SocketFamily, SocketType, netdevice, socket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

/// One end of the pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// Name of the interface.
    pub(super) device: &'static str,
    /// Its addresses, from the ranges reserved for benchmarks (RFC 2544, RFC 5180).
    pub(super) ipv4: Ipv4Addr,
    /// As above.
    pub(super) ipv6: Ipv6Addr,
}

/// The sending end.
pub(super) const CLIENT: End = End {
    device: "demo-client",
    ipv4: Ipv4Addr::new(198, 18, 0, 1),
    ipv6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1),
};
/// The receiving end, which is misplaced.
pub(super) const SERVER: End = End {
    device: "demo-server",
    ipv4: Ipv4Addr::new(198, 18, 0, 2),
    ipv6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2),
};
const IPV4_PREFIX: u8 = 24;
const IPV6_PREFIX: u8 = 64;

/// Creates the pair, one end in each namespace, with this number of receive and transmit queues.
///
/// # Errors
/// The kernel has no veth, or refused.
pub(super) fn create(client: &Namespace, server: &Namespace, queues: u32) -> Result<()> {
    let sized = |end: End| {
        let mut link = LinkMessage::default();
        link.attributes = vec![
            LinkAttribute::IfName(end.device.to_owned()),
            LinkAttribute::NumTxQueues(queues),
            LinkAttribute::NumRxQueues(queues),
        ];
        link
    };
    let (mut link, mut peer) = (sized(CLIENT), sized(SERVER));
    peer.attributes.push(LinkAttribute::NetNsFd(server.file().as_raw_fd()));
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    client.run(|| {
        Rtnl::open()?.create(Message::NewLink(link)).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => {
                anyhow!("the demo requires veth devices (CONFIG_VETH), which this kernel lacks")
            }
            _ => anyhow!("cannot create a veth pair: {error}"),
        })
    })
}

/// How one end was set up.
#[derive(Debug)]
pub(super) struct Setup {
    /// Its addresses.
    pub(super) addresses: Vec<IpAddr>,
    /// The qdisc of its transmit queues.
    pub(super) qdisc: &'static str,
    /// Settings that the kernel refused, and why.
    pub(super) notes: Vec<String>,
}

/// Assigns the addresses of an end and brings it up; if a number of transmit queues is given, each of them
/// gets a qdisc.
///
/// # Errors
/// The kernel refused a setting that the demo requires.
pub(super) fn set_up(namespace: &Namespace, end: End, queues: Option<u32>) -> Result<Setup> {
    namespace.run(|| {
        let device = end.device;
        let index = index(device)?;
        let mut rtnl = Rtnl::open().context("cannot open an rtnetlink socket")?;
        let mut notes = Vec::new();
        let qdisc = match queues {
            Some(queues) => queue(&mut rtnl, end, index, queues, &mut notes)?,
            None => "noqueue",
        };
        let mut up = LinkMessage::default();
        up.header.index = index;
        up.header.flags = LinkFlags::Up;
        up.header.change_mask = LinkFlags::Up;
        rtnl.change(Message::SetLink(up)).with_context(|| format!("cannot bring up {device}"))?;
        let ipv4 = IpAddr::V4(end.ipv4);
        rtnl.create(Message::NewAddress(address(index, ipv4, IPV4_PREFIX)))
            .with_context(|| format!("cannot assign {ipv4} to {device}"))?;
        let mut addresses = vec![ipv4];
        let ipv6 = IpAddr::V6(end.ipv6);
        match rtnl.create(Message::NewAddress(address(index, ipv6, IPV6_PREFIX))) {
            Ok(()) => addresses.push(ipv6),
            Err(reason) => notes.push(format!("no IPv6 on {device}: {reason}")),
        }
        Ok(Setup { addresses, qdisc, notes })
    })
}

/// Deletes the pair and verifies that both ends are gone.
///
/// # Errors
/// It does not exist, or an end is left.
pub(super) fn delete(client: &Namespace, server: &Namespace) -> Result<()> {
    client.run(|| {
        let mut link = LinkMessage::default();
        link.header.index = index(CLIENT.device)?;
        Rtnl::open()?.change(Message::DelLink(link)).context("cannot delete the veth pair")
    })?;
    for (namespace, end) in [(client, CLIENT), (server, SERVER)] {
        if namespace.run(|| index(end.device)).is_ok() {
            anyhow::bail!("{} still exists after its deletion", end.device);
        }
    }
    Ok(())
}

/// The index of an interface in this thread's namespace.
fn index(device: &str) -> Result<u32> {
    let socket = socket(SocketFamily::INET, SocketType::DGRAM, None).context("a socket")?;
    netdevice::name_to_index(&socket, device).with_context(|| device.to_owned())
}

fn address(index: u32, address: IpAddr, prefix_len: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.prefix_len = prefix_len;
    message.header.family =
        if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    if address.is_ipv6() {
        // Without NODAD an address cannot be used for its first second.
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    message
}

/// Gives each transmit queue a token bucket, which enqueues and dequeues every packet: the usual qdiscs let a
/// packet bypass them when they are empty (TCQ_F_CAN_BYPASS).
fn queue(
    rtnl: &mut Rtnl,
    end: End,
    index: u32,
    queues: u32,
    notes: &mut Vec<String>,
) -> Result<&'static str> {
    let index = i32::try_from(index).context("interface index")?;
    let major = 1;
    let mut root = qdisc(index, TcHandle::ROOT, "mq");
    root.header.handle = TcHandle { major, minor: 0 };
    if let Err(reason) = rtnl.create(Message::NewQueueDiscipline(root)) {
        notes.push(format!("no qdisc on {}: {reason}", end.device));
        return Ok("noqueue");
    }
    for queue in 1..=u16::try_from(queues).context("number of queues")? {
        let mut bucket = qdisc(index, TcHandle { major, minor: queue }, "tbf");
        bucket.attributes.push(TcAttribute::Options(token_bucket()));
        if let Err(reason) = rtnl.replace(Message::NewQueueDiscipline(bucket)) {
            notes.push(format!("no token bucket on {}: {reason}", end.device));
            return Ok("mq, default qdisc");
        }
    }
    Ok("mq, tbf")
}

fn qdisc(index: i32, parent: TcHandle, kind: &str) -> TcMessage {
    let mut message = TcMessage::with_index(index);
    message.header.parent = parent;
    message.attributes.push(TcAttribute::Kind(kind.to_owned()));
    message
}

/// A rate far above the demo's load, so that nothing waits for tokens.
const RATE_BYTES_PER_S: u32 = 4_000_000_000;
/// More than the largest segment that the stack passes down, which would otherwise be split.
const BURST_BYTES: u32 = 1 << 20;
const LIMIT_BYTES: u32 = 8 << 20;
/// Attributes and link layer of `include/uapi/linux/pkt_sched.h`.
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;

/// The options of `tbf`: `struct tc_tbf_qopt`, and the burst in bytes. With a link layer given, the kernel
/// needs no rate table (`tbf_change` in net/sched/sch_tbf.c).
fn token_bucket() -> Vec<TcOption> {
    let mut parameters = Vec::with_capacity(36);
    // struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate.
    parameters.extend([0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
    parameters.extend(RATE_BYTES_PER_S.to_ne_bytes());
    // No peak rate.
    parameters.extend([0; 12]);
    // limit, then buffer and mtu in ticks, which the burst in bytes replaces.
    parameters.extend(LIMIT_BYTES.to_ne_bytes());
    parameters.extend([0; 8]);
    vec![
        TcOption::Other(DefaultNla::new(TCA_TBF_PARMS, parameters)),
        TcOption::Other(DefaultNla::new(TCA_TBF_BURST, BURST_BYTES.to_ne_bytes().to_vec())),
    ]
}
