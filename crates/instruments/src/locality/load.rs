//! Loads the programs: method, settings, map sizes, attaching.

use super::probes::{is_for, lacks};
use super::{Options, group};
use crate::filter::constants_of_filter;
use crate::grouping::{is_known_late, number};
use crate::kernel::{
    AttachMode, Attached, Chosen, Kernel, Probe, attach, choose, in_best_mode, load_only, open,
    refused,
};
use crate::layout::Layout;
use crate::{GROUPS_MAX, InstrumentError};
use libbpf_rs::skel::{OpenSkel, Skel};
use nearpath_model::Per;
use nearpath_model::locality::{LocalityGroup, Method};

/// The skeleton generated from `bpf/locality.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
pub(super) mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/locality.skel.rs"));
}

pub use skeleton::LocalitySkel;
use skeleton::{LocalitySkelBuilder, OpenLocalitySkel, types};

/// Slots for sockets (`SOCKET_SLOT_BITS`), if they are needed.
const SOCKETS: u32 = 1 << 12;
/// Slots for packets in flight (`PACKET_SLOT_BITS`).
const PACKETS: u32 = 1 << 16;

/// The loaded programs; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that they are dropped first.
    pub attached: Attached,
    /// Programs and maps.
    pub skeleton: LocalitySkel<'static>,
    /// How packets are observed.
    pub method: Method,
    /// Why not by a better method.
    pub fallback: Option<String>,
}

/// Loads and attaches for a filter, in the best mode that this kernel accepts.
///
/// # Errors
/// A missing privilege, or a refusal of the kernel.
pub fn load(
    kernel: &Kernel,
    layout: &Layout,
    options: &Options,
) -> Result<Loaded, InstrumentError> {
    let (mut loaded, refusal) =
        in_best_mode(kernel, |mode| load_within(kernel, mode, layout, options))?;
    // A refusal of the kernel explains what is missing afterwards.
    loaded.fallback = refusal.or(loaded.fallback);
    Ok(loaded)
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    layout: &Layout,
    options: &Options,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<LocalitySkelBuilder>(kernel)?;

    let by_process = options.groups.is_some_and(|groups| is_known_late(groups.per));
    let wanted = |method| move |probe: &Probe| is_for(probe, method, by_process);
    let (mut chosen, skipped) = choose(kernel, mode, wanted(Method::Exact));
    let lacking = lacks(&chosen, &skipped);
    let method = if lacking.is_none() { Method::Exact } else { Method::Tracepoints };
    if method == Method::Tracepoints {
        (chosen, _) = choose(kernel, mode, wanted(method));
    }
    load_only(open.open_object_mut(), &chosen);
    set_constants(&mut open, layout, options, method, &chosen)?;
    size_maps(&mut open, layout, options, method)
        .map_err(|e| refused("sizing the BPF maps", &e))?;
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    let attached = attach(skeleton.object(), chosen)?;
    Ok(Loaded { attached, skeleton, method, fallback: lacking })
}

fn set_constants(
    open: &mut OpenLocalitySkel<'_>,
    layout: &Layout,
    options: &Options,
    method: Method,
    chosen: &[Chosen],
) -> Result<(), InstrumentError> {
    let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
        InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
    })?;
    let has = |program: &str| chosen.iter().any(|(p, _)| p.program == program);
    constants.filter = filter_constants(&options.filter);
    constants.measuring = !options.empty;
    constants.exact = method == Method::Exact;
    constants.has_sock_recv = has("sock_recv") && has("sk_data_ready");
    constants.per = options.groups.map_or(0, |groups| number(groups.per));
    constants.pid_namespace = nearpath_host::pid_namespace().unwrap_or(0);
    constants.socket_mask = sockets(method) - 1;
    constants.row_count = u32::try_from(layout.places.len()).unwrap_or(1);
    constants.all_cpu_pairs = !layout.is_by_cpu();
    Ok(())
}

constants_of_filter!(types);

fn sockets(method: Method) -> u32 {
    match method {
        Method::Exact => 1,
        Method::Tracepoints => SOCKETS,
    }
}

fn size_maps(
    open: &mut OpenLocalitySkel<'_>,
    layout: &Layout,
    options: &Options,
    method: Method,
) -> libbpf_rs::Result<()> {
    let places = u32::try_from(layout.places.len()).unwrap_or(1);
    let cpus = u32::try_from(layout.cpus.len()).unwrap_or(1);
    open.maps.cpus.set_max_entries(cpus)?;
    open.maps.sockets.set_max_entries(sockets(method))?;
    open.maps.counters.set_max_entries(layout.shards)?;
    open.maps.cpu_pairs.set_max_entries(2 * places * places)?;
    if options.groups.is_some() {
        open.maps.groups.set_max_entries(GROUPS_MAX)?;
        open.maps.group_counts.set_max_entries(GROUPS_MAX)?;
        open.maps.packet_groups.set_max_entries(PACKETS)?;
    } else {
        open.maps.owners.set_max_entries(1)?;
    }
    Ok(())
}

impl Loaded {
    /// Lets packets start, or not.
    pub fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// The groups of packets, with the packets freed by distance.
    pub fn groups(&self, per: Per) -> Vec<LocalityGroup> {
        group::read(&self.skeleton.maps.groups, &self.skeleton.maps.group_counts, per)
    }

    /// Whether received or sent packets can be observed.
    pub fn sees_packets(&self) -> bool {
        let begins = ["napi_gro_receive", "netif_rx", "netif_receive_skb", "net_dev_queue"];
        self.attached.probes.iter().any(|p| begins.contains(&p.program))
    }
}
