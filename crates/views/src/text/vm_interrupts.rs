//! `measure vm`: interrupts of devices whose packets the host does not see, as they are passed through or served by a
//! process, and the kicks that such a process gets.

use super::units::printable;
use super::vm::{
    LOST, Late, POSTED, late_packets, list, machine, not_followed, row, span_name, table,
};
use super::{heading, line};
use nearpath_model::vm::{
    MeasuredVm, VmBackendInterrupt, VmDeviceInterrupt, VmInterrupt, VmKicks, VmSpanKind,
};

/// An interrupt of a device that is passed through.
pub(super) fn device_interrupt(vm: &MeasuredVm, one: &VmDeviceInterrupt) -> String {
    let mut out = String::new();
    let source = &one.source;
    let number = format!("interrupt {}", source.irq);
    let name = source.name.as_ref().or(source.device.as_ref()).unwrap_or(&number);
    heading(&mut out, &printable(&format!("{}, {name}", machine(vm))));
    let left = "were left to a kernel worker or to the process: KVM did not set them";
    out.push_str(&interrupts(one, "interrupts", left, Late::Handled));
    out
}

/// The interrupts that a process writes to an eventfd.
pub(super) fn backend_interrupt(vm: &MeasuredVm, one: &VmBackendInterrupt) -> String {
    let mut out = String::new();
    let source = &one.source;
    let writer = match (source.tid, source.pid) {
        (0, _) => "a process of another PID namespace".to_owned(),
        (tid, pid) if tid == pid => format!("{} {tid}", source.comm),
        (tid, pid) => format!("{} {tid} of process {pid}", source.comm),
    };
    let name = format!("{}, eventfd {} of {writer} (vhost-user)", machine(vm), source.eventfd);
    heading(&mut out, &printable(&name));
    let left = "whose interrupt KVM left to a kernel worker";
    out.push_str(&interrupts(one, "interrupts written", left, Late::Written));
    out
}

/// The interrupts, their times, and why they were late.
fn interrupts<S>(one: &VmInterrupt<S>, what: &str, left: &str, late: Late) -> String {
    let mut out = String::new();
    let (count, entered) = (one.interrupts, one.entered());
    let vcpus = match one.vcpus.is_empty() {
        true => String::new(),
        false => format!(" for vCPU {}", list(&one.vcpus)),
    };
    line!(out, "{count} {what}{vcpus}, {entered} reached the guest");
    out.push_str(&not_followed(&[(one.posted, POSTED), (one.deferred, left), (one.lost, LOST)]));
    let mut table = table("INTERRUPTS");
    let (handled, entered) = (&one.handled_on, &one.entered_on);
    for span in &one.spans {
        let is_first = matches!(span.span, VmSpanKind::InterruptToKvm | VmSpanKind::WriteToKvm);
        row(
            &mut table,
            span_name(span.span),
            span,
            handled,
            if is_first { handled } else { entered },
        );
    }
    out.push_str(&table.render());
    if let Some(of) = &one.late {
        out.push_str(&late_packets(of, late));
    }
    out
}

/// The kicks of a guest, by the process that gets them.
pub(super) fn backend_kicks(vm: &MeasuredVm, all: &[VmKicks]) -> String {
    let mut out = String::new();
    heading(&mut out, &printable(&format!("{}, kicks for vhost-user", machine(vm))));
    for of in all {
        let by = printable(&format!("{} {}", of.comm, of.pid));
        match of.kicks() {
            0 => line!(out, "0 kicks for {by}: it polls the rings, or the guest sent nothing"),
            kicks => {
                let each = |(eventfd, kicks): (&u32, &u64)| format!("{kicks} by eventfd {eventfd}");
                let each: Vec<String> = of.eventfds.iter().map(each).collect();
                line!(out, "{kicks} kicks for {by}: {}", each.join(", "));
            }
        }
    }
    out
}
