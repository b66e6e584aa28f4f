//! Names of drop reasons, from the kernel's type information.
//!
//! A reason is a number whose meaning differs between kernels. Its upper 16 bits are a subsystem (`enum
//! skb_drop_reason_subsys`): 0 is the network stack itself, others are modules with their own numbers.

use super::btf_enums::enumerations;
use nearpath_host::Root;
use std::collections::BTreeMap;
use std::path::Path;

/// The kernel's type information.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
/// Prefix of the stack's own reasons.
const PREFIX: &str = "SKB_DROP_REASON_";
const SUBSYSTEM_PREFIX: &str = "SKB_DROP_REASON_SUBSYS_";

/// The reason names of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasons {
    names: BTreeMap<u32, String>,
    /// Subsystems by number.
    subsystems: BTreeMap<u32, String>,
}

impl Reasons {
    /// Those of the running kernel, or of the given BTF file.
    pub fn read(root: &Root, btf_file: Option<&Path>) -> Self {
        let kernel = match btf_file {
            Some(file) => std::fs::read(file).ok(),
            None => root.read(KERNEL_BTF).ok(),
        };
        let Some(kernel) = kernel else { return Self::default() };
        let mut reasons = Self::of(&kernel);
        let modules: Vec<(u32, String)> =
            reasons.subsystems.iter().map(|(number, name)| (*number, module(name))).collect();
        for (number, module) in modules {
            if let Ok(bytes) = root.read(&format!("/sys/kernel/btf/{module}")) {
                reasons.add_module(number, &bytes, &kernel);
            }
        }
        reasons
    }

    /// Those of the stack, and of built-in subsystems.
    fn of(kernel: &[u8]) -> Self {
        const BUILT_IN: [&str; 3] =
            ["ovs_drop_reason", "mac80211_drop_reason", "___mac80211_drop_reason"];
        let mut reasons = Self::default();
        let wanted = |name: &str| name.starts_with("skb_drop_reason") || BUILT_IN.contains(&name);
        for found in enumerations(kernel, None, wanted) {
            for (name, value) in found.values {
                match (found.name.as_str(), name.strip_prefix(SUBSYSTEM_PREFIX)) {
                    ("skb_drop_reason_subsys", Some(name)) if value > 0 && name != "NUM" => {
                        reasons.subsystems.insert(value, name.to_lowercase());
                    }
                    ("skb_drop_reason_subsys", _) => {}
                    _ => reasons.add(name, value),
                }
            }
        }
        reasons
    }

    /// Adds the names in a module's enumerations to those of its subsystem.
    fn add_module(&mut self, subsystem: u32, module: &[u8], kernel: &[u8]) {
        for found in enumerations(module, Some(kernel), |_| true) {
            for (name, value) in found.values {
                if value >> 16 == subsystem && value & 0xffff != 0 {
                    self.add(name, value);
                }
            }
        }
    }

    fn add(&mut self, name: String, value: u32) {
        let name = name.strip_prefix(PREFIX).unwrap_or(&name);
        // The ends of enumerations, and their masks, are not reasons.
        let none = name.ends_with("MAX") || name.contains("MASK") || name.starts_with("__");
        if !none {
            self.names.entry(value).or_insert_with(|| name.to_owned());
        }
    }

    /// Its name: `SOCKET_RCVBUFF`; `openvswitch reason 3` if only the subsystem is known.
    pub fn name(&self, reason: u32) -> String {
        if let Some(name) = self.names.get(&reason) {
            return name.clone();
        }
        let (subsystem, number) = (reason >> 16, reason & 0xffff);
        match (subsystem, self.subsystems.get(&subsystem)) {
            (0, _) => format!("reason {number}"),
            (_, Some(name)) => format!("{name} reason {number}"),
            (_, None) => format!("subsystem {subsystem} reason {number}"),
        }
    }
}

/// The modules of a subsystem: mac80211 has had several.
fn module(subsystem: &str) -> String {
    let name = if subsystem.starts_with("mac80211") { "mac80211" } else { subsystem };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_reasons_are_shown_by_number() {
        let mut reasons = Reasons::default();
        reasons.add("SKB_DROP_REASON_NO_SOCKET".to_owned(), 3);
        reasons.add("SKB_CONSUMED".to_owned(), 1);
        reasons.add("SKB_DROP_REASON_MAX".to_owned(), 128);
        reasons.add("SKB_DROP_REASON_SUBSYS_MASK".to_owned(), 0xffff_0000);
        reasons.add("OVS_DROP_METER".to_owned(), 3 << 16 | 5);
        reasons.subsystems.insert(3, "openvswitch".to_owned());
        assert_eq!(reasons.name(3), "NO_SOCKET");
        assert_eq!(reasons.name(1), "SKB_CONSUMED");
        assert_eq!(reasons.name(3 << 16 | 5), "OVS_DROP_METER");
        assert_eq!(reasons.name(3 << 16 | 6), "openvswitch reason 6");
        assert_eq!(reasons.name(9 << 16 | 6), "subsystem 9 reason 6");
        assert_eq!(reasons.name(128), "reason 128");
    }

    #[test]
    fn the_running_kernel_has_names_for_its_reasons() {
        let reasons = Reasons::read(&Root::live(), None);
        if reasons.names.is_empty() {
            return; // before 5.17, or without BTF
        }
        let names: Vec<&String> = reasons.names.values().collect();
        for name in ["NOT_SPECIFIED", "NO_SOCKET", "SOCKET_RCVBUFF", "QDISC_DROP"] {
            assert!(names.iter().any(|known| *known == name), "{name} is not among {names:?}");
        }
    }
}
