//! Loads the programs of `bpf/tcp.bpf.c`: connections that end, who reset them, why segments were retransmitted, and why
//! congestion windows were reduced.

use crate::InstrumentError;
use crate::grouping::comm;
use crate::kernel::{
    AttachMode, Attached, Kernel, Meter, Probe, attach, choose, in_best_mode, load_only, open,
    probe, refused,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use nearpath_host::TcpFilter;
use nearpath_model::EventCost;
use nearpath_model::tcp::{TcpCounts, TcpReductions, TcpReset, TcpRetransmits, TcpState};
use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/tcp.skel.rs"));
}

use skeleton::{TcpSkel, TcpSkelBuilder, types};

/// All probes. The last one exists since Linux 5.19; the instrument works without it.
const PROBES: &[Probe] = &[
    probe("set_state", "inet_sock_set_state", "inet_sk_set_state", &["end"]),
    probe("retransmit", "tcp_retransmit_skb", "tcp_retransmit_skb", &["retransmit"]),
    probe("reset_received", "tcp_receive_reset", "tcp_reset", &["reset"]),
    probe("reset_sent", "tcp_send_reset", "tcp_v4_send_reset", &["reset"]),
    CONGESTION,
];
const CONGESTION: Probe =
    probe("cong_state", "tcp_cong_state_set", "tcp_set_ca_state", &["reduction"]);

/// `enum reset` of the programs.
const RESET_SENT: u32 = 1;
const RESET_RECEIVED: u32 = 2;

/// Of a connection, since the start: retransmissions, and reductions of the congestion window if they are known.
pub(super) type Losses = (TcpRetransmits, Option<TcpReductions>);

/// A connection that has ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ended {
    /// `None` if sock_diag has never reported it.
    pub cookie: Option<u64>,
    pub v6: bool,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Its last state; [`TcpState::SynSent`] if it was never established.
    pub state: TcpState,
    /// From its SYN to its end, and to its establishment; `None` if it began earlier.
    pub age: Option<Duration>,
    pub connect: Option<Duration>,
    pub pid: Option<u32>,
    pub comm: String,
    pub reset: Option<TcpReset>,
    pub counts: TcpCounts,
    pub rtt_us: u32,
    pub min_rtt_us: u32,
}

/// Receives the ends of connections, in the thread that has created it.
pub(super) struct Ends {
    ring: RingBuffer<'static>,
    queue: Rc<RefCell<Vec<Ended>>>,
}

impl Ends {
    /// Receives from the ring of [`Events::ring`].
    ///
    /// # Errors
    /// The kernel refused.
    pub fn listen(ring: &MapHandle) -> Result<Self, InstrumentError> {
        let queue: Rc<RefCell<Vec<Ended>>> = Rc::default();
        let events = Rc::clone(&queue);
        let take = move |bytes: &[u8]| {
            events.borrow_mut().extend(ended(bytes));
            0
        };
        let step = "listening to the ends of connections";
        let mut builder = RingBufferBuilder::new();
        builder.add(ring, take).map_err(|e| refused(step, &e))?;
        let ring = builder.build().map_err(|e| refused(step, &e))?;
        Ok(Self { ring, queue })
    }

    /// Empties the ring for [`Ends::take`].
    pub fn collect(&self) {
        // Errors come from the callback, which returns none.
        let _ = self.ring.consume();
    }

    /// The connections that have ended since the last call.
    pub fn take(&self) -> Vec<Ended> {
        self.collect();
        self.queue.take()
    }
}

/// The loaded programs; dropping it detaches and frees everything. The fields are dropped in this order.
pub(super) struct Events {
    meter: Meter,
    attached: Attached,
    skeleton: TcpSkel<'static>,
}

impl Events {
    /// Loads, attaches and starts.
    ///
    /// # Errors
    /// A missing privilege, or something that the kernel lacks or refused.
    pub fn start(
        filter: &TcpFilter,
        netns: Option<u64>,
        btf: Option<&Path>,
    ) -> Result<Self, InstrumentError> {
        let kernel = Kernel::to_load_into(PROBES, btf)?;
        let (mut events, _) =
            in_best_mode(&kernel, |mode| Self::load(&kernel, mode, filter, netns))?;
        if let Some(variables) = events.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = 1;
        }
        Ok(events)
    }

    fn load(
        kernel: &Kernel,
        mode: AttachMode,
        filter: &TcpFilter,
        netns: Option<u64>,
    ) -> Result<Self, InstrumentError> {
        let mut open = open::<TcpSkelBuilder>(kernel)?;
        let (chosen, skipped) = choose(kernel, mode, |_| true);
        if let Some((_, reason)) = skipped.into_iter().find(|(probe, _)| *probe != &CONGESTION) {
            return Err(InstrumentError::Unsupported(reason));
        }
        load_only(open.open_object_mut(), &chosen);
        if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
            constants.only_netns = netns.and_then(|inode| u32::try_from(inode).ok()).unwrap_or(0);
            set_ports!(constants, filter);
            constants.pid_namespace = nearpath_host::pid_namespace().unwrap_or(0);
        }
        let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
        let attached = attach(skeleton.object(), chosen)?;
        if let Some((_, reason)) = attached.refused.first() {
            return Err(InstrumentError::Unsupported(reason.clone()));
        }
        let meter = Meter::new(skeleton.object());
        Ok(Self { meter, attached, skeleton })
    }

    /// The ring of the ends of connections.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn ring(&self) -> Result<MapHandle, InstrumentError> {
        let step = "listening to the ends of connections";
        MapHandle::try_from(&self.skeleton.maps.events).map_err(|e| refused(step, &e))
    }

    /// Connections whose end was lost because the ring was full, and retransmissions without room.
    pub fn lost(&self) -> u64 {
        let variables = self.skeleton.maps.bss_data.as_deref();
        variables.map_or(0, |v| v.events_dropped.saturating_add(v.retransmits_lost))
    }

    /// Whether reductions of the congestion window are counted.
    pub fn knows_reductions(&self) -> bool {
        self.attached.probes.contains(&&CONGESTION)
    }

    /// Retransmissions and reductions by their reason, by cookie.
    pub fn losses(&self) -> HashMap<u64, Losses> {
        let map = &self.skeleton.maps.retransmitting;
        let knows_reductions = self.knows_reductions();
        let counted = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            let number = |at: usize| Some(u64::from(u32_at(&value, at)?));
            let of = TcpRetransmits { fast: number(0)?, timeout: number(4)?, probe: number(8)? };
            let reductions = TcpReductions {
                recoveries: number(12)?,
                timeouts: number(16)?,
                marks: number(20)?,
            };
            let reductions = knows_reductions.then_some(reductions);
            Some((u64::from_ne_bytes(*key.first_chunk()?), (of, reductions)))
        };
        map.keys().filter_map(counted).collect()
    }

    /// How long a connection that is established took for that, by the address of its socket; `None` if it began
    /// before the measurement.
    pub fn connect_time(&self, sock: u64) -> Option<Duration> {
        type Raw = types::start;
        let map = &self.skeleton.maps.starts;
        let value = map.lookup(&sock.to_ne_bytes(), MapFlags::ANY).ok()??;
        let time = |at: usize| u64_at(&value, at).filter(|&ns| ns > 0);
        let began = time(offset_of!(Raw, began_ns))?;
        Some(Duration::from_nanos(time(offset_of!(Raw, established_ns))?.saturating_sub(began)))
    }

    /// Begins a window in which the cost is measured.
    pub fn begin_cost_window(&mut self) {
        self.meter.begin(self.skeleton.object(), 0);
    }

    /// Ends it.
    pub fn end_cost_window(&mut self) {
        self.meter.end(self.skeleton.object(), 0);
    }

    /// Cost per run of a program.
    pub fn cost(&self) -> Option<EventCost> {
        self.meter.event_cost()
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Parses `struct ended`; `None` if it is too short.
fn ended(bytes: &[u8]) -> Option<Ended> {
    type Raw = types::ended;
    if bytes.len() < size_of::<Raw>() {
        return None;
    }
    let v6 = i32::from(u16_at(bytes, offset_of!(Raw, family))?) == libc::AF_INET6;
    let address = |at: usize, port: usize| {
        let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
        let [a, b, c, d, ..] = octets;
        let ip = if v6 {
            Ipv6Addr::from(octets).to_canonical()
        } else {
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        };
        Some(SocketAddr::new(ip, u16_at(bytes, port)?))
    };
    let time = |at: usize| u64_at(bytes, at).filter(|&ns| ns > 0);
    let wide = |at: usize| u64_at(bytes, at).unwrap_or_default();
    let narrow = |at: usize| u64::from(u32_at(bytes, at).unwrap_or_default());
    let since =
        |from: Option<u64>, to: Option<u64>| Some(Duration::from_nanos(to?.saturating_sub(from?)));
    let began = time(offset_of!(Raw, began_ns));
    let name = bytes.get(offset_of!(Raw, comm)..)?.get(..16)?;
    let min_rtt_us = u32_at(bytes, offset_of!(Raw, min_rtt_us))?;
    let state = u8::try_from(u16_at(bytes, offset_of!(Raw, old_state))?).ok()?;
    Some(Ended {
        cookie: time(offset_of!(Raw, cookie)),
        v6,
        local: address(offset_of!(Raw, local), offset_of!(Raw, sport))?,
        remote: address(offset_of!(Raw, remote), offset_of!(Raw, dport))?,
        state: TcpState::from_number(state)?,
        age: since(began, time(offset_of!(Raw, ended_ns))),
        connect: since(began, time(offset_of!(Raw, established_ns))),
        pid: u32_at(bytes, offset_of!(Raw, pid)).filter(|&pid| pid != 0),
        comm: comm(name),
        reset: match u32_at(bytes, offset_of!(Raw, reset))? {
            RESET_SENT => Some(TcpReset::Sent),
            RESET_RECEIVED => Some(TcpReset::Received),
            _ => None,
        },
        counts: TcpCounts {
            bytes_sent: wide(offset_of!(Raw, bytes_sent)),
            bytes_acked: wide(offset_of!(Raw, bytes_acked)),
            bytes_received: wide(offset_of!(Raw, bytes_received)),
            retransmitted_bytes: wide(offset_of!(Raw, bytes_retrans)),
            segments_out: narrow(offset_of!(Raw, segs_out)),
            segments_in: narrow(offset_of!(Raw, segs_in)),
            segments_sent: narrow(offset_of!(Raw, data_segs_out)),
            segments_received: narrow(offset_of!(Raw, data_segs_in)),
            delivered: narrow(offset_of!(Raw, delivered)),
            retransmits: narrow(offset_of!(Raw, total_retrans)),
            spurious_retransmits: narrow(offset_of!(Raw, dsack_dups)),
            reordered: narrow(offset_of!(Raw, reord_seen)),
            out_of_order: narrow(offset_of!(Raw, rcv_ooopack)),
            ecn_marked: narrow(offset_of!(Raw, delivered_ce)),
            timeouts: None,
            timeout_s: None,
        },
        rtt_us: u32_at(bytes, offset_of!(Raw, srtt_us))?,
        min_rtt_us: if min_rtt_us == 0 { u32::MAX } else { min_rtt_us },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_record_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let known = ended(&bytes).is_some();
            prop_assert!(!known || bytes.len() >= size_of::<types::ended>());
        }
    }
}
