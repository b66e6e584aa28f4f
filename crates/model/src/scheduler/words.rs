//! A scheduler as words of `tc`, and back.
//!
//! Input: untrusted text of a plan or a journal. Output: typed values; `tc` is only ever called with words made of them.

use super::{Cbs, Classes, Etf, Gates, Mqprio, ScheduleClock, Scheduler, Taprio};
use std::fmt::Display;
use std::iter::Peekable;
use std::str::{FromStr, SplitAsciiWhitespace};

type Words<'a> = Peekable<SplitAsciiWhitespace<'a>>;

impl Scheduler {
    /// The words that set it: `["etf", "clockid", "CLOCK_TAI", "delta", "5000000"]`.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![self.kind().to_owned()];
        match self {
            Self::Mqprio(its) => {
                of_classes(&mut words, &its.classes);
                pair(&mut words, "hw", u8::from(its.offload));
            }
            Self::Etf(its) => {
                pair(&mut words, "clockid", its.clock.name());
                pair(&mut words, "delta", its.delta_ns);
                flag(&mut words, "offload", its.offload);
                flag(&mut words, "deadline_mode", its.deadline);
                flag(&mut words, "skip_sock_check", its.skip_sock_check);
            }
            Self::Taprio(its) => of_taprio(&mut words, its),
            Self::Cbs(its) => {
                pair(&mut words, "idleslope", its.idle_slope);
                pair(&mut words, "sendslope", its.send_slope);
                pair(&mut words, "hicredit", its.hi_credit);
                pair(&mut words, "locredit", its.lo_credit);
                pair(&mut words, "offload", u8::from(its.offload));
            }
        }
        words
    }
}

fn pair(words: &mut Vec<String>, name: &str, value: impl Display) {
    words.extend([name.to_owned(), value.to_string()]);
}

fn flag(words: &mut Vec<String>, name: &str, is_set: bool) {
    words.extend(is_set.then(|| name.to_owned()));
}

fn of_classes(words: &mut Vec<String>, classes: &Classes) {
    pair(words, "num_tc", classes.queues.len());
    words.push("map".to_owned());
    words.extend(classes.map.iter().map(u8::to_string));
    words.push("queues".to_owned());
    words.extend(classes.queues.iter().map(|(count, first)| format!("{count}@{first}")));
}

fn of_taprio(words: &mut Vec<String>, its: &Taprio) {
    of_classes(words, &its.classes);
    pair(words, "base-time", its.base_time_ns);
    pair(words, "cycle-time", its.cycle_ns);
    for gates in &its.gates {
        words.extend(["sched-entry".to_owned(), "S".to_owned()]);
        pair(words, &format!("{:02x}", gates.open), gates.interval_ns);
    }
    if its.flags != 0 {
        pair(words, "flags", format!("{:#x}", its.flags));
    }
    if its.txtime_delay_ns != 0 {
        pair(words, "txtime-delay", its.txtime_delay_ns);
    }
    if let Some(clock) = its.clock {
        pair(words, "clockid", clock.name());
    }
}

impl FromStr for Scheduler {
    type Err = ();

    /// Parses the words in the order of [`Scheduler::words`]; there is one text of each.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split_ascii_whitespace().peekable();
        let its = match words.next() {
            Some("mqprio") => {
                let classes = classes(&mut words)?;
                Self::Mqprio(Mqprio { classes, offload: bit(&mut words, "hw")? })
            }
            Some("etf") => etf(&mut words)?,
            Some("taprio") => taprio(&mut words)?,
            Some("cbs") => Self::Cbs(Cbs {
                idle_slope: value(&mut words, "idleslope")?,
                send_slope: value(&mut words, "sendslope")?,
                hi_credit: value(&mut words, "hicredit")?,
                lo_credit: value(&mut words, "locredit")?,
                offload: bit(&mut words, "offload")?,
            }),
            _ => return Err(()),
        };
        if words.next().is_none() && its.is_valid() && its.words().join(" ") == text {
            Ok(its)
        } else {
            Err(())
        }
    }
}

fn etf(words: &mut Words<'_>) -> Result<Scheduler, ()> {
    Ok(Scheduler::Etf(Etf {
        clock: value::<String>(words, "clockid").and_then(|name| clock(&name))?,
        delta_ns: value(words, "delta")?,
        offload: has(words, "offload"),
        deadline: has(words, "deadline_mode"),
        skip_sock_check: has(words, "skip_sock_check"),
    }))
}

fn taprio(words: &mut Words<'_>) -> Result<Scheduler, ()> {
    let classes = classes(words)?;
    let (base_time_ns, cycle_ns) = (value(words, "base-time")?, value(words, "cycle-time")?);
    let mut gates = Vec::new();
    while has(words, "sched-entry") {
        if gates.len() == super::MAX_GATES || words.next() != Some("S") {
            return Err(());
        }
        let open = u32::from_str_radix(words.next().ok_or(())?, 16).map_err(drop)?;
        gates.push(Gates { open, interval_ns: number(words.next())? });
    }
    let flags = match has(words, "flags") {
        true => {
            let text = words.next().and_then(|word| word.strip_prefix("0x")).ok_or(())?;
            u32::from_str_radix(text, 16).map_err(drop)?
        }
        false => 0,
    };
    let txtime_delay_ns = if has(words, "txtime-delay") { number(words.next())? } else { 0 };
    let clock = match has(words, "clockid") {
        true => Some(clock(words.next().ok_or(())?)?),
        false => None,
    };
    Ok(Scheduler::Taprio(Taprio {
        classes,
        clock,
        base_time_ns,
        cycle_ns,
        gates,
        flags,
        txtime_delay_ns,
    }))
}

fn classes(words: &mut Words<'_>) -> Result<Classes, ()> {
    let count: usize = value(words, "num_tc")?;
    if count > super::MAX_CLASSES || !has(words, "map") {
        return Err(());
    }
    let mut map = [0; super::PRIORITIES];
    for class in &mut map {
        *class = number(words.next())?;
    }
    if !has(words, "queues") {
        return Err(());
    }
    let queues = |word: Option<&str>| {
        let (count, first) = word.and_then(|word| word.split_once('@')).ok_or(())?;
        Ok((number(Some(count))?, number(Some(first))?))
    };
    let queues = (0..count).map(|_| queues(words.next())).collect::<Result<_, ()>>()?;
    Ok(Classes { map, queues })
}

fn clock(name: &str) -> Result<ScheduleClock, ()> {
    ScheduleClock::ALL.into_iter().find(|clock| clock.name() == name).ok_or(())
}

/// The value after this word.
fn value<T: FromStr>(words: &mut Words<'_>, name: &str) -> Result<T, ()> {
    if has(words, name) { number(words.next()) } else { Err(()) }
}

fn bit(words: &mut Words<'_>, name: &str) -> Result<bool, ()> {
    match value::<u8>(words, name)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(()),
    }
}

/// Whether this word is next; it is consumed then.
fn has(words: &mut Words<'_>, name: &str) -> bool {
    words.next_if_eq(&name).is_some()
}

fn number<T: FromStr>(word: Option<&str>) -> Result<T, ()> {
    word.ok_or(())?.parse().map_err(drop)
}
