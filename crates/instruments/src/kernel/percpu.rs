//! Offsets of the per-CPU variables with the current and pending softirqs, relative to the CPU's run queue,
//! from the kernel's BTF.

use libbpf_rs::btf::ReferencesType;
use libbpf_rs::btf::types::{Composite, DataSec, MemberAttr, Struct, Var};
use libbpf_rs::btf::{Btf, BtfType};

/// Distances from a CPU's run queue, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftirqWords {
    /// The preemption count, with bits that are set while a softirq runs (`include/linux/preempt.h`).
    pub preempt_count: i64,
    /// The mask of pending softirqs.
    pub pending: i64,
}

/// A per-CPU variable, or a field of one: the names of the variable and the field.
type Place = (&'static str, Option<&'static str>);

/// x86, where the preemption count is per CPU: since 6.15 and up to 6.1, and in between.
const PREEMPT_COUNT: [Place; 2] = [("__preempt_count", None), ("pcpu_hot", Some("preempt_count"))];
const PENDING: [Place; 3] = [
    ("__softirq_pending", None),
    ("pcpu_hot", Some("softirq_pending")),
    ("irq_stat", Some("__softirq_pending")),
];

/// Finds the offsets; `None` if the kernel stores the data elsewhere: on other architectures in the task, and
/// also with PREEMPT_RT (`softirq_disable_cnt`).
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

/// Bit offset of a field in a structure, including fields of anonymous members.
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

    /// On the running kernel, if it has BTF: the distances are those of per-CPU variables, not of anything
    /// else.
    #[test]
    fn the_words_are_per_cpu_variables() {
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
