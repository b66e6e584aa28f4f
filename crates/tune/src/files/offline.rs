//! Values of CPUs, some of which are offline: what the kernel stores of a mask, and what can be written of an old value.
//!
//! Input: the CPUs that are online, and values as text. Rules: the kernel drops offline CPUs from the masks of RPS and
//! XPS (`netdev_rx_queue_set_rps_mask` and `__netif_set_xps_queue` of net/core), and refuses an affinity of which no
//! CPU is online (`irq_affinity_proc_write` of kernel/irq/proc.c).

use crate::setting::Possible;
use nearpath_model::{CpuSet, Form};

/// Whether a mask is what the kernel stores of another one, which may have offline CPUs.
pub(super) fn is_stored(online: &CpuSet, now: &str, value: &str) -> bool {
    let (Ok(now), Ok(value)) = (CpuSet::from_mask(now), CpuSet::from_mask(value)) else {
        return false;
    };
    let stored = value.intersection(online);
    !stored.is_empty() && now == stored
}

/// What can be written of an old value: of a mask its online CPUs, which may be none; for an interrupt, which needs
/// one, all that are online, as when its last CPU goes. `None` if that is the value itself.
pub(super) fn possible_of(form: Form, online: &CpuSet, value: &str) -> Option<Possible> {
    let (cpus, is_mask) = match form {
        Form::CpuMask => (CpuSet::from_mask(value).ok()?, true),
        Form::CpuList => (CpuSet::from_list(value).ok()?, false),
        _ => return None,
    };
    let there = cpus.intersection(online);
    let replaced = there.is_empty() && !cpus.is_empty();
    match is_mask {
        true if there != cpus => Some(Possible { text: there.to_mask(), replaced }),
        false if replaced => Some(Possible { text: online.to_string(), replaced }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_stores_of_a_mask_with_an_offline_cpu_is_that_mask() {
        let online = CpuSet::from_list("0-2").unwrap();
        assert!(is_stored(&online, "7", "f") && is_stored(&online, "4", "c"));
        assert!(!is_stored(&online, "f", "7") && !is_stored(&online, "3", "f"));
        // Nothing is not what was wanted.
        assert!(!is_stored(&online, "0", "8"));
    }

    #[test]
    fn an_old_value_with_offline_cpus_is_restored_as_far_as_possible() {
        let online = CpuSet::from_list("0-2").unwrap();
        let of = |form, value: &str| {
            possible_of(form, &online, value).map(|possible| (possible.text, possible.replaced))
        };
        let some = |text: &str, replaced| Some((text.to_owned(), replaced));
        assert_eq!(
            of(Form::CpuMask, "f"),
            some(&CpuSet::from_list("0-2").unwrap().to_mask(), false)
        );
        assert_eq!(of(Form::CpuMask, "8"), some(&CpuSet::new().to_mask(), true));
        assert_eq!(of(Form::CpuList, "3"), some("0-2", true));
        for (form, value) in [
            (Form::CpuMask, "7"),
            (Form::CpuMask, "0"),
            (Form::CpuList, "0,3"),
            (Form::Mask, "f"),
            (Form::Numbers(1), "8"),
        ] {
            assert_eq!(of(form, value), None, "{form:?} {value}");
        }
    }
}
