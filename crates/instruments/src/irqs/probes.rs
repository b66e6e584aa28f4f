//! The probes of the instrument, and loading of their programs (`bpf/irqs.bpf.c`).

use crate::InstrumentError;
use crate::kernel::{
    AttachMode, Attached, Kernel, Probe, attach, choose, in_best_mode, load_only, open, probe,
    refused,
};
use crate::layout::Layout;
use libbpf_rs::skel::{OpenSkel, Skel};
use nearpath_model::irqs::PriorityField;

/// The skeleton generated from `bpf/irqs.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/irqs.skel.rs"));
}

pub use skeleton::IrqsSkel;
use skeleton::IrqsSkelBuilder;
pub use skeleton::types::cpu as CpuRow;
pub use skeleton::types::priority_on_cpu as PriorityKey;

/// Names of what pairs of probes observe.
pub const DEVICE: &str = "time in devices' interrupts";
pub const TIMER: &str = "time in the timer's interrupts";
pub const CALL: &str = "time in other CPUs' calls";
pub const SOFTIRQ: &str = "time in softirqs";
/// The same for single probes.
pub const POLLS: &str = "NAPI polls";
/// Needed only if the kernel does not report which queue a NAPI instance serves.
const RAISE: &str = "which interrupt a NAPI instance is polled for";
/// Needed only if it is requested.
pub const PRIORITIES: &str = "packets by priority";

/// All of them. An exit is attached before its entry: otherwise a CPU could be taken to be in a handler that it
/// has left.
pub const PROBES: &[Probe] = &[
    probe("irq_handler_exit", "irq_handler_exit", "__handle_irq_event_percpu", &[DEVICE]),
    probe("irq_handler_entry", "irq_handler_entry", "__handle_irq_event_percpu", &[DEVICE]),
    probe("local_timer_exit", "local_timer_exit", "sysvec_apic_timer_interrupt", &[TIMER]),
    probe("local_timer_entry", "local_timer_entry", "sysvec_apic_timer_interrupt", &[TIMER]),
    probe("call_function_single_exit", "call_function_single_exit", CALL_FUNCTION, &[CALL]),
    probe("call_function_single_entry", "call_function_single_entry", CALL_FUNCTION, &[CALL]),
    probe("softirq_exit", "softirq_exit", "handle_softirqs", &[SOFTIRQ]),
    probe("softirq_entry", "softirq_entry", "handle_softirqs", &[SOFTIRQ]),
    probe("softirq_raise", "softirq_raise", "__raise_softirq_irqoff", &[RAISE]),
    probe("napi_poll", "napi_poll", "__napi_poll", &[POLLS]),
    probe("netif_receive_skb", "netif_receive_skb", "__netif_receive_skb_core", &[PRIORITIES]),
];

/// `PRIORITIES_MAX` of `bpf/priorities.h`.
const PRIORITIES_MAX: u32 = 16_384;

const CALL_FUNCTION: &str = "sysvec_call_function_single";

/// The loaded programs; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that they are dropped first.
    pub attached: Attached,
    /// Programs and maps.
    pub skeleton: IrqsSkel<'static>,
}

/// What is loaded besides the times and the polls.
#[derive(Debug, Clone, Copy)]
pub struct Extras {
    /// Determine which interrupt a NAPI instance is polled for.
    pub asks_napi: bool,
    /// Count packets by priority.
    pub priorities: Option<PriorityField>,
}

/// Loads and attaches.
///
/// # Errors
/// A missing privilege, or a refusal of the kernel.
pub fn load(kernel: &Kernel, layout: &Layout, extras: Extras) -> Result<Loaded, InstrumentError> {
    let load = |mode: AttachMode| load_within(kernel, mode, layout, extras);
    // With tracepoints nothing is lost if the kernel has no BTF.
    in_best_mode(kernel, load).map(|(loaded, _)| loaded)
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    layout: &Layout,
    extras: Extras,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<IrqsSkelBuilder>(kernel)?;
    let wanted = |probe: &Probe| match probe.stages {
        [RAISE] => extras.asks_napi,
        [PRIORITIES] => extras.priorities.is_some(),
        _ => true,
    };
    let (chosen, skipped) = choose(kernel, mode, wanted);
    load_only(open.open_object_mut(), &chosen);
    let cpus = u32::try_from(layout.cpus.len()).unwrap_or(1);
    open.maps.cpus.set_max_entries(cpus).map_err(|e| refused("sizing the BPF maps", &e))?;
    if let Some(by) = extras.priorities {
        let sized = open.maps.priorities.set_max_entries(PRIORITIES_MAX);
        sized.map_err(|e| refused("sizing the BPF maps", &e))?;
        let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
            InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
        })?;
        constants.priority_field = match by {
            PriorityField::Pcp => 1,
            PriorityField::Dscp => 2,
        };
    }
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    let mut attached = attach(skeleton.object(), chosen)?;
    attached.refused.splice(0..0, skipped);
    Ok(Loaded { attached, skeleton })
}

impl Loaded {
    /// Starts or stops counting.
    pub fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// Whether something is observed: all of its probes are attached.
    pub fn observes(&self, what: &str) -> bool {
        let of = |probe: &&Probe| probe.stages.contains(&what);
        PROBES.iter().filter(of).all(|probe| self.attached.probes.contains(&probe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_a_program_and_exits_come_first() {
        crate::kernel::assert_has_programs::<IrqsSkelBuilder>(PROBES);
        let place = |name: &str| PROBES.iter().position(|p| p.program == name);
        for entry in PROBES.iter().filter_map(|p| p.program.strip_suffix("_entry")) {
            let (exit, entry) = (format!("{entry}_exit"), format!("{entry}_entry"));
            assert!(place(&exit).unwrap() < place(&entry).unwrap(), "{entry}");
        }
    }
}
