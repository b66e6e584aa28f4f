//! Where a CPU keeps whether a softirq runs on it and which are pending: variables of its own, whose
//! places relative to its run queue the kernel's BTF has.

use libbpf_rs::btf::ReferencesType;
use libbpf_rs::btf::types::{Composite, DataSec, MemberAttr, Struct, Var};
use libbpf_rs::btf::{Btf, BtfType};

/// Distances from a CPU's run queue, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftirqWords {
    /// The preemption count, of which a bit says that a softirq runs (`include/linux/preempt.h`).
    pub preempt_count: i64,
    /// The mask of pending softirqs.
    pub pending: i64,
}

/// A variable of each CPU, or a field of one: the variable's name, and the field's.
type Place = (&'static str, Option<&'static str>);

/// x86, where the preemption count is the CPU's: from 6.15 on and up to 6.1, and between.
const PREEMPT_COUNT: [Place; 2] = [("__preempt_count", None), ("pcpu_hot", Some("preempt_count"))];
const PENDING: [Place; 3] = [
    ("__softirq_pending", None),
    ("pcpu_hot", Some("softirq_pending")),
    ("irq_stat", Some("__softirq_pending")),
];

/// Finds them; `None` where the kernel keeps them otherwise: on other machines in the task, with
/// PREEMPT_RT as well (`softirq_disable_cnt`).
pub fn softirq_words(btf: &Btf<'_>) -> Option<SoftirqWords> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let task: Struct<'_> = btf.type_by_name("task_struct")?;
    if task.iter().any(|member| member.name.is_some_and(|n| n == "softirq_disable_cnt")) {
        return None;
    }
    let section: DataSec<'_> = btf.type_by_name(".data..percpu")?;
    let offset_of = |&(variable, field): &Place| {
        let found = section.iter().find_map(|place| {
            let var: Var<'_> = btf.type_by_id(place.ty)?;
            (var.name()? == variable).then_some((place.offset, var))
        });
        let (offset, var) = found?;
        let offset = i64::from(offset);
        let Some(field) = field else { return Some(offset) };
        let within = bits_of(btf, &var.referenced_type(), field)?;
        Some(offset + i64::from(within / 8))
    };
    let run_queue = offset_of(&("runqueues", None))?;
    let from_run_queue = |places: &[Place]| {
        places.iter().find_map(offset_of).map(|at| at - run_queue).filter(|&at| at != 0)
    };
    Some(SoftirqWords {
        preempt_count: from_run_queue(&PREEMPT_COUNT)?,
        pending: from_run_queue(&PENDING)?,
    })
}

/// Where a field of a structure stands, in bits; also in a structure or union without name in it.
fn bits_of(btf: &Btf<'_>, of: &BtfType<'_>, field: &str) -> Option<u32> {
    let composite = Composite::try_from(of.skip_mods_and_typedefs()).ok()?;
    composite.iter().find_map(|member| {
        let MemberAttr::Normal { offset } = member.attr else { return None };
        match member.name {
            Some(name) if name == field => Some(offset),
            Some(name) if !name.is_empty() => None,
            _ => {
                let inner: BtfType<'_> = btf.type_by_id(member.ty)?;
                bits_of(btf, &inner, field).map(|bits| bits + offset)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The kernel that the test runs on, if it has types: the distances are those of variables that each
    /// CPU has, not of anything else.
    #[test]
    fn the_words_lie_among_the_variables_of_a_cpu() {
        let kernel = Path::new("/sys/kernel/btf/vmlinux");
        if !kernel.exists() || !cfg!(target_arch = "x86_64") {
            return;
        }
        let btf = Btf::from_path(kernel).unwrap();
        let Some(section) = btf.type_by_name::<DataSec<'_>>(".data..percpu") else { return };
        let size = section.iter().map(|p| i64::from(p.offset) + p.size as i64).max().unwrap_or(0);
        if let Some(words) = softirq_words(&btf) {
            assert_ne!(words.preempt_count, words.pending);
            assert!(words.preempt_count.abs() < size && words.pending.abs() < size, "{words:?}");
        }
    }
}
