//! Loads the programs: settings, map sizes, program selection, attaching.

use super::Options;
use super::events::{RINGS, events_of_cpu};
use super::group::{self, CELLS_MAX, Part};
use super::record::READER_EVENTS;
use super::samples::{HISTOGRAM_WORDS, MIN};
use super::table::{PROBES, SPANS_MAX};
use super::tasks::{CGROUPS_MAX, SEEN_TASKS};
use crate::drops::tracepoint_features;
use crate::filter::constants_of_filter;
use crate::grouping::{is_known_late, number};
use crate::kernel::{
    AttachMode, Attached, Chosen, Kernel, Probe, attach, choose, in_best_mode, load_only, open,
    refused,
};
use crate::layout::Layout;
use crate::{GROUPS_MAX, InstrumentError};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::{NotGrouped, PathKind, Per};

/// The skeleton generated from `bpf/stages.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
pub(super) mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/stages.skel.rs"));
}

use skeleton::{OpenStagesSkel, StagesSkelBuilder};
pub use skeleton::{StagesMaps as Maps, StagesSkel, types};

/// Events in the rings of all readers (`1 << READER_SLOT_BITS` times two rings).
const EVENTS_OF_READERS: u32 = (1 << 9) * RINGS * READER_EVENTS as u32;
/// The programs at both ends of softirqs.
pub const SOFTIRQS: [&str; 2] = ["softirq_entry", "softirq_exit"];
/// Recorded paths kept for slow packets, a power of two (280 bytes each).
const PACKET_PATHS: u32 = 1 << 14;
/// Slots for packets in flight (`PACKET_SLOT_BITS`).
const PACKETS: u32 = 1 << 16;
/// A system call that sends one message.
const SENDS_ONE: u8 = 1;
/// A system call that sends several (`SENDS_SEVERAL` in `bpf/stages_packet.h`).
const SENDS_SEVERAL: u8 = 2;

/// The loaded programs; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that they are dropped first.
    pub attached: Attached,
    /// Programs and maps.
    pub skeleton: StagesSkel<'static>,
    /// What the kernel refused before it accepted these.
    pub fallback: Option<String>,
    /// Whether the kernel has drop reasons.
    pub tells_reasons: bool,
}

/// Loads and attaches for a filter, in the best mode that this kernel accepts; with `has_nic_stamps` the
/// programs read hardware timestamps.
///
/// # Errors
/// A missing privilege, or a refusal of the kernel.
pub fn load(
    kernel: &Kernel,
    layout: &Layout,
    options: &Options,
    has_nic_stamps: bool,
) -> Result<Loaded, InstrumentError> {
    let (mut loaded, fallback) =
        in_best_mode(kernel, |mode| load_within(kernel, mode, layout, options, has_nic_stamps))?;
    loaded.fallback = fallback;
    Ok(loaded)
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    layout: &Layout,
    options: &Options,
    has_nic_stamps: bool,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<StagesSkelBuilder>(kernel)?;

    // What runs on the CPU must be known, from the tracepoints or from the CPU's own state.
    let keeps_softirqs =
        |probe: &Probe| kernel.softirq_words.is_none() && SOFTIRQS.contains(&probe.program);
    let (mut chosen, mut skipped) =
        choose(kernel, mode, |probe| options.attaches(probe) || keeps_softirqs(probe));
    one_end_of_datagrams(&mut chosen);
    let left_out = PROBES.iter().filter(|probe| options.is_without(probe));
    skipped.extend(left_out.map(|probe| (probe, "left out with --without".to_owned())));
    load_only(open.open_object_mut(), &chosen);
    set_constants(&mut open, layout, options, &chosen, kernel)?;
    if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
        constants.has_nic_stamps = has_nic_stamps;
    }
    size_maps(&mut open, layout, options).map_err(|e| refused("sizing the BPF maps", &e))?;
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    let mut blank = vec![0; 8 * HISTOGRAM_WORDS];
    blank[8 * MIN..][..8].copy_from_slice(&u64::MAX.to_ne_bytes());
    (skeleton.maps.new_cell)
        .update(&0u32.to_ne_bytes(), &blank, MapFlags::ANY)
        .map_err(|e| refused("preparing the BPF maps", &e))?;
    let mut attached = attach(skeleton.object(), chosen)?;
    attached.refused.splice(0..0, skipped);
    let (tells_reasons, _) = what_drops_tell(kernel);
    Ok(Loaded { attached, skeleton, fallback: None, tells_reasons })
}

/// The best way to see the end of a datagram: at the function that frees it for its reader; by what its socket signals
/// and its receive calls; when it is freed.
fn one_end_of_datagrams(chosen: &mut Vec<Chosen>) {
    const FREED: &str = "watch_datagram";
    const BY_SOCKET: [&str; 2] = ["watch_ready", "watch_receive"];
    let at_function = chosen.iter().any(|(probe, targets)| {
        probe.program == FREED && targets.iter().any(|target| !target.is_tracepoint())
    });
    let has = |name: &str| chosen.iter().any(|(probe, _)| probe.program == name);
    let by_socket = !at_function && BY_SOCKET.iter().all(|name| has(name));
    chosen.retain(|(probe, _)| match probe.program {
        FREED => !by_socket,
        name => by_socket || !BY_SOCKET.contains(&name),
    });
}

fn set_constants(
    open: &mut OpenStagesSkel<'_>,
    layout: &Layout,
    options: &Options,
    chosen: &[Chosen],
    kernel: &Kernel,
) -> Result<(), InstrumentError> {
    let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
        InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
    })?;
    constants.filter = filter_constants(&options.filter);
    constants.histogram_cells = nearpath_model::histogram::cells();
    constants.above_ns = super::path::above_ns(&options.above);
    constants.has_sock_send = chosen.iter().any(|(p, _)| p.stages.contains(&"sock_send"));
    constants.measuring = !options.empty;
    constants.budgets = options.budgets;
    constants.into_guests = options.into_guests;
    constants.pid_namespace = nearpath_host::pid_namespace().unwrap_or(0);
    constants.cpu_events = u32::try_from(events_of_cpu(layout.cpus.len())).unwrap_or(1024);
    constants.reader_rings = u32::try_from(layout.cpus.len()).unwrap_or(1) * RINGS;
    constants.per = options.groups.map_or(0, |groups| number(groups.per));
    constants.has_packet_paths = packet_path_slots(options) > 1;
    constants.packet_path_mask = packet_path_slots(options) - 1;
    let has = |program: &str| chosen.iter().any(|(p, _)| p.program == program);
    constants.has_data_ready = has("sk_data_ready");
    constants.has_sock_recv = has("sock_recv");
    constants.has_consume_udp = has("consume_udp") && has("sock_recv");
    constants.has_udp_rcv = has("udp_rcv") && has("udpv6_rcv");
    constants.has_start_xmit = has("net_dev_start_xmit");
    constants.has_netif_rx = has("netif_rx");
    constants.has_qdisc_enqueue = has("qdisc_enqueue");
    constants.knows_readers = has("sched_waking") && has("sched_switch");
    (constants.has_drop_reason, constants.has_rx_sk) = what_drops_tell(kernel);
    constants.has_upcall_answers = has("ovs_packet_cmd_execute");
    // Without either, runs cannot be distinguished: assume the tracepoints.
    constants.has_softirqs =
        kernel.softirq_words.is_none() || SOFTIRQS.iter().all(|program| has(program));
    if let Some(words) = kernel.softirq_words {
        constants.preempt_count_at = words.preempt_count;
        constants.pending_softirqs_at = words.pending;
    }
    constants.row_count = u32::try_from(layout.places.len()).unwrap_or(1);
    constants.all_cpu_pairs = !layout.is_by_cpu();
    constants.recvfrom_call = libc::SYS_recvfrom.cast_unsigned();
    constants.recvmsg_call = libc::SYS_recvmsg.cast_unsigned();
    constants.recvmmsg_call = libc::SYS_recvmmsg.cast_unsigned();
    for (call, sends) in [
        (libc::SYS_write, SENDS_ONE),
        (libc::SYS_writev, SENDS_ONE),
        (libc::SYS_sendto, SENDS_ONE),
        (libc::SYS_sendmsg, SENDS_ONE),
        (libc::SYS_sendmmsg, SENDS_SEVERAL),
        (libc::SYS_sendfile, SENDS_ONE),
        (libc::SYS_splice, SENDS_ONE),
        (libc::SYS_io_uring_enter, SENDS_SEVERAL),
    ] {
        let call = usize::try_from(call).unwrap_or(usize::MAX);
        if let Some(entry) = constants.sends.get_mut(call) {
            *entry = sends;
        }
    }
    Ok(())
}

constants_of_filter!(types);

/// Number of packets in flight whose stages are recorded; if two collide in a slot the older one loses its
/// recorded path, but is still tracked.
fn packet_path_slots(options: &Options) -> u32 {
    let per = options.groups.map(|groups| groups.per);
    match per {
        // Spans are counted from them: one is lost only together with its packet.
        Some(per) if is_known_late(per) => PACKETS,
        _ if options.budgets && options.outliers > 0 && options.follows() => PACKET_PATHS,
        _ => 1,
    }
}

fn size_maps(
    open: &mut OpenStagesSkel<'_>,
    layout: &Layout,
    options: &Options,
) -> libbpf_rs::Result<()> {
    let spans = u32::try_from(SPANS_MAX).unwrap_or(1);
    let places = u32::try_from(layout.places.len()).unwrap_or(1);
    let cpus = u32::try_from(layout.cpus.len()).unwrap_or(1);
    open.maps.cpus.set_max_entries(cpus)?;
    open.maps.counters.set_max_entries(layout.shards)?;
    let of_cpus = layout.cpus.len() * RINGS as usize * events_of_cpu(layout.cpus.len());
    let events = u32::try_from(of_cpus).unwrap_or(u32::MAX).saturating_add(EVENTS_OF_READERS);
    open.maps.history.set_max_entries(if options.budgets { events } else { 1 })?;
    if options.budgets {
        open.maps.seen_tasks.set_max_entries(SEEN_TASKS)?;
        open.maps.cgroup_paths.set_max_entries(CGROUPS_MAX)?;
    }
    if options.groups.is_some() {
        open.maps.groups.set_max_entries(GROUPS_MAX)?;
        open.maps.cells.set_max_entries(CELLS_MAX)?;
    }
    open.maps.outliers.set_max_entries(super::collector::ring_bytes(options))?;
    open.maps.packet_paths.set_max_entries(packet_path_slots(options))?;
    if packet_path_slots(options) == 1 {
        open.maps.packet_paths_away.set_max_entries(1)?;
    }
    open.maps.watched.set_max_entries(if options.watch { layout.shards } else { 1 })?;
    open.maps.histograms.set_max_entries(if options.follows() {
        layout.shards * spans
    } else {
        1
    })?;
    let paths = u32::try_from(PathKind::ALL.len()).unwrap_or(1);
    open.maps.path_histograms.set_max_entries(layout.shards * paths)?;
    let pairs = if options.follows() { spans * places * places } else { 1 };
    open.maps.cpu_pairs.set_max_entries(pairs)?;
    Ok(())
}

/// Whether drops have a reason and a socket on this kernel.
fn what_drops_tell(kernel: &Kernel) -> (bool, bool) {
    let probe = PROBES.iter().find(|probe| probe.program == "kfree_skb");
    tracepoint_features(probe.and_then(|probe| kernel.arguments(probe)))
}

impl Loaded {
    /// Lets packets start, or not.
    pub fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// Threads whose slot was reused while they had a packet.
    pub fn tasks_collided(&self) -> u64 {
        self.skeleton.maps.bss_data.as_deref().map_or(0, |variables| variables.tasks_collided)
    }

    /// The groups of packets.
    pub fn groups(&self, per: Per) -> Vec<Part> {
        group::read(&self.skeleton.maps.groups, &self.skeleton.maps.cells, per)
    }

    /// What did not fit in the groups.
    pub fn not_grouped(&self) -> NotGrouped {
        let variables = self.skeleton.maps.bss_data.as_deref();
        variables.map_or_else(NotGrouped::default, |variables| NotGrouped {
            packets: variables.ungrouped_packets,
            spans: variables.ungrouped_spans,
        })
    }
}
