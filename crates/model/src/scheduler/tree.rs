//! The qdiscs of an interface as one text: the kernel's own, or a tree of schedulers.
//!
//! Input: the qdiscs as read from the kernel, or the text of a plan or journal. Output: what can be set and restored
//! exactly. Any other qdisc, for instance one that an administrator has set, makes a text that is none of these.

use super::Scheduler;
use crate::Qdisc;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// The qdiscs of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QdiscTree {
    /// Those that the kernel gives it: the kind of the root, and those below it.
    Default {
        /// `mq`, `noqueue`; `none` for an interface that was never up.
        root: String,
        /// `fq_codel`.
        below: BTreeSet<String>,
    },
    /// A scheduler, and others on its classes.
    Scheduled {
        /// Its major number, 1 to 0x7fff: above, the kernel chooses.
        major: u16,
        /// The root.
        root: Scheduler,
        /// By the minor number of the class: that of a transmit queue is its number plus one.
        classes: BTreeMap<u16, Scheduler>,
    },
}

/// The handle of the kernel's own qdiscs.
const OWN: &str = "0:0";
/// Handles from this on are chosen by the kernel.
const CHOSEN: u16 = 0x8000;

impl QdiscTree {
    /// That of an interface; the text of what it has if it is none.
    ///
    /// # Errors
    /// It has another qdisc, which could not be restored.
    pub fn of(qdiscs: &[Qdisc]) -> Result<Self, String> {
        let sends = |qdisc: &&Qdisc| !matches!(qdisc.kind.as_str(), "ingress" | "clsact");
        let all: Vec<&Qdisc> = qdiscs.iter().filter(sends).collect();
        let Some(root) = all.iter().find(|qdisc| qdisc.parent == "root") else {
            return Ok(Self::Default { root: "none".to_owned(), below: BTreeSet::new() });
        };
        let below = || all.iter().filter(|qdisc| qdisc.parent != "root");
        let other = |qdisc: &Qdisc| format!("{} {} at {}", qdisc.kind, qdisc.handle, qdisc.parent);
        if root.handle == OWN {
            if let Some(found) = below().find(|qdisc| qdisc.handle != OWN) {
                return Err(other(found));
            }
            let below = below().map(|qdisc| qdisc.kind.clone()).collect();
            let tree = Self::Default { root: root.kind.clone(), below };
            // A kind with a name that is no word would be no text of a plan.
            return if tree.to_string().parse() == Ok(tree.clone()) {
                Ok(tree)
            } else {
                Err(other(root))
            };
        }
        let Some((major, scheduler)) = number(&root.handle, 0).zip(root.scheduler.clone()) else {
            return Err(other(root));
        };
        let mut classes = BTreeMap::new();
        for qdisc in below().filter(|qdisc| qdisc.handle != OWN) {
            let place = qdisc.parent.strip_prefix(&format!("{major:x}:"));
            let minor = place.and_then(|minor| u16::from_str_radix(minor, 16).ok());
            let Some((minor, its)) = minor.zip(qdisc.scheduler.clone()) else {
                return Err(other(qdisc));
            };
            classes.insert(minor, its);
        }
        Ok(Self::Scheduled { major, root: scheduler, classes })
    }
}

impl QdiscTree {
    /// The invocations of `tc` that set it on an interface, in order; `is_set` says whether there is a tree to remove first.
    pub fn commands(&self, nic: &str, is_set: bool) -> Vec<Vec<String>> {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let mut all = Vec::new();
        if is_set {
            all.push([words("qdisc del dev"), vec![nic.to_owned()], words("root")].concat());
        }
        let Self::Scheduled { major, root, classes } = self else { return all };
        let replace = || [words("qdisc replace dev"), vec![nic.to_owned()]].concat();
        all.push([replace(), words(&format!("root handle {major:x}:")), root.words()].concat());
        for (minor, its) in classes {
            let parent = words(&format!("parent {major:x}:{minor:x}"));
            all.push([replace(), parent, its.words()].concat());
        }
        all
    }

    /// Whether it is a step on the way to another: the same root, and some of its classes.
    pub fn is_part_of(&self, whole: &Self) -> bool {
        match (self, whole) {
            (
                Self::Scheduled { major, root, classes },
                Self::Scheduled { major: to, root: whole, classes: all },
            ) => {
                (major, root) == (to, whole)
                    && classes.iter().all(|(minor, its)| all.get(minor) == Some(its))
            }
            _ => false,
        }
    }
}

/// The major number of a handle with this minor one.
fn number(handle: &str, minor: u16) -> Option<u16> {
    let (major, rest) = handle.split_once(':')?;
    let major = u16::from_str_radix(major, 16).ok()?;
    let is_minor = rest.is_empty() && minor == 0 || u16::from_str_radix(rest, 16) == Ok(minor);
    (is_minor && (1..CHOSEN).contains(&major)).then_some(major)
}

impl fmt::Display for QdiscTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default { root, below } => {
                write!(f, "default {root}")?;
                below.iter().try_for_each(|kind| write!(f, " {kind}"))
            }
            Self::Scheduled { major, root, classes } => {
                write!(f, "root {major:x}: {}", root.words().join(" "))?;
                classes.iter().try_for_each(|(minor, its)| {
                    write!(f, "; {major:x}:{minor:x} {}", its.words().join(" "))
                })
            }
        }
    }
}

impl FromStr for QdiscTree {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let tree = if let Some(kinds) = text.strip_prefix("default ") {
            // IFNAMSIZ is the most that a kind's name has.
            let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
            let is_kind = |kind: &str| (1..16).contains(&kind.len()) && kind.bytes().all(plain);
            let mut kinds = kinds.split(' ');
            let root = kinds.next().filter(|kind| is_kind(kind)).ok_or(())?.to_owned();
            let below: BTreeSet<String> = kinds.map(str::to_owned).collect();
            below.iter().all(|kind| is_kind(kind)).then_some(()).ok_or(())?;
            Self::Default { root, below }
        } else {
            let mut parts = text.strip_prefix("root ").ok_or(())?.split("; ");
            let (handle, root) = parts.next().and_then(|part| part.split_once(' ')).ok_or(())?;
            let major = number(handle, 0).ok_or(())?;
            let root: Scheduler = root.parse()?;
            let mut classes = BTreeMap::new();
            for part in parts {
                let (class, its) = part.split_once(' ').ok_or(())?;
                let minor = class.split_once(':').ok_or(())?.1;
                classes.insert(u16::from_str_radix(minor, 16).map_err(drop)?, its.parse()?);
            }
            if !classes.is_empty() && root.classes().is_none() {
                return Err(());
            }
            Self::Scheduled { major, root, classes }
        };
        // One text of each.
        if tree.to_string() == text { Ok(tree) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MQPRIO: &str = "mqprio num_tc 2 map 1 1 1 0 1 1 1 1 1 1 1 1 1 1 1 1 queues 1@0 3@1 hw 0";

    fn qdisc(kind: &str, handle: &str, parent: &str, scheduler: Option<&str>) -> Qdisc {
        Qdisc {
            kind: kind.to_owned(),
            handle: handle.to_owned(),
            parent: parent.to_owned(),
            drops: None,
            overlimits: None,
            backlog_packets: None,
            scheduler: scheduler.map(|text| text.parse().unwrap()),
        }
    }

    #[test]
    fn texts_round_trip() {
        for text in [
            "default none",
            "default noqueue",
            "default mq fq_codel pfifo_fast",
            &format!("root 100: {MQPRIO}"),
            &format!("root 1: {MQPRIO}; 1:1 etf clockid CLOCK_TAI delta 5000000"),
            &format!(
                "root 7fff: {MQPRIO}; 7fff:1 etf clockid CLOCK_TAI delta 1 offload deadline_mode skip_sock_check; \
                      7fff:a cbs idleslope 98688 sendslope -901312 hicredit 153 locredit -1389 offload 1"
            ),
            "root 100: taprio num_tc 2 map 1 1 1 0 1 1 1 1 1 1 1 1 1 1 1 1 queues 1@0 3@1 base-time 0 cycle-time 1000000 \
             sched-entry S 01 300000 sched-entry S 02 700000 clockid CLOCK_TAI",
            "root 100: taprio num_tc 1 map 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 1@0 base-time -7 cycle-time 300000 \
             sched-entry S 01 300000 flags 0x1 txtime-delay 200000 clockid CLOCK_TAI",
        ] {
            assert_eq!(text.parse::<QdiscTree>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_tree_is_set_from_its_root() {
        let etf = "etf clockid CLOCK_TAI delta 5000000";
        let tree: QdiscTree = format!("root 100: {MQPRIO}; 100:a {etf}").parse().unwrap();
        let commands: Vec<String> =
            tree.commands("nic0", true).iter().map(|all| all.join(" ")).collect();
        assert_eq!(
            commands,
            [
                "qdisc del dev nic0 root".to_owned(),
                format!("qdisc replace dev nic0 root handle 100: {MQPRIO}"),
                format!("qdisc replace dev nic0 parent 100:a {etf}"),
            ]
        );
        let own: QdiscTree = "default mq fq_codel".parse().unwrap();
        assert_eq!((own.commands("nic0", true).len(), own.commands("nic0", false).len()), (1, 0));
        let root: QdiscTree = format!("root 100: {MQPRIO}").parse().unwrap();
        assert!(root.is_part_of(&tree) && !tree.is_part_of(&root) && !own.is_part_of(&tree));
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "",
            "default",
            "default  mq",
            "default mq;reboot",
            "default mq fq_codel fq_codel",
            "root 100: fq_codel",
            "root 0: etf clockid CLOCK_TAI delta 5",
            "root 8000: etf clockid CLOCK_TAI delta 5",
            "root 100: etf clockid CLOCK_TAI delta -5",
            "root 100: etf clockid CLOCK_TAI delta 05",
            "root 100: etf delta 5",
            "root 100: etf clockid CLOCK_TAI delta 5; 100:1 etf clockid CLOCK_TAI delta 5",
            "root 100: mqprio num_tc 99999999 map",
            "root 100: mqprio num_tc 1 map 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 1@0 hw 0",
            "root 100: mqprio num_tc 1 map 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 0@0 hw 0",
            "root 100: mqprio num_tc 1 map 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 2@65535 hw 0",
            "root 100: mqprio num_tc 1 map 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 1@0 hw 2",
            &format!("root 100: {MQPRIO}; 200:1 etf clockid CLOCK_TAI delta 5"),
            &format!(
                "root 100: {MQPRIO}; 100:1 etf clockid CLOCK_TAI delta 5; 100:1 etf clockid CLOCK_TAI delta 5"
            ),
        ] {
            assert!(text.parse::<QdiscTree>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_kernels_own_are_recognised_by_their_handles() {
        let of = |all: &[Qdisc]| QdiscTree::of(all).map(|tree| tree.to_string());
        let own = [
            qdisc("mq", OWN, "root", None),
            qdisc("fq_codel", OWN, "0:1", None),
            qdisc("fq_codel", OWN, "0:2", None),
            qdisc("clsact", "ffff:0", "ingress", None),
        ];
        assert_eq!(of(&own), Ok("default mq fq_codel".to_owned()));
        assert_eq!(of(&[]), Ok("default none".to_owned()));
        let set = [qdisc("mq", OWN, "root", None), qdisc("fq", "8001:0", "0:1", None)];
        assert_eq!(of(&set), Err("fq 8001:0 at 0:1".to_owned()));
        assert!(of(&[qdisc("fq_codel", "8001:0", "root", None)]).is_err());
    }

    #[test]
    fn trees_of_schedulers_are_read() {
        let etf = "etf clockid CLOCK_TAI delta 5000000";
        let all = [
            qdisc("mqprio", "100:0", "root", Some(MQPRIO)),
            qdisc("etf", "8002:0", "100:1", Some(etf)),
            qdisc("fq_codel", OWN, "100:2", None),
        ];
        let tree = QdiscTree::of(&all).unwrap();
        assert_eq!(tree.to_string(), format!("root 100: {MQPRIO}; 100:1 {etf}"));
        // Neither one whose handle the kernel chose, nor one with another qdisc below it.
        assert!(QdiscTree::of(&[qdisc("mqprio", "8001:0", "root", Some(MQPRIO))]).is_err());
        let mut other = all.clone();
        other[2] = qdisc("netem", "8003:0", "100:2", None);
        assert_eq!(QdiscTree::of(&other), Err("netem 8003:0 at 100:2".to_owned()));
    }
}
