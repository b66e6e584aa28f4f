//! Interrupts of devices that are passed through to virtual machines.

use super::late::VmLate;
use super::{VmSpan, VmSpanKind, add_by_cpu, add_ids};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An interrupt of a device that is passed through (VFIO). The device writes packets into the guest's memory by itself:
/// the host sees only its interrupts, and none that the IOMMU posts to the guest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmDeviceInterrupt {
    /// The PCI address of the device; `None` if the name does not have it.
    pub device: Option<String>,
    /// The name of the interrupt (`vfio-msix[0](0000:01:10.0)`); `None` if it is gone.
    pub name: Option<String>,
    /// Its number.
    pub irq: u32,
    /// vCPUs that were interrupted last.
    pub vcpus: Vec<u32>,
    /// Threads of these vCPUs.
    pub vcpu_threads: Vec<u32>,
    /// Interrupts of the device.
    pub interrupts: u64,
    /// Those that KVM gave to a vCPU at once.
    pub set: u64,
    /// Those that go to the guest without the host from there on (posted interrupts, AVIC).
    pub posted: u64,
    /// Those that were left to a kernel worker, or to the process.
    pub deferred: u64,
    /// Those that could not be followed further.
    pub lost: u64,
    /// Their times: `interrupt_to_kvm`, `kvm_to_guest` and its parts, `whole`.
    pub spans: Vec<VmSpan>,
    /// By CPU, where the interrupt was handled.
    pub handled_on: BTreeMap<u32, u64>,
    /// By CPU, where the vCPU was entered.
    pub entered_on: BTreeMap<u32, u64>,
    /// Why they were late; `None` without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<VmLate>,
}

impl VmDeviceInterrupt {
    /// Interrupts that reached the guest.
    pub fn entered(&self) -> u64 {
        self.span(VmSpanKind::Whole).map_or(0, |span| span.count)
    }

    /// A span that interrupts have passed.
    pub fn span(&self, kind: VmSpanKind) -> Option<&VmSpan> {
        self.spans.iter().find(|span| span.span == kind)
    }

    /// Adds another interrupt of the same device; its number and name are those of the first.
    pub fn merge(&mut self, other: &Self) {
        for (all, more) in
            [(&mut self.vcpus, &other.vcpus), (&mut self.vcpu_threads, &other.vcpu_threads)]
        {
            add_ids(all, more);
        }
        for (sum, more) in [
            (&mut self.interrupts, other.interrupts),
            (&mut self.set, other.set),
            (&mut self.posted, other.posted),
            (&mut self.deferred, other.deferred),
            (&mut self.lost, other.lost),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.spans = VmSpan::sums(&self.spans, &other.spans);
        add_by_cpu(&mut self.handled_on, &other.handled_on);
        add_by_cpu(&mut self.entered_on, &other.entered_on);
        VmLate::add_to(&mut self.late, other.late.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupt(irq: u32, vcpu: u32, count: u64) -> VmDeviceInterrupt {
        VmDeviceInterrupt {
            irq,
            vcpus: vec![vcpu],
            interrupts: count,
            set: count,
            spans: VmSpan::new(VmSpanKind::Whole, &[(100, count)], 5_000).into_iter().collect(),
            handled_on: BTreeMap::from([(irq, count)]),
            ..VmDeviceInterrupt::default()
        }
    }

    #[test]
    fn interrupts_of_a_device_add_up() {
        let mut all = interrupt(40, 0, 3);
        all.merge(&interrupt(41, 1, 4));
        assert_eq!((all.irq, all.interrupts, all.set, all.entered()), (40, 7, 7, 7));
        assert_eq!(all.vcpus, [0, 1]);
        assert_eq!(all.handled_on, BTreeMap::from([(40, 3), (41, 4)]));
    }
}
