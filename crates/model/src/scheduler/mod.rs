//! Queueing disciplines that schedule transmission, and the tree of them that an interface has, as plain data.
//!
//! The text is that of `tc`: `root 100: mqprio num_tc 2 map 1 1 1 0 … queues 1@0 3@1 hw 0; 100:1 etf clockid CLOCK_TAI
//! delta 5000000`. Without any, an interface has the kernel's own: `default mq fq_codel`.
//!
//! Rules: include/uapi/linux/pkt_sched.h, tc-mqprio(8), tc-etf(8), tc-taprio(8), tc-cbs(8).

mod tree;
mod words;

pub use tree::QdiscTree;

use serde::{Deserialize, Serialize};

/// Priorities of the kernel's map to traffic classes (`TC_QOPT_BITMASK` + 1).
pub const PRIORITIES: usize = 16;
/// Most traffic classes (`TC_QOPT_MAX_QUEUE`).
pub const MAX_CLASSES: usize = 16;
/// Most entries of a gate list that nearpath reads and sets.
pub const MAX_GATES: usize = 64;

/// A qdisc that schedules transmission, with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// Traffic classes with transmit queues of their own.
    Mqprio(Mqprio),
    /// Each packet at its own time (SO_TXTIME).
    Etf(Etf),
    /// Traffic classes by a cyclic list of gates (IEEE 802.1Qbv).
    Taprio(Taprio),
    /// A rate for a traffic class (IEEE 802.1Qav).
    Cbs(Cbs),
}

/// The clock of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleClock {
    /// The wall clock.
    Realtime,
    /// Since boot, without suspends.
    Monotonic,
    /// Since boot.
    Boottime,
    /// International atomic time: the wall clock without leap seconds.
    Tai,
}

/// Traffic classes: of each priority, and their transmit queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// The class of each priority (SO_PRIORITY, `skb->priority`); higher ones have that of 0.
    pub map: [u8; PRIORITIES],
    /// The queues of each class: how many, from which on.
    pub queues: Vec<(u16, u16)>,
}

/// `mqprio`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mqprio {
    /// Its classes.
    pub classes: Classes,
    /// Whether the NIC knows them.
    pub offload: bool,
}

/// `etf`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Etf {
    /// Its clock; the kernel accepts CLOCK_TAI only.
    pub clock: ScheduleClock,
    /// How long before its time a packet is taken from the queue, in nanoseconds.
    pub delta_ns: i32,
    /// Whether the time is a deadline, and packets leave at once.
    pub deadline: bool,
    /// Whether the NIC sends at the time.
    pub offload: bool,
    /// Whether packets whose socket has not requested it are accepted.
    pub skip_sock_check: bool,
}

/// `taprio`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taprio {
    /// Its classes.
    pub classes: Classes,
    /// Its clock; `None` if the NIC does it, by its own.
    pub clock: Option<ScheduleClock>,
    /// When the first cycle begins, in nanoseconds of the clock.
    pub base_time_ns: i64,
    /// Length of a cycle, in nanoseconds.
    pub cycle_ns: i64,
    /// The gates, in order.
    pub gates: Vec<Gates>,
    /// `TCA_TAPRIO_ATTR_FLAG_*`: 1 with the help of ETF, [`Taprio::FULL_OFFLOAD`].
    pub flags: u32,
    /// With flag 1: how long before its time a packet is given to the NIC, in nanoseconds.
    pub txtime_delay_ns: u32,
}

/// Gates that are open for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gates {
    /// A bit for each class whose gate is open.
    pub open: u32,
    /// For how long, in nanoseconds.
    pub interval_ns: u32,
}

/// `cbs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cbs {
    /// Rate at which credits accumulate, in kbit/s.
    pub idle_slope: i32,
    /// Rate at which they are spent, in kbit/s: the idle slope minus the link's speed.
    pub send_slope: i32,
    /// Most credits, in bytes.
    pub hi_credit: i32,
    /// Least credits, in bytes.
    pub lo_credit: i32,
    /// Whether the NIC does it.
    pub offload: bool,
}

impl ScheduleClock {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Realtime, Self::Monotonic, Self::Boottime, Self::Tai];

    /// Its number (include/uapi/linux/time.h).
    pub fn number(self) -> i32 {
        match self {
            Self::Realtime => 0,
            Self::Monotonic => 1,
            Self::Boottime => 7,
            Self::Tai => 11,
        }
    }

    /// Its name for `tc`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Realtime => "CLOCK_REALTIME",
            Self::Monotonic => "CLOCK_MONOTONIC",
            Self::Boottime => "CLOCK_BOOTTIME",
            Self::Tai => "CLOCK_TAI",
        }
    }

    /// That of a number.
    pub fn of_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|clock| clock.number() == number)
    }
}

impl Scheduler {
    /// Its name: `etf`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mqprio(_) => "mqprio",
            Self::Etf(_) => "etf",
            Self::Taprio(_) => "taprio",
            Self::Cbs(_) => "cbs",
        }
    }

    /// Its traffic classes, if it makes them.
    pub fn classes(&self) -> Option<&Classes> {
        match self {
            Self::Mqprio(its) => Some(&its.classes),
            Self::Taprio(its) => Some(&its.classes),
            Self::Etf(_) | Self::Cbs(_) => None,
        }
    }

    /// Whether the NIC does it.
    pub fn is_offloaded(&self) -> bool {
        match self {
            Self::Mqprio(its) => its.offload,
            Self::Etf(its) => its.offload,
            Self::Taprio(its) => its.flags & Taprio::FULL_OFFLOAD != 0,
            Self::Cbs(its) => its.offload,
        }
    }

    /// Whether it is one that can be: bounds that the kernel has, too.
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Mqprio(its) => its.classes.is_valid(),
            Self::Etf(its) => its.delta_ns >= 0,
            Self::Taprio(its) => {
                its.classes.is_valid()
                    && (1..=MAX_GATES).contains(&its.gates.len())
                    && its.gates.iter().all(|gates| gates.interval_ns > 0)
                    && its.cycle_ns > 0
            }
            Self::Cbs(_) => true,
        }
    }
}

impl Classes {
    /// The class of a priority (`netdev_get_prio_tc_map`).
    pub fn of_priority(&self, priority: u32) -> u8 {
        let at = usize::try_from(priority).unwrap_or(usize::MAX) & (PRIORITIES - 1);
        self.map.get(at).copied().unwrap_or(0)
    }

    fn is_valid(&self) -> bool {
        let classes = self.queues.len();
        (1..=MAX_CLASSES).contains(&classes)
            && self.map.iter().all(|&class| usize::from(class) < classes)
            && self
                .queues
                .iter()
                .all(|&(count, first)| count > 0 && first.checked_add(count).is_some())
    }
}

impl Taprio {
    /// The flag `TCA_TAPRIO_ATTR_FLAG_FULL_OFFLOAD`: the NIC does it.
    pub const FULL_OFFLOAD: u32 = 2;

    /// How long the gate of a class is open in a cycle, in nanoseconds.
    pub fn open_ns(&self, class: u8) -> u64 {
        self.gates
            .iter()
            .filter(|gates| gates.is_open(class))
            .map(|g| u64::from(g.interval_ns))
            .sum()
    }

    /// Whether the gate of a class is open at a time of its clock.
    pub fn is_open_at(&self, class: u8, time_ns: i64) -> bool {
        let mut into = (time_ns - self.base_time_ns).rem_euclid(self.cycle_ns.max(1));
        for gates in &self.gates {
            if into < i64::from(gates.interval_ns) {
                return gates.is_open(class);
            }
            into -= i64::from(gates.interval_ns);
        }
        // A cycle that is longer than its list stays at the last entry.
        self.gates.last().is_some_and(|gates| gates.is_open(class))
    }
}

impl Gates {
    fn is_open(self, class: u8) -> bool {
        1u32.checked_shl(u32::from(class)).is_some_and(|bit| self.open & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_cyclic() {
        let gates = |open, interval_ns| Gates { open, interval_ns };
        let taprio = Taprio {
            classes: Classes { map: [1; 16], queues: vec![(1, 0), (3, 1)] },
            clock: Some(ScheduleClock::Tai),
            base_time_ns: 100,
            cycle_ns: 1_000,
            gates: vec![gates(1, 300), gates(2, 700)],
            flags: 0,
            txtime_delay_ns: 0,
        };
        let open = |class, at| taprio.is_open_at(class, at);
        assert_eq!(
            [open(0, 100), open(0, 399), open(0, 400), open(0, 1_100)],
            [true, true, false, true]
        );
        assert_eq!([open(1, 99), open(1, 100), open(1, -900)], [true, false, false]);
        assert_eq!((taprio.open_ns(0), taprio.open_ns(1), taprio.open_ns(40)), (300, 700, 0));
    }

    #[test]
    fn priorities_above_fifteen_wrap_as_in_the_kernel() {
        let mut map = [1; 16];
        map[3] = 0;
        let classes = Classes { map, queues: vec![(1, 0), (3, 1)] };
        assert_eq!(
            [classes.of_priority(3), classes.of_priority(4), classes.of_priority(19)],
            [0, 1, 0]
        );
    }
}
