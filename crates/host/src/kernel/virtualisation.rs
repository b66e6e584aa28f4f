//! The hypervisor of a guest, named as by `systemd-detect-virt`.
//!
//! systemd queries the processor itself; here only files are used, the most reliable first. A machine is
//! reported as bare metal only if a guest would be recognized.

use crate::Root;

/// X86_FEATURE_HYPERVISOR (4*32+31, arch/x86/include/asm/cpufeatures.h) as in `cpu/modalias`.
const HYPERVISOR_FEATURE: &str = "009F";

/// XENFEAT_dom0 in `/sys/hypervisor/properties/features` (xen/include/public/features.h).
const XENFEAT_DOM0: u64 = 1 << 11;

/// Reads the hypervisor's name, `none` if the machine is known to be bare metal.
///
/// # Errors
/// Why neither is known.
pub(super) fn read(root: &Root) -> Result<String, String> {
    let (dmi, hypervisor) = (dmi(root), hypervisor_flag(root));
    // The firmware of bare metal may contain the vendor's name; the CPU flag is reliable.
    let dmi = if hypervisor == Some(false) { None } else { dmi };
    match dmi {
        Some("amazon") if bare_metal_amazon(root) => return Ok("none".to_owned()),
        // These use the interfaces of another hypervisor, KVM or Hyper-V.
        Some(name @ ("oracle" | "xen" | "amazon" | "parallels" | "google")) => {
            return Ok(name.to_owned());
        }
        _ => {}
    }
    let found = xen(root).or_else(|| clock(root, "kvm-clock").then_some("kvm")).or(dmi);
    let found = found.or_else(|| device_tree(root)).or_else(|| s390(root));
    match (found, hypervisor) {
        (Some(name), _) => Ok(name.to_owned()),
        // KVM offers Hyper-V's clocks too, so they count only if nothing else is known.
        (None, flag) if flag != Some(false) && is_hyperv(root) => Ok("microsoft".to_owned()),
        (None, Some(true)) => Ok("vm-other".to_owned()),
        (None, Some(false)) => Ok("none".to_owned()),
        (None, None) => Err("no file identifies a hypervisor, and none rules it out".to_owned()),
    }
}

/// Whether an x86 processor reports a hypervisor; `None` on other machines. The short `cpu/modalias` is
/// preferred: on some kernels reading `/proc/cpuinfo` wakes every CPU.
fn hypervisor_flag(root: &Root) -> Option<bool> {
    let features = root.text("/sys/devices/system/cpu/modalias").ok().and_then(|modalias| {
        let (kind, features) = modalias.split_once(":feature:")?;
        let x86 = kind.starts_with("cpu:type:x86") || kind.starts_with("x86cpu:");
        x86.then(|| features.split(',').any(|feature| feature == HYPERVISOR_FEATURE))
    });
    features.or_else(|| {
        let cpuinfo = root.text("/proc/cpuinfo").ok()?;
        let flags = cpuinfo.lines().find_map(|line| field(line, "flags"))?;
        Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
    })
}

/// The value of a line `name : value`.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (written, value) = line.split_once(':')?;
    (written.trim() == name).then(|| value.trim())
}

/// A Xen guest, or dom0, which does not count as a guest.
fn xen(root: &Root) -> Option<&'static str> {
    let is_xen = root.text("/sys/hypervisor/type").is_ok_and(|kind| kind == "xen")
        || root.list("/proc/xen").is_ok();
    if !is_xen {
        return None;
    }
    let features = root.text("/sys/hypervisor/properties/features").ok();
    let features = features.and_then(|text| u64::from_str_radix(&text, 16).ok());
    let first_domain = match features {
        Some(features) => features & XENFEAT_DOM0 != 0,
        None => root
            .text("/proc/xen/capabilities")
            .is_ok_and(|text| text.split(',').any(|word| word.trim() == "control_d")),
    };
    Some(if first_domain { "none" } else { "xen" })
}

/// Whether the kernel could use a clock source that only guests have.
fn clock(root: &Root, name: &str) -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    root.text(path).is_ok_and(|clocks| clocks.split_whitespace().any(|clock| clock == name))
}

/// Whether it is a guest of Hyper-V: its bus, one of its clocks (drivers/clocksource/hyperv_timer.c; the first name is that of
/// kernels before 4.17), or its firmware of the first generation, which does not name it.
fn is_hyperv(root: &Root) -> bool {
    const CLOCKS: [&str; 3] =
        ["hyperv_clocksource", "hyperv_clocksource_tsc_page", "hyperv_clocksource_msr"];
    let dmi = |file: &str| root.text(&format!("/sys/class/dmi/id/{file}")).unwrap_or_default();
    CLOCKS.into_iter().any(|name| clock(root, name))
        || root.list("/sys/bus/vmbus/devices").is_ok_and(|devices| !devices.is_empty())
        || dmi("sys_vendor") == "Microsoft Corporation" && dmi("product_name") == "Virtual Machine"
}

/// The vendor in the firmware tables (the table of systemd's src/basic/virt.c).
fn dmi(root: &Root) -> Option<&'static str> {
    const VENDORS: [(&str, &str); 17] = [
        ("KVM", "kvm"),
        ("OpenStack", "kvm"),
        ("KubeVirt", "kvm"),
        ("Amazon EC2", "amazon"),
        ("QEMU", "qemu"),
        ("VMware", "vmware"),
        ("VMW", "vmware"),
        ("innotek GmbH", "oracle"),
        ("VirtualBox", "oracle"),
        ("Oracle Corporation", "oracle"),
        ("Xen", "xen"),
        ("Bochs", "bochs"),
        ("Parallels", "parallels"),
        ("BHYVE", "bhyve"),
        ("Hyper-V", "microsoft"),
        ("Apple Virtualization", "apple"),
        ("Google Compute Engine", "google"),
    ];
    ["product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version"]
        .iter()
        .filter_map(|file| root.text(&format!("/sys/class/dmi/id/{file}")).ok())
        .find_map(|text| VENDORS.iter().find(|(vendor, _)| text.starts_with(vendor)))
        .map(|(_, name)| *name)
}

/// Whether Amazon's product is bare metal: `m5.metal`, `m7i.metal-24xl`.
fn bare_metal_amazon(root: &Root) -> bool {
    let product = root.text("/sys/class/dmi/id/product_name").unwrap_or_default();
    let after = product.split_once(".metal").map(|(_, after)| after);
    after.is_some_and(|after| after.is_empty() || after.starts_with('-'))
}

/// The hypervisor in the device tree of arm64, ppc64 or RISC-V.
fn device_tree(root: &Root) -> Option<&'static str> {
    const TREE: &str = "/proc/device-tree";
    if let Ok(compatible) = root.text(&format!("{TREE}/hypervisor/compatible")) {
        return Some(match compatible.trim_end_matches('\0') {
            "linux,kvm" => "kvm",
            text if text.contains("xen") => "xen",
            text if text.contains("vmware") => "vmware",
            _ => "vm-other",
        });
    }
    let names = root.list(TREE).ok()?;
    let has = |name: &str| names.iter().any(|entry| entry.name == name);
    if has("ibm,partition-name")
        && has("hmc-managed?")
        && root.read(&format!("{TREE}/chosen/qemu,graphic-width")).is_err()
    {
        return Some("powervm");
    }
    let compatible = root.text(&format!("{TREE}/compatible")).unwrap_or_default();
    let qemu = compatible.split('\0').any(|text| text == "qemu,pseries")
        || names.iter().any(|entry| entry.name.contains("fw-cfg"));
    if qemu {
        return Some("qemu");
    }
    // OPAL firmware runs Linux on bare metal (arch/powerpc/platforms/powernv).
    compatible.split('\0').any(|text| text == "ibm,powernv").then_some("none")
}

/// s390: the line of the outermost control program; a logical partition counts as bare metal.
fn s390(root: &Root) -> Option<&'static str> {
    let sysinfo = root.text("/proc/sysinfo").ok()?;
    match sysinfo.lines().find_map(|line| field(line, "VM00 Control Program")) {
        Some(program) if program.starts_with("z/VM") => Some("zvm"),
        Some(_) => Some("kvm"),
        None => sysinfo.lines().any(|line| field(line, "LPAR Number").is_some()).then_some("none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testing::trees::{Layout, Machine};

    const MODALIAS: &str = "/sys/devices/system/cpu/modalias";
    const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    const DMI: &str = "/sys/class/dmi/id";

    fn named(files: &[(&str, &str)]) -> Result<String, String> {
        let machine = Machine::regular(Layout::default());
        let machine = files.iter().fold(machine, |m, (path, text)| m.file(path, text));
        read(&Root::tree(machine.write().path()).unwrap())
    }

    fn x86(guest: bool) -> String {
        let feature = if guest { ",009F" } else { "" };
        format!("cpu:type:x86,ven0002fam0017mod0001:feature:,0000,0001{feature},00C0\n")
    }

    #[test]
    fn bare_metal_only_if_a_guest_would_be_recognized() {
        assert_eq!(named(&[(MODALIAS, &x86(false))]).unwrap(), "none");
        let flags = "processor : 0\nflags\t\t: fpu vme sse2\n";
        assert_eq!(named(&[("/proc/cpuinfo", flags)]).unwrap(), "none");
        assert!(named(&[]).is_err());
        assert!(named(&[("/proc/cpuinfo", "Features : fp asimd\n")]).is_err());
        let arm = "cpu:type:aarch64:feature:,0000,009F\n";
        assert!(named(&[(MODALIAS, arm)]).is_err());
    }

    #[test]
    fn guests_of_x86() {
        let guest = x86(true);
        let guest = (MODALIAS, guest.as_str());
        let dmi = |file, text| (format!("{DMI}/{file}"), text);
        assert_eq!(named(&[guest]).unwrap(), "vm-other");
        assert_eq!(named(&[("/proc/cpuinfo", "flags : fpu hypervisor\n")]).unwrap(), "vm-other");
        assert_eq!(named(&[guest, (CLOCKS, "tsc kvm-clock \n")]).unwrap(), "kvm");
        for clocks in [
            "hyperv_clocksource_tsc_page acpi_pm\n",
            "tsc hyperv_clocksource_msr\n",
            "hyperv_clocksource acpi_pm\n",
        ] {
            assert_eq!(named(&[guest, (CLOCKS, clocks)]).unwrap(), "microsoft");
        }
        // Of the first generation, with the processor's clock alone.
        let (vendor, product) = (
            (dmi("sys_vendor", "Microsoft Corporation")),
            (dmi("product_name", "Virtual Machine")),
        );
        let firmware = [guest, (&vendor.0, vendor.1), (&product.0, product.1)];
        assert_eq!(named(&firmware).unwrap(), "microsoft");
        assert_eq!(named(&firmware[..2]).unwrap(), "vm-other", "a Surface has that vendor");
        for ((path, text), name) in [
            (dmi("product_name", "VMware Virtual Platform"), "vmware"),
            (dmi("product_name", "VirtualBox"), "oracle"),
            (dmi("sys_vendor", "Amazon EC2"), "amazon"),
            (dmi("sys_vendor", "QEMU"), "qemu"),
            (dmi("product_version", "Hyper-V UEFI Release v4.1"), "microsoft"),
        ] {
            assert_eq!(named(&[guest, (&path, text)]).unwrap(), name);
        }
        let (path, text) = dmi("sys_vendor", "Amazon EC2");
        let metal = x86(false);
        assert_eq!(named(&[(MODALIAS, &metal), (&path, text)]).unwrap(), "none");
    }

    #[test]
    fn xen_and_dom0() {
        let xen = ("/sys/hypervisor/type", "xen\n");
        assert_eq!(named(&[xen]).unwrap(), "xen");
        let features = "/sys/hypervisor/properties/features";
        assert_eq!(named(&[xen, (features, "00000705\n")]).unwrap(), "xen");
        assert_eq!(named(&[xen, (features, "00002f05\n")]).unwrap(), "none");
        assert_eq!(named(&[("/proc/xen/capabilities", "control_d\n")]).unwrap(), "none");
        assert_eq!(named(&[("/proc/xen/capabilities", "")]).unwrap(), "xen");
    }

    #[test]
    fn device_trees_and_s390() {
        let tree = |file: &str| format!("/proc/device-tree/{file}");
        let (hypervisor, compatible) = (tree("hypervisor/compatible"), tree("compatible"));
        assert_eq!(named(&[(&hypervisor, "linux,kvm\0")]).unwrap(), "kvm");
        assert_eq!(named(&[(&hypervisor, "xen,xen-4.17\0xen,xen\0")]).unwrap(), "xen");
        assert_eq!(named(&[(&compatible, "qemu,pseries\0")]).unwrap(), "qemu");
        assert_eq!(named(&[(&compatible, "ibm,powernv\0ibm,p9-openbmc\0")]).unwrap(), "none");
        let partition = [(tree("ibm,partition-name"), "a\0"), (tree("hmc-managed?"), "\0")];
        let partition = partition.each_ref().map(|(path, text)| (path.as_str(), *text));
        assert_eq!(named(&partition).unwrap(), "powervm");
        let sysinfo = "/proc/sysinfo";
        assert_eq!(named(&[(sysinfo, "VM00 Control Program: z/VM    6.2.0\n")]).unwrap(), "zvm");
        assert_eq!(named(&[(sysinfo, "VM00 Control Program: KVM/Linux\n")]).unwrap(), "kvm");
        assert_eq!(named(&[(sysinfo, "LPAR Number:          30\n")]).unwrap(), "none");
        assert!(named(&[(sysinfo, "Manufacturer: IBM\n")]).is_err());
    }
}
