//! Loads the programs of `bpf/vm.bpf.c`.

use crate::InstrumentError;
use crate::kernel::{
    AttachMode, Attached, Kernel, Mapped, Probe, attach, better_at, by_kprobe, choose, entry,
    entry_by, exit, helper_probe, in_best_mode, load_only, monotonic_ns, of, open, pointed_to,
    probe, refused, word_of, words_of,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::histogram::cells;
use nearpath_model::memory::NotAvailable;
use nearpath_model::{Detail, Direction, StageListing};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// The skeleton generated from `bpf/vm.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/vm.skel.rs"));
}

use skeleton::{OpenVmSkel, VmSkelBuilder};
pub use skeleton::{VmSkel, types};

/// All probes, those of the end of the path first: a packet that is seen at one is seen at those that follow.
pub const PROBES: &[Probe] = &[
    probe("sched_switch", "sched_switch", "__schedule", &[]),
    probe("sched_waking", "sched_waking", "try_to_wake_up", &[]),
    probe("net_dev_start_xmit", "net_dev_start_xmit", "xmit_one", &[]),
    probe("netif_receive_skb", "netif_receive_skb", "__netif_receive_skb_core", &[]),
    helper_probe(&[of("tun", entry("tun_sendmsg"))], "tun_sendmsg"),
    helper_probe(&[of("tap", entry("tap_sendmsg"))], "tap_sendmsg"),
    helper_probe(&[of("vhost_net", entry("handle_tx_kick"))], "handle_tx_kick"),
    helper_probe(&[of("vhost", entry("vhost_poll_wakeup"))], "vhost_poll_wakeup"),
    helper_probe(&[of("kvm_amd", entry("svm_vcpu_run"))], "svm_vcpu_run"),
    helper_probe(&[of("kvm_intel", entry("vmx_vcpu_run"))], "vmx_vcpu_run"),
    helper_probe(&[of("kvm", entry("__apic_accept_irq"))], "accept_irq"),
    helper_probe(&[entry("eventfd_signal_mask")], "eventfd_signal_mask"),
    helper_probe(&[entry("eventfd_signal")], "eventfd_signal"),
    helper_probe(&[of("kvm", entry("ioeventfd_write"))], "ioeventfd_write"),
    // Linux 6.12 attaches fentry programs to it, and never calls them.
    helper_probe(&[of("kvm", by_kprobe(entry("irqfd_wakeup")))], "irqfd_wakeup"),
    helper_probe(&[entry("eventfd_write")], "eventfd_write"),
    helper_probe(&[of("vhost", entry("vhost_add_used_and_signal_n"))], "add_used"),
    helper_probe(&[of("tun", entry("tun_recvmsg"))], "tun_recvmsg"),
    helper_probe(&[of("tap", entry("tap_recvmsg"))], "tap_recvmsg"),
    helper_probe(&[of("vhost_net", entry("handle_rx"))], "handle_rx"),
    helper_probe(&[of("tun", entry("tun_net_xmit"))], "tun_net_xmit"),
    helper_probe(&[of("tun", entry("tun_xdp_xmit"))], "tun_xdp_xmit"),
    helper_probe(&[of("tap", pointed_to(entry("tap_handle_frame")))], "tap_handle_frame"),
    helper_probe(&[of("vfio_pci_core", entry("vfio_msihandler"))], "vfio_msihandler"),
    helper_probe(&[of("vfio_pci_core", entry("vfio_intx_handler"))], "vfio_intx_handler"),
    probe("irq_handler_exit", "irq_handler_exit", "__handle_irq_event_percpu", &[]),
    probe("irq_handler_entry", "irq_handler_entry", "__handle_irq_event_percpu", &[]),
    better_at(
        probe("softirq_exit", "softirq_exit", "handle_softirqs", &[]),
        &[exit("net_rx", "net_rx_action")],
    ),
    probe("softirq_raise", "softirq_raise", "__raise_softirq_irqoff", &[]),
    better_at(
        probe("softirq_entry", "softirq_entry", "handle_softirqs", &[]),
        &[entry_by("net_rx", "net_rx_action")],
    ),
];

/// Programs of which one of each line is needed.
const NEEDED: &[&[&str]] = &[
    &["eventfd_signal_mask", "eventfd_signal"],
    &["accept_irq"],
    &["svm_vcpu_run", "vmx_vcpu_run"],
];

/// The same for packets through taps. Without these only devices that are passed through are observed.
const TAPS: &[&[&str]] =
    &[&["tun_net_xmit", "tap_handle_frame"], &["tun_recvmsg", "tap_recvmsg"], &["add_used"]];

/// The interrupts of devices that are passed through. The module is loaded where there are any.
const DEVICES: &str = "vfio_msihandler";

/// Interrupts that processes write to virtual machines (vhost-user).
const BACKENDS: [&str; 2] = ["irqfd_wakeup", "eventfd_write"];

/// Others, with what is not known without them.
const OTHERS: &[(&[&str], &str)] = &[
    (&["tun_xdp_xmit"], "frames that XDP redirects to taps"),
    (&["handle_rx"], "how long woken vhost workers wait for a CPU"),
    (&["irq_handler_entry", "irq_handler_exit", "softirq_raise"], "(a) interrupt to handler"),
    (&["softirq_entry", "softirq_exit"], "(a) and (b), up to the tap"),
];

/// Programs of the transmit direction, with what is not known without one of each line.
const TRANSMIT: &[(&[&str], &str)] = &[
    (&["vhost_poll_wakeup"], "kicks of guests that transmit"),
    (&["handle_tx_kick"], "runs of vhost workers that transmit"),
    (&["tun_sendmsg", "tap_sendmsg"], "packets that guests transmit"),
    (&["netif_receive_skb"], "packets from taps to NICs"),
    (&["net_dev_start_xmit"], "packets from taps and macvtaps to NICs"),
    (&["ioeventfd_write"], "kicks of guests whose devices processes serve (vhost-user)"),
];

/// Programs that explain late packets.
const LATE: &[(&[&str], &str)] = &[
    (&["sched_switch"], "how long late packets waited for a CPU"),
    (&["sched_waking"], "how long threads that late packets woke waited for a CPU"),
];

/// The steps of the path into a guest, and the programs of which one observes each.
const STEPS: &[(&str, &[&str])] = &[
    ("tun_net_xmit", &["tun_net_xmit"]),
    ("tap_handle_frame", &["tap_handle_frame"]),
    ("handle_rx", &["handle_rx"]),
    ("tun_recvmsg", &["tun_recvmsg"]),
    ("tap_recvmsg", &["tap_recvmsg"]),
    ("vhost_add_used", &["add_used"]),
    ("vfio_msihandler", &["vfio_msihandler"]),
    ("eventfd_write", &["eventfd_write"]),
    ("irqfd_wakeup", &["irqfd_wakeup"]),
    ("eventfd_signal", &["eventfd_signal_mask", "eventfd_signal"]),
    ("apic_accept_irq", &["accept_irq"]),
    ("vcpu_run", &["svm_vcpu_run", "vmx_vcpu_run"]),
];

/// How each step of the path into a guest is observed on this kernel, or why it cannot be.
///
/// # Errors
/// The kernel has no BTF.
pub fn list(btf_file: Option<&Path>) -> Result<Vec<StageListing>, InstrumentError> {
    let kernel = Kernel::inspect(PROBES, btf_file)?;
    let mode = kernel.best_mode();
    let refused = without_types().map(no_types_of);
    let listing = |(stage, programs): &(&'static str, &[&str])| {
        let probes = PROBES.iter().filter(|probe| programs.contains(&probe.program));
        let (function, observed) = kernel.observes(probes, mode);
        let observed = refused.clone().map_or(observed, Err);
        StageListing {
            direction: Direction::Rx,
            stage,
            detail: Detail::Coarse,
            function,
            reason: observed.clone().err(),
            attach: observed.ok(),
        }
    };
    Ok(STEPS.iter().map(listing).collect())
}

/// Why packets cannot be followed.
fn no_types_of(module: &str) -> String {
    format!(
        "this kernel has no types of its module {module} (/sys/kernel/btf/{module}; Linux 5.11 and \
         newer have them): packets cannot be followed into virtual machines"
    )
}

/// The kernel's modules whose structures are read.
const MODULES: [&str; 4] = ["kvm", "vhost", "tun", "tap"];

/// The first line of which no program is there, of those that are needed: without taps, at least devices or backends.
fn first_missing(has: &impl Fn(&&str) -> bool) -> Option<&'static [&'static str]> {
    let first =
        |of: &'static [&[&str]]| of.iter().find(|programs| !programs.iter().any(has)).copied();
    let others = has(&DEVICES) || BACKENDS.iter().all(has);
    first(NEEDED).or_else(|| first(TAPS).filter(|_| !others))
}

/// What is measured besides.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// The transmit direction.
    pub transmit: bool,
    /// Packets that take this long are explained.
    pub slow_ns: Option<NonZeroU64>,
}

impl Wanted {
    /// Programs that are needed for it, and what is not known without one of each line.
    fn optional(self) -> impl Iterator<Item = &'static (&'static [&'static str], &'static str)> {
        let transmit = TRANSMIT.iter().filter(move |_| self.transmit);
        transmit.chain(LATE.iter().filter(move |_| self.slow_ns.is_some()))
    }

    /// Programs that are not.
    fn left_out(self) -> Vec<&'static str> {
        let all = TRANSMIT.iter().chain(LATE).flat_map(|(programs, _)| *programs).copied();
        let kept: Vec<&str> =
            self.optional().flat_map(|(programs, _)| *programs).copied().collect();
        all.filter(|program| !kept.contains(program)).collect()
    }
}

/// The loaded programs; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that they are dropped first.
    #[allow(dead_code, reason = "dropping it detaches")]
    pub attached: Attached,
    /// Programs and maps.
    pub skeleton: VmSkel<'static>,
    /// Times by queue and span.
    pub histograms: Mapped,
    /// Packets by queue, point and CPU.
    pub seen_on: Mapped,
    /// The same of the transmit direction.
    pub transmit_histograms: Mapped,
    /// Packets transmitted by queue, point and CPU.
    pub transmitted_on: Mapped,
    /// CPUs of the host.
    pub cpus: usize,
    /// What is not observed.
    pub missing: Vec<NotAvailable>,
}

/// Loads and attaches the programs that `wanted` needs. With `stages`, the slots of the packets that the instrument
/// `stages` tracks, only these packets are followed. With `has_nic_stamps` the programs read hardware timestamps.
///
/// # Errors
/// A missing privilege, or the kernel lacks or refuses something without which packets cannot be followed.
pub fn load(
    kernel: &Kernel,
    cpus: usize,
    wanted: Wanted,
    stages: Option<BorrowedFd<'_>>,
    has_nic_stamps: bool,
) -> Result<Loaded, InstrumentError> {
    if let Some(module) = without_types() {
        return Err(InstrumentError::Unsupported(no_types_of(module)));
    }
    in_best_mode(kernel, |mode| load_within(kernel, mode, cpus, wanted, stages, has_nic_stamps))
        .map(|(loaded, _)| loaded)
}

/// A module that is loaded, and whose types are unknown.
fn without_types() -> Option<&'static str> {
    // A part that is built in has its types with the kernel's, and no state of its own.
    let is_module = |name: &&str| Path::new("/sys/module").join(name).join("initstate").exists();
    let has_types = |name: &&str| Path::new("/sys/kernel/btf").join(name).exists();
    MODULES.into_iter().find(|name| is_module(name) && !has_types(name))
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    cpus: usize,
    wanted: Wanted,
    stages: Option<BorrowedFd<'_>>,
    has_nic_stamps: bool,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<VmSkelBuilder>(kernel)?;
    let left_out = wanted.left_out();
    let is_wanted = |probe: &Probe| {
        // Beside the stages only packets are followed.
        let is_other = stages.is_some() && BACKENDS.contains(&probe.program);
        !left_out.contains(&probe.program) && !is_other
    };
    let (chosen, skipped) = choose(kernel, mode, is_wanted);
    let has = |program: &&str| chosen.iter().any(|(probe, _)| probe.program == *program);
    if let Some(missing) = first_missing(&has) {
        return Err(InstrumentError::Unsupported(why(missing, &skipped)));
    }
    load_only(open.open_object_mut(), &chosen);
    set_up(&mut open, cpus, wanted)?;
    match stages {
        Some(slots) => {
            let sharing = |e| refused("sharing the BPF map of the stages", &e);
            open.maps.packets.reuse_fd(slots).map_err(sharing)?;
        }
        None => {
            let sizing = |e| refused("sizing the BPF maps", &e);
            open.maps.packets.set_max_entries(1).map_err(sizing)?;
        }
    }
    if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
        constants.beside_stages = stages.is_some();
        constants.has_nic_stamps = has_nic_stamps;
        constants.counts_kicks = wanted.transmit;
    }
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    let histograms = empty_histograms(&skeleton.maps.histograms)?;
    let transmit_histograms = empty_histograms(&skeleton.maps.transmit_histograms)?;
    let seen_on = Mapped::new(&skeleton.maps.seen_on)?;
    let transmitted_on = Mapped::new(&skeleton.maps.transmitted_on)?;
    let attached = attach(skeleton.object(), chosen)?;
    let refused = attached.refused.iter().chain(&skipped).cloned().collect::<Vec<_>>();
    let is_attached =
        |program: &&str| attached.probes.iter().any(|probe| probe.program == *program);
    if let Some(missing) = first_missing(&is_attached) {
        return Err(InstrumentError::Unsupported(why(missing, &refused)));
    }
    let without = TAPS.iter().find(|programs| !programs.iter().any(is_attached));
    let taps = without.map(|programs| {
        let what = "packets through taps".to_owned();
        NotAvailable { what, reason: why(programs, &refused) }
    });
    let lacks_backends = stages.is_none() && !BACKENDS.iter().all(is_attached);
    let backends = lacks_backends.then(|| {
        let lacking: Vec<&str> = BACKENDS.iter().filter(|p| !is_attached(p)).copied().collect();
        let what = "interrupts that processes write (vhost-user)".to_owned();
        NotAvailable { what, reason: why(&lacking, &refused) }
    });
    let others = OTHERS.iter().filter(|_| without.is_none());
    let lacking = others.filter(|(programs, _)| !programs.iter().all(is_attached));
    let more = wanted.optional().filter(|(programs, _)| !programs.iter().any(is_attached));
    let missing = lacking
        .chain(more)
        .map(|(programs, what)| {
            let lacking: Vec<&str> = programs.iter().filter(|p| !is_attached(p)).copied().collect();
            NotAvailable { what: (*what).to_owned(), reason: why(&lacking, &refused) }
        })
        .chain(taps)
        .chain(backends)
        .collect();
    Ok(Loaded {
        attached,
        skeleton,
        histograms,
        seen_on,
        transmit_histograms,
        transmitted_on,
        cpus,
        missing,
    })
}

/// Histograms without a time yet.
fn empty_histograms(map: &impl MapCore) -> Result<Mapped, InstrumentError> {
    let histograms = Mapped::new(map)?;
    clear_histograms(&histograms);
    Ok(histograms)
}

fn clear_histograms(histograms: &Mapped) {
    histograms.clear();
    let each = words_of::<types::histogram>();
    for histogram in 0..histograms.len() / each {
        histograms.set(histogram * each + word_of!(types::histogram, min_ns), u64::MAX);
    }
}

/// Why none of these programs is attached.
fn why(programs: &[&str], refused: &[(&'static Probe, String)]) -> String {
    let of = refused.iter().find(|(probe, _)| programs.contains(&probe.program));
    of.map_or_else(|| format!("no program {}", programs.join(" or ")), |(_, reason)| reason.clone())
}

fn set_up(open: &mut OpenVmSkel<'_>, cpus: usize, wanted: Wanted) -> Result<(), InstrumentError> {
    let count = u32::try_from(cpus).unwrap_or(u32::MAX);
    let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
        InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
    })?;
    constants.pid_namespace = nearpath_host::pid_namespace().unwrap_or(0);
    constants.histogram_cells = cells();
    constants.cpu_count = count;
    constants.slow_ns = wanted.slow_ns.map_or(0, u64::from);
    constants.pause_ns = wanted.slow_ns.map_or(0, shortest_pause_ns);
    let sizing = |e| refused("sizing the BPF maps", &e);
    open.maps.cpus.set_max_entries(count).map_err(sizing)?;
    open.maps.runs_of_cpus.set_max_entries(count).map_err(sizing)?;
    if wanted.slow_ns.is_none() {
        open.maps.pauses.set_max_entries(1).map_err(sizing)?;
    }
    let points = open.maps.queues.max_entries().saturating_mul(POINTS as u32);
    open.maps.seen_on.set_max_entries(points.saturating_mul(count)).map_err(sizing)?;
    let points = open.maps.transmit_queues.max_entries().saturating_mul(TRANSMIT_POINTS as u32);
    open.maps.transmitted_on.set_max_entries(points.saturating_mul(count)).map_err(sizing)
}

/// The shortest wait of a vCPU that is kept, in ns: a tenth of what makes a packet late, of which it may be a part.
pub fn shortest_pause_ns(slow_ns: NonZeroU64) -> u64 {
    (slow_ns.get() / 10).max(1000)
}

/// `enum point`, and `enum span` of `bpf/vm_queues.h`.
pub const POINTS: usize = 3;
pub const SPANS: usize = 10;
/// `enum transmit_point`, and `enum transmit_span` of `bpf/vm_transmit.h`.
pub const TRANSMIT_POINTS: usize = 3;
pub const TRANSMIT_SPANS: usize = 4;
/// The session of no probes, `ONLY_NONE` of `bpf/vm_probes.h`.
const ONLY_NONE: u64 = u64::MAX;
/// `enum part` of `bpf/vm_late.h`.
pub const PARTS: usize = 9;

impl Loaded {
    /// Starts or stops counting.
    pub fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// The packets that the stages track may be gone, or are tracked again.
    pub fn set_stages_paused(&mut self, paused: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.stages_paused = paused.into();
        }
    }

    /// Forgets what was counted, and counts only probes of a session with these numbers; `None`: nothing.
    pub fn follow_probes(
        &mut self,
        probes: Option<(u64, Range<u64>)>,
    ) -> Result<(), InstrumentError> {
        self.follow_only(ONLY_NONE, &(0..0));
        let since_ns = monotonic_ns();
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.only.since_ns = since_ns;
        }
        // What is under way counts no more, so that nothing is written to the maps.
        let refused = |e: libbpf_rs::Error| refused("emptying the BPF maps", &e);
        let queues = &self.skeleton.maps.queues;
        for socket in queues.keys().collect::<Vec<_>>() {
            queues.delete(&socket).map_err(refused)?;
        }
        let owners = &self.skeleton.maps.owners;
        for key in owners.keys().collect::<Vec<_>>() {
            let nobody = vec![0; owners.value_size() as usize];
            owners.update(&key, &nobody, MapFlags::ANY).map_err(refused)?;
        }
        clear_histograms(&self.histograms);
        self.seen_on.clear();
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.queue_count = 0;
            variables.counters = types::counters::default();
        }
        let (session, numbers) = probes.unwrap_or((ONLY_NONE, 0..0));
        self.follow_only(session, &numbers);
        Ok(())
    }

    fn follow_only(&mut self, session: u64, numbers: &Range<u64>) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.only.first = numbers.start;
            variables.only.end = numbers.end;
            variables.only.session = session;
        }
    }

    /// Packets that reached a tap.
    pub fn started(&self) -> u64 {
        self.skeleton.maps.bss_data.as_deref().map_or(0, |variables| variables.counters.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_program() {
        crate::kernel::assert_has_programs::<VmSkelBuilder>(PROBES);
        let others = OTHERS.iter().chain(TRANSMIT).chain(LATE).map(|(programs, _)| *programs);
        let named =
            NEEDED.iter().chain(TAPS).copied().chain(others).chain([&[DEVICES][..], &BACKENDS]);
        for program in named.flatten() {
            assert!(PROBES.iter().any(|probe| probe.program == *program), "{program}");
        }
        for program in STEPS.iter().flat_map(|(_, programs)| *programs) {
            assert!(PROBES.iter().any(|probe| probe.program == *program), "{program}");
        }
    }

    /// The clocks of NICs are written with the types of the stages.
    #[test]
    fn clocks_of_nics_are_laid_out_as_those_of_the_stages() {
        use crate::stages::load::types as of_stages;
        assert_eq!(words_of::<types::nic_clock>(), words_of::<of_stages::nic_clock>());
        assert_eq!(word_of!(types::nic_clock, is_used), word_of!(of_stages::nic_clock, is_used));
    }
}
