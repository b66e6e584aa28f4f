//! `show devices`: the network functions of the PCI bus, with or without an interface.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::{Host, PciFunction, PcieLink};

/// Network functions with their driver, place and relations; `verbose` adds ids, interrupts and device files.
pub fn devices(host: &Host, verbose: bool) -> String {
    let mut out = String::new();
    let devices = &host.devices;
    if devices.is_empty() {
        line!(out, "no PCI network functions");
    } else {
        heading(&mut out, &title(devices));
        out.push_str(&table(devices, verbose));
    }
    let unknown = unknown(&host.unknown, &["device", "devices"]);
    if !unknown.is_empty() {
        line!(out);
        out.push_str(&unknown);
    }
    out
}

/// `4 PCI network functions: 2 with an interface, 1 given to programs, 1 without a driver`.
fn title(devices: &[PciFunction]) -> String {
    let of = |is: fn(&PciFunction) -> bool| devices.iter().filter(|device| is(device)).count();
    let kinds = [
        (of(|device| !device.interfaces.is_empty()), "with an interface"),
        (of(PciFunction::is_given_away), "given to programs (vfio, uio)"),
        (of(|device| device.driver.is_none()), "without a driver"),
    ];
    let kinds: Vec<String> = kinds
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{number} {what}"))
        .collect();
    let title = count(devices.len(), "PCI network function");
    if kinds.is_empty() { title } else { format!("{title}: {}", kinds.join(", ")) }
}

fn table(devices: &[PciFunction], verbose: bool) -> String {
    let mut table = Table::new(&[
        left("ADDRESS"),
        left("ID").optional(),
        right("NODE"),
        left("DRIVER"),
        left("FUNCTION"),
        right("GROUP").optional(),
        right("MSI-X"),
        left("LINK").optional(),
        left("INTERFACE"),
        left("IRQS").optional(),
        left("DEVICE-FILE").optional(),
    ]);
    let joined = |names: &[String]| (!names.is_empty()).then(|| names.join(","));
    for device in devices {
        let irqs: Vec<String> = device.irqs.iter().map(ToString::to_string).collect();
        table.row([
            device.address.clone(),
            device.id.clone().filter(|_| verbose).unwrap_or_default(),
            or_none(device.numa_node),
            or_none(device.driver.as_ref()),
            function(device),
            device.iommu_group.map(|group| group.to_string()).unwrap_or_default(),
            vectors(device),
            device.link.map(link).unwrap_or_default(),
            or_none(joined(&device.interfaces)),
            joined(&irqs).filter(|_| verbose).unwrap_or_default(),
            joined(&device.user_devices).filter(|_| verbose).unwrap_or_default(),
        ]);
    }
    table.render()
}

/// `PF 2/7`: a physical function with two of at most seven virtual ones; `VF of 0000:81:00.0`.
fn function(device: &PciFunction) -> String {
    match (&device.physical_function, device.virtual_functions_max) {
        (Some(physical), _) => format!("VF of {physical}"),
        (None, Some(max)) => format!("PF {}/{max}", device.virtual_functions.len()),
        (None, None) => "PF".to_owned(),
    }
}

/// `5/10`: requested by the driver, and in the table.
fn vectors(device: &PciFunction) -> String {
    let most = or_none(device.msix_vectors);
    format!("{}/{most}", device.irqs.len())
}

/// `8 GT/s x8`, and of what it could be.
fn link(link: PcieLink) -> String {
    let PcieLink { speed_mts, width, max_speed_mts, max_width } = link;
    let speed = |mts: u32| format!("{} GT/s", f64::from(mts) / 1000.0);
    let now = format!("{} x{width}", speed(speed_mts));
    if (speed_mts, width) == (max_speed_mts, max_width) {
        return now;
    }
    format!("{now} of {} x{max_width}", speed(max_speed_mts))
}
