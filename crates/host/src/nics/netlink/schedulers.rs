//! Settings of the qdiscs that schedule transmission: `TCA_OPTIONS` of mqprio, etf, taprio and cbs.
//!
//! Input: the kind and the bytes of the attribute. Output: typed settings, or `None` for another kind, or for settings that
//! nearpath does not know. Layouts are those of include/uapi/linux/pkt_sched.h.

use super::attributes::{attributes, find, u8_of, u32_of};
use nearpath_model::{
    Cbs, Classes, Etf, Gates, MAX_GATES, Mqprio, ScheduleClock, Scheduler, Taprio,
};

/// `struct tc_mqprio_qopt`: num_tc, prio_tc_map\[16\], hw, count\[16\], offset\[16\].
const MAP_AT: usize = 1;
const HW_AT: usize = 17;
const COUNTS_AT: usize = 18;
const OFFSETS_AT: usize = 50;
/// Its size, aligned.
const MQPRIO_BYTES: usize = 84;

/// `TCA_ETF_PARMS`, and its flags.
const ETF_PARMS: u16 = 1;
const ETF_DEADLINE: u32 = 1;
const ETF_OFFLOAD: u32 = 2;
const ETF_SKIP_SOCK_CHECK: u32 = 4;

/// `TCA_CBS_PARMS`.
const CBS_PARMS: u16 = 1;

/// `TCA_TAPRIO_ATTR_*`.
const TAPRIO_PRIOMAP: u16 = 1;
const TAPRIO_ENTRIES: u16 = 2;
const TAPRIO_BASE_TIME: u16 = 3;
const TAPRIO_CLOCKID: u16 = 5;
const TAPRIO_ADMIN: u16 = 7;
const TAPRIO_CYCLE_TIME: u16 = 8;
const TAPRIO_EXTENSION: u16 = 9;
const TAPRIO_FLAGS: u16 = 10;
const TAPRIO_TXTIME_DELAY: u16 = 11;
/// `TCA_TAPRIO_SCHED_ENTRY_*`.
const ENTRY_CMD: u16 = 2;
const ENTRY_MASK: u16 = 3;
const ENTRY_INTERVAL: u16 = 4;
/// `TC_TAPRIO_CMD_SET_GATES`.
const SET_GATES: u8 = 0;

/// The settings of a qdisc of this kind.
pub(crate) fn scheduler(kind: &str, options: &[u8]) -> Option<Scheduler> {
    let its = match kind {
        "mqprio" => {
            // Attributes follow the structure.
            let extra = options.get(MQPRIO_BYTES..).unwrap_or_default();
            if has_rates(extra) {
                return None;
            }
            let offload = *options.get(HW_AT)? != 0;
            Scheduler::Mqprio(Mqprio { classes: classes(options)?, offload })
        }
        "etf" => {
            let values = find(options, ETF_PARMS)?;
            let (delta_ns, clock, flags) =
                (i32_at(values, 0)?, i32_at(values, 4)?, values.get(8..)?);
            let flags = u32_of(flags)?;
            Scheduler::Etf(Etf {
                clock: ScheduleClock::of_number(clock)?,
                delta_ns,
                deadline: flags & ETF_DEADLINE != 0,
                offload: flags & ETF_OFFLOAD != 0,
                skip_sock_check: flags & ETF_SKIP_SOCK_CHECK != 0,
            })
        }
        "taprio" => Scheduler::Taprio(taprio(options)?),
        "cbs" => {
            let values = find(options, CBS_PARMS)?;
            Scheduler::Cbs(Cbs {
                offload: *values.first()? != 0,
                hi_credit: i32_at(values, 4)?,
                lo_credit: i32_at(values, 8)?,
                idle_slope: i32_at(values, 12)?,
                send_slope: i32_at(values, 16)?,
            })
        }
        _ => return None,
    };
    its.is_valid().then_some(its)
}

/// Whether classes have rates (`TCA_MQPRIO_MIN_RATE64`, `TCA_MQPRIO_MAX_RATE64`), which nearpath does not set.
fn has_rates(extra: &[u8]) -> bool {
    attributes(extra).any(|(kind, _)| kind == 3 || kind == 4)
}

fn classes(options: &[u8]) -> Option<Classes> {
    let count = usize::from(*options.first()?);
    let map = options.get(MAP_AT..)?.first_chunk().copied()?;
    let queue = |class: usize| {
        let number = |at: usize| {
            let bytes = options.get(at + 2 * class..)?.first_chunk()?;
            Some(u16::from_ne_bytes(*bytes))
        };
        Some((number(COUNTS_AT)?, number(OFFSETS_AT)?))
    };
    let queues = (0..count.min(nearpath_model::MAX_CLASSES)).map(queue).collect::<Option<_>>()?;
    Some(Classes { map, queues })
}

fn taprio(options: &[u8]) -> Option<Taprio> {
    // A list that is not yet in effect is the one that was set last.
    let list = find(options, TAPRIO_ADMIN)
        .filter(|admin| find(admin, TAPRIO_ENTRIES).is_some())
        .unwrap_or(options);
    let i64_of = |kind| {
        find(list, kind)
            .and_then(|value| value.first_chunk())
            .map(|bytes| i64::from_ne_bytes(*bytes))
    };
    if i64_of(TAPRIO_EXTENSION).is_some_and(|extension| extension != 0) {
        return None;
    }
    let entries = find(list, TAPRIO_ENTRIES)?;
    let gates: Vec<Gates> = attributes(entries)
        .take(MAX_GATES + 1)
        .map(|(_, entry)| {
            let is_set = find(entry, ENTRY_CMD).and_then(u8_of)? == SET_GATES;
            let open = find(entry, ENTRY_MASK).and_then(u32_of)?;
            let interval_ns = find(entry, ENTRY_INTERVAL).and_then(u32_of)?;
            is_set.then_some(Gates { open, interval_ns })
        })
        .collect::<Option<_>>()?;
    let clock = find(options, TAPRIO_CLOCKID).and_then(|value| i32_at(value, 0));
    Some(Taprio {
        classes: classes(find(options, TAPRIO_PRIOMAP)?)?,
        clock: match clock {
            None | Some(-1) => None,
            Some(number) => Some(ScheduleClock::of_number(number)?),
        },
        base_time_ns: i64_of(TAPRIO_BASE_TIME).unwrap_or(0),
        cycle_ns: i64_of(TAPRIO_CYCLE_TIME)?,
        gates,
        flags: find(options, TAPRIO_FLAGS).and_then(u32_of).unwrap_or(0),
        txtime_delay_ns: find(options, TAPRIO_TXTIME_DELAY).and_then(u32_of).unwrap_or(0),
    })
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..)?.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::super::attributes::{attribute, nested};
    use super::*;

    fn qopt() -> Vec<u8> {
        let mut map = [1u8; 16];
        map[3] = 0;
        let mut bytes = vec![2u8];
        bytes.extend(map);
        bytes.push(0);
        for numbers in [[1u16, 3], [0, 1]] {
            let mut all = [0; 16];
            all[..2].copy_from_slice(&numbers);
            bytes.extend(all.iter().flat_map(|number| number.to_ne_bytes()));
        }
        assert_eq!(bytes.len(), 82);
        bytes
    }

    fn words(kind: &str, options: &[u8]) -> Option<String> {
        scheduler(kind, options).map(|its| its.words().join(" "))
    }

    const CLASSES: &str = "num_tc 2 map 1 1 1 0 1 1 1 1 1 1 1 1 1 1 1 1 queues 1@0 3@1";

    #[test]
    fn settings_are_those_of_tc() {
        assert_eq!(words("mqprio", &qopt()), Some(format!("mqprio {CLASSES} hw 0")));
        let etf: Vec<u8> = [5_000_000i32, 11, 1].iter().flat_map(|n| n.to_ne_bytes()).collect();
        assert_eq!(
            words("etf", &attribute(ETF_PARMS, &etf)).as_deref(),
            Some("etf clockid CLOCK_TAI delta 5000000 deadline_mode")
        );
        let cbs: Vec<u8> =
            [0i32, 153, -1389, 98_688, -901_312].iter().flat_map(|n| n.to_ne_bytes()).collect();
        assert_eq!(
            words("cbs", &attribute(CBS_PARMS, &cbs)).as_deref(),
            Some("cbs idleslope 98688 sendslope -901312 hicredit 153 locredit -1389 offload 0")
        );
        assert_eq!(words("fq_codel", &attribute(1, &etf)), None);
    }

    fn schedule(mask: u32) -> Vec<Vec<u8>> {
        let entry = |mask: u32, interval: u32| {
            nested(
                1,
                &[
                    attribute(1, &0u32.to_ne_bytes()),
                    attribute(ENTRY_CMD, &[SET_GATES]),
                    attribute(ENTRY_MASK, &mask.to_ne_bytes()),
                    attribute(ENTRY_INTERVAL, &interval.to_ne_bytes()),
                ],
            )
        };
        vec![
            nested(TAPRIO_ENTRIES, &[entry(mask, 300_000), entry(2, 700_000)]),
            attribute(TAPRIO_BASE_TIME, &7i64.to_ne_bytes()),
            attribute(TAPRIO_CYCLE_TIME, &1_000_000i64.to_ne_bytes()),
            attribute(TAPRIO_EXTENSION, &0i64.to_ne_bytes()),
        ]
    }

    #[test]
    fn a_gate_list_that_waits_is_the_one_that_was_set() {
        let mut all = vec![
            attribute(TAPRIO_PRIOMAP, &qopt()),
            attribute(TAPRIO_CLOCKID, &11i32.to_ne_bytes()),
        ];
        let says = |mask: &str| {
            Some(format!(
                "taprio {CLASSES} base-time 7 cycle-time 1000000 sched-entry S {mask} 300000 sched-entry S 02 \
                 700000 clockid CLOCK_TAI"
            ))
        };
        all.extend(schedule(1));
        assert_eq!(words("taprio", &all.concat()), says("01"));
        all.push(nested(TAPRIO_ADMIN, &schedule(3)));
        assert_eq!(words("taprio", &all.concat()), says("03"));
        // Without a list in effect, too.
        let waiting: Vec<Vec<u8>> = [&all[..2], &all[6..]].concat();
        assert_eq!(words("taprio", &waiting.concat()), says("03"));
    }

    #[test]
    fn truncated_settings_are_unknown() {
        let whole = qopt();
        for end in 0..whole.len() - 28 {
            assert_eq!(scheduler("mqprio", &whole[..end]), None, "{end}");
        }
        let etf = attribute(ETF_PARMS, &[0; 12]);
        for end in 0..etf.len() {
            assert_eq!(scheduler("etf", &etf[..end]), None, "{end}");
        }
    }
}
