//! Interrupts of devices that are passed through: their names, and the virtual machines that they belong to.

use super::reading::Found;
use nearpath_host::Root;
use nearpath_model::Vm;
use nearpath_model::vm::{VmDevice, VmDeviceInterrupt, VmInterrupt, VmQueue, VmSpan, VmSpanKind};

/// The name of an interrupt, and the device in it.
pub struct Named {
    name: Option<String>,
    device: Option<String>,
}

/// The name of an interrupt of vfio-pci: the kernel has a directory for each handler in that of the interrupt
/// (kernel/irq/proc.c, `register_handler_proc`), which is less to read than the table of all interrupts.
pub fn named(root: &Root, irq: u32) -> Named {
    let entries = root.list(&format!("/proc/irq/{irq}")).unwrap_or_default();
    let name = entries.into_iter().map(|entry| entry.name).find(|name| name.starts_with("vfio-"));
    let device = name.as_deref().and_then(device_of).map(str::to_owned);
    Named { name, device }
}

/// `0000:01:10.0` of `vfio-msix[0](0000:01:10.0)` (drivers/vfio/pci/vfio_pci_intrs.c).
fn device_of(name: &str) -> Option<&str> {
    let (_, device) = name.strip_suffix(')')?.rsplit_once('(')?;
    nearpath_host::is_pci_address(device).then_some(device)
}

/// Whether it is an interrupt of this virtual machine: by the vCPU that took the last one, else by the device that the
/// process has open.
pub fn is_of(vm: &Vm, found: &Found, named: &Named) -> bool {
    let has = |device: &str| vm.devices.iter().any(|used| used.name.as_deref() == Some(device));
    if found.pid != 0 { vm.pid == found.pid } else { named.device.as_deref().is_some_and(has) }
}

/// The interrupt.
pub fn interrupt(found: Found, named: Named) -> VmDeviceInterrupt {
    let source = VmDevice { device: named.device, name: named.name, irq: found.irq };
    from_queue(found.queue, source, VmSpanKind::InterruptToKvm)
}

/// What the programs count as a queue whose packets are interrupts, and `first` as the span that is that of vhost.
pub fn from_queue<S>(queue: VmQueue, source: S, first: VmSpanKind) -> VmInterrupt<S> {
    let kind = |span: VmSpan| match span.span {
        VmSpanKind::VhostToKvm => VmSpan { span: first, ..span },
        _ => span,
    };
    VmInterrupt {
        source,
        vcpus: queue.vcpus,
        vcpu_threads: queue.vcpu_threads,
        interrupts: queue.taken,
        set: queue.interrupts,
        posted: queue.posted,
        deferred: queue.deferred,
        lost: queue.lost,
        spans: queue.spans.into_iter().map(kind).collect(),
        handled_on: queue.cpus.handler,
        entered_on: queue.cpus.vcpu,
        late: queue.late,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_in_the_name() {
        assert_eq!(device_of("vfio-msix[3](0000:01:10.0)"), Some("0000:01:10.0"));
        assert_eq!(device_of("vfio-intx(0000:01:10.0)"), Some("0000:01:10.0"));
        for name in ["vfio-req", "vfio-msix[0]()", "vfio-msix[0](../..)", "(", ")", ""] {
            assert_eq!(device_of(name), None, "{name}");
        }
    }
}
