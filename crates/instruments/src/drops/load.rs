//! Loads the program of `bpf/drops.bpf.c` and reads its counts.

use super::Options;
use crate::InstrumentError;
use crate::filter::constants_of_filter;
use crate::grouping::{comm, flow, word};
use crate::kernel::{
    AttachMode, Attached, Kernel, Probe, attach, choose, in_best_mode, load_only, open, probe,
    refused,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::drops::NoRoom;
use std::mem::offset_of;

/// The skeleton generated from `bpf/drops.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/drops.skel.rs"));
}

pub use skeleton::DropsSkel;
use skeleton::{DropsSkelBuilder, OpenDropsSkel, types};

/// All probes.
pub const PROBES: &[Probe] = &[KFREE_SKB];

const KFREE_SKB: Probe = probe("kfree_skb", "kfree_skb", "kfree_skb_reason", &["kfree_skb"]);

/// Whether the tracepoint has the reason (since 5.17) and the receiving socket (since 6.11), from the number of
/// its arguments: sk_buff, location, reason, socket.
pub fn tracepoint_features(arguments: Option<usize>) -> (bool, bool) {
    let arguments = arguments.unwrap_or(0);
    (arguments >= 3, arguments >= 4)
}

/// The loaded program; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that it is dropped first.
    #[allow(dead_code, reason = "dropping it detaches")]
    pub attached: Attached,
    /// Programs and maps.
    pub skeleton: DropsSkel<'static>,
    /// Whether the kernel has drop reasons.
    pub tells_reasons: bool,
}

/// Loads and attaches.
///
/// # Errors
/// A missing privilege, or something that the kernel lacks or refused.
pub fn load(kernel: &Kernel, options: &Options) -> Result<Loaded, InstrumentError> {
    in_best_mode(kernel, |mode| load_within(kernel, mode, options)).map(|(loaded, _)| loaded)
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    options: &Options,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<DropsSkelBuilder>(kernel)?;
    let (chosen, skipped) = choose(kernel, mode, |_| true);
    if let Some((_, reason)) = skipped.into_iter().next() {
        return Err(InstrumentError::Unsupported(reason));
    }
    load_only(open.open_object_mut(), &chosen);
    let (tells_reasons, tells_sockets) = tracepoint_features(kernel.arguments(&KFREE_SKB));
    set_constants(&mut open, options, tells_reasons, tells_sockets)?;
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    let attached = attach(skeleton.object(), chosen)?;
    if let Some((_, reason)) = attached.refused.first() {
        return Err(InstrumentError::Unsupported(reason.clone()));
    }
    Ok(Loaded { attached, skeleton, tells_reasons })
}

fn set_constants(
    open: &mut OpenDropsSkel<'_>,
    options: &Options,
    tells_reasons: bool,
    tells_sockets: bool,
) -> Result<(), InstrumentError> {
    let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
        InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
    })?;
    constants.filter = filter_constants(&options.filter);
    constants.has_drop_reason = tells_reasons;
    constants.has_rx_sk = tells_sockets;
    constants.least_gap_ns = options.least_gap_ns();
    Ok(())
}

constants_of_filter!(types);

/// Drops for one reason at one instruction, by protocol and device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// The instruction after the call that dropped them.
    pub location: u64,
    /// The reason's number.
    pub reason: u32,
    /// Inode of the network namespace; 0: unknown.
    pub netns: u32,
    /// 0: unknown.
    pub ifindex: u32,
    /// Ethertype.
    pub ethertype: u16,
    /// IP protocol; 0: not read.
    pub protocol: u8,
    /// IP version; 0: not IP.
    pub version: u8,
    /// Packets that match the filter.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets, including those that do not match.
    pub all: u64,
    /// Packets that match and were looked at.
    pub described: u64,
    /// The device's name; empty: unknown.
    pub device: String,
}

impl Row {
    /// Parses `struct drop_key` and `struct drop_count`; `None` if they are too short.
    fn read(key: &[u8], count: &[u8]) -> Option<Self> {
        type Key = types::drop_key;
        type Count = types::drop_count;
        if key.len() < size_of::<Key>() || count.len() < size_of::<Count>() {
            return None;
        }
        let name = offset_of!(Count, dev);
        Some(Self {
            location: word(key, offset_of!(Key, location)),
            reason: half(key, offset_of!(Key, reason))?,
            netns: half(key, offset_of!(Key, netns))?,
            ifindex: half(key, offset_of!(Key, ifindex))?,
            ethertype: quarter(key, offset_of!(Key, ethertype))?,
            protocol: *key.get(offset_of!(Key, protocol))?,
            version: *key.get(offset_of!(Key, version))?,
            packets: word(count, offset_of!(Count, packets)),
            bytes: word(count, offset_of!(Count, bytes)),
            all: word(count, offset_of!(Count, all)),
            described: word(count, offset_of!(Count, described)),
            device: comm(count.get(name..)?),
        })
    }
}

/// Drops of a flow for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowRow {
    /// The instruction after the call that dropped them.
    pub location: u64,
    /// Its name.
    pub flow: String,
    /// Destination port; 0: none.
    pub port: u16,
    /// The reason's number.
    pub reason: u32,
    /// Inode of the network namespace; 0: unknown.
    pub netns: u32,
    /// Packets that match the filter.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl FlowRow {
    /// Parses `struct flow_key` and `struct flow_count`; `None` if they are too short, or not of a flow.
    fn read(key: &[u8], count: &[u8]) -> Option<Self> {
        type Key = types::flow_key;
        type Count = types::flow_count;
        if key.len() < size_of::<Key>() || count.len() < size_of::<Count>() {
            return None;
        }
        let tuple = key.get(offset_of!(Key, flow)..)?;
        Some(Self {
            location: word(key, offset_of!(Key, location)),
            flow: flow(tuple)?,
            port: quarter(tuple, offset_of!(types::tuple, dport))?,
            reason: half(key, offset_of!(Key, reason))?,
            netns: half(key, offset_of!(Key, netns))?,
            packets: word(count, offset_of!(Count, packets)),
            bytes: word(count, offset_of!(Count, bytes)),
        })
    }
}

/// 32 bits.
fn half(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// 16 bits.
fn quarter(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// Counters of the program besides the maps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets that did not fit.
    pub no_room: NoRoom,
    /// Their bytes.
    pub no_room_bytes: u64,
    /// Packets that did not fit, including those that do not match the filter.
    pub no_room_all: u64,
    /// sk_buffs that are not packets.
    pub not_packets: u64,
    /// Drops that others stand for.
    pub extrapolated: u64,
}

impl Loaded {
    /// Starts or stops counting.
    pub fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// The drops.
    pub fn rows(&self) -> Vec<Row> {
        entries(&self.skeleton.maps.drops, Row::read)
    }

    /// The same by flow.
    pub fn flows(&self) -> Vec<FlowRow> {
        entries(&self.skeleton.maps.flows, FlowRow::read)
    }

    /// The counters besides the maps.
    pub fn totals(&self) -> Totals {
        let variables = self.skeleton.maps.bss_data.as_deref();
        variables.map_or_else(Totals::default, |variables| Totals {
            no_room: NoRoom { packets: variables.unplaced, flow_packets: variables.unplaced_flows },
            no_room_bytes: variables.unplaced_bytes,
            no_room_all: variables.unplaced_all,
            not_packets: variables.not_packets,
            extrapolated: variables.extrapolated,
        })
    }
}

/// All entries of a hash map; entries are never deleted.
fn entries<T>(map: &impl MapCore, read: fn(&[u8], &[u8]) -> Option<T>) -> Vec<T> {
    map.keys().filter_map(|key| read(&key, &map.lookup(&key, MapFlags::ANY).ok()??)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read(
            key in prop::collection::vec(any::<u8>(), 0..64),
            count in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            prop_assert_eq!(
                Row::read(&key, &count).is_some(),
                key.len() >= size_of::<types::drop_key>()
                    && count.len() >= size_of::<types::drop_count>()
            );
            let _ = FlowRow::read(&key, &count);
        }
    }
}
