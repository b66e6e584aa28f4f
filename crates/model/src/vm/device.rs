//! Interrupts of devices whose packets the host does not see: passed through, or served by a process.

use super::late::VmLate;
use super::{VmSpan, VmSpanKind, add_by_cpu, add_ids};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Interrupts of a device that writes packets into the guest's memory without the host: it sees only these, and none that
/// the IOMMU posts to the guest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmInterrupt<S> {
    /// Where they come from.
    #[serde(flatten)]
    pub source: S,
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
    /// Their times: `interrupt_to_kvm` or `write_to_kvm`, `kvm_to_guest` and its parts, `whole`.
    pub spans: Vec<VmSpan>,
    /// By CPU, where the interrupt was handled, or written.
    pub handled_on: BTreeMap<u32, u64>,
    /// By CPU, where the vCPU was entered.
    pub entered_on: BTreeMap<u32, u64>,
    /// Why they were late; `None` without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<VmLate>,
}

/// An interrupt of a device that is passed through (VFIO).
pub type VmDeviceInterrupt = VmInterrupt<VmDevice>;

/// Interrupts that a process writes to an eventfd of the virtual machine (vhost-user).
pub type VmBackendInterrupt = VmInterrupt<VmWriter>;

/// The interrupt of a device that is passed through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmDevice {
    /// The PCI address of the device; `None` if the name does not have it.
    pub device: Option<String>,
    /// The name of the interrupt (`vfio-msix[0](0000:01:10.0)`); `None` if it is gone.
    pub name: Option<String>,
    /// Its number.
    pub irq: u32,
}

/// The thread that wrote to an eventfd last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmWriter {
    /// The kernel's number of the event (`eventfd-id` in `/proc/PID/fdinfo`).
    pub eventfd: u32,
    /// The process; 0 in another PID namespace.
    pub pid: u32,
    /// The thread; 0 in another PID namespace.
    pub tid: u32,
    /// Its name.
    pub comm: String,
}

/// Kicks of a guest whose device a process serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmKicks {
    /// The process that has the eventfds.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Kicks by the number of the eventfd; none if the process polls the rings, or the guest sent nothing.
    pub eventfds: BTreeMap<u32, u64>,
}

impl VmKicks {
    /// All of them.
    pub fn kicks(&self) -> u64 {
        self.eventfds.values().fold(0, |sum, kicks| sum.saturating_add(*kicks))
    }
}

impl<S> VmInterrupt<S> {
    /// Interrupts that reached the guest.
    pub fn entered(&self) -> u64 {
        self.span(VmSpanKind::Whole).map_or(0, |span| span.count)
    }

    /// A span that interrupts have passed.
    pub fn span(&self, kind: VmSpanKind) -> Option<&VmSpan> {
        self.spans.iter().find(|span| span.span == kind)
    }

    /// Adds another interrupt of the same device, or the same process; the source is that of the first.
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

    /// Those whose sources are the same as one.
    pub(super) fn merged(interrupts: &mut Vec<Self>, are_same: impl Fn(&S, &S) -> bool) {
        let mut merged: Vec<Self> = Vec::new();
        for one in interrupts.drain(..) {
            match merged.iter_mut().find(|known| are_same(&known.source, &one.source)) {
                Some(all) => all.merge(&one),
                None => merged.push(one),
            }
        }
        *interrupts = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupt(irq: u32, vcpu: u32, count: u64) -> VmDeviceInterrupt {
        VmDeviceInterrupt {
            source: VmDevice { irq, ..VmDevice::default() },
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
        assert_eq!((all.source.irq, all.interrupts, all.set, all.entered()), (40, 7, 7, 7));
        assert_eq!(all.vcpus, [0, 1]);
        assert_eq!(all.handled_on, BTreeMap::from([(40, 3), (41, 4)]));
    }

    #[test]
    fn those_of_the_same_source_are_one() {
        let mut all = vec![interrupt(40, 0, 3), interrupt(41, 1, 4), interrupt(40, 1, 5)];
        VmInterrupt::merged(&mut all, |one, other| one.irq == other.irq);
        let counts: Vec<_> = all.iter().map(|one| (one.source.irq, one.interrupts)).collect();
        assert_eq!(counts, [(40, 8), (41, 4)]);
    }

    #[test]
    fn the_source_is_among_the_fields() {
        let json = serde_json::to_value(interrupt(40, 0, 3)).unwrap();
        assert_eq!((&json["irq"], &json["interrupts"]), (&40.into(), &3.into()));
        assert_eq!(serde_json::from_value::<VmDeviceInterrupt>(json).unwrap(), interrupt(40, 0, 3));
    }
}
