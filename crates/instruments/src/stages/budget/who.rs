//! Display names of tasks, interrupts and softirqs.

use super::super::record::{Task, VECTOR, Waker};
use nearpath_model::Culprit;

/// Names of the softirqs (`softirq_to_name` in `kernel/softirq.c`).
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];
/// Names of the scheduling policies (`include/uapi/linux/sched.h`).
const POLICIES: [&str; 8] = [
    "SCHED_OTHER",
    "SCHED_FIFO",
    "SCHED_RR",
    "SCHED_BATCH",
    "",
    "SCHED_IDLE",
    "SCHED_DEADLINE",
    "SCHED_EXT",
];

pub(super) fn interrupt(irq: u32) -> Culprit {
    if irq & VECTOR == 0 {
        return Culprit { irq: Some(irq), ..Culprit::default() };
    }
    // Linux on x86 (arch/x86/include/asm/irq_vectors.h).
    let vector = match irq & !VECTOR {
        0xec => "local_timer".to_owned(),
        0xfb => "call_function_single".to_owned(),
        other => format!("vector {other:#x}"),
    };
    Culprit { vector: Some(vector), ..Culprit::default() }
}

pub(super) fn softirq(vector: u32) -> Culprit {
    let name = usize::try_from(vector).ok().and_then(|v| SOFTIRQS.get(v));
    Culprit {
        vector: Some(name.map_or_else(|| vector.to_string(), |&n| n.to_owned())),
        ..Culprit::default()
    }
}

pub(super) fn task(task: &Task) -> Culprit {
    let prio = i32::from(task.prio);
    let policy = POLICIES.get(usize::from(task.policy)).filter(|name| !name.is_empty());
    Culprit {
        policy: policy.map(|&name| name.to_owned()),
        // include/linux/sched/prio.h: 0 to 99 are real-time, displayed as 99 - prio; then nice.
        // The priority of a deadline task has no meaning.
        prio: (prio < 140).then_some(if prio < 100 { 99 - prio } else { prio - 120 }),
        ..named(task)
    }
}

/// What woke a task.
pub(super) fn waker(waker: &Waker) -> Culprit {
    match waker {
        Waker::Task(pid, comm) => {
            Culprit { comm: Some(comm.clone()), pid: Some(*pid), ..Culprit::default() }
        }
        Waker::Softirq(vector) => softirq(*vector),
        Waker::Irq(irq) => interrupt(*irq),
    }
}

/// A task of which only name and thread id are known.
pub(super) fn named(task: &Task) -> Culprit {
    Culprit { comm: Some(task.comm.clone()), pid: Some(task.pid), ..Culprit::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_displayed_by_their_user_visible_numbers() {
        let hog = Task { pid: 9, comm: "hog".to_owned(), ..Task::default() };
        let fifo = task(&Task { prio: 49, policy: 1, ..hog.clone() });
        assert_eq!((fifo.policy.as_deref(), fifo.prio), (Some("SCHED_FIFO"), Some(50)));
        assert_eq!(task(&Task { prio: 139, ..hog.clone() }).prio, Some(19));
        let deadline = task(&Task { prio: u16::MAX, policy: 6, ..hog });
        assert_eq!((deadline.policy.as_deref(), deadline.prio), (Some("SCHED_DEADLINE"), None));
    }
}
