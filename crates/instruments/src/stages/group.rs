//! Packets by group (`bpf/group.h`): in go the programs' groups, the samples of each and those of
//! the whole, out come the groups asked for, and one of all others, so that the sums agree.

use super::record::{comm, flow};
use super::samples::Samples;
use super::table::stage;
use crate::layout::Layout;
use crate::{Group, Per};
use libbpf_rs::{MapCore, MapFlags};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Groups, and spans of groups, that are kept apart (`GROUPS_MAX`, `CELLS_MAX`).
pub const GROUPS_MAX: u32 = 512;
/// Likewise.
pub const CELLS_MAX: u32 = 8192;

/// Where the fields of a `struct group` begin, by kind.
const NAME: usize = 8;
const CGROUP_LEVELS: usize = 8;
const CGROUP_NAME: usize = 64;
/// The group of what no process took or sent.
const NO_PROCESS: u64 = 1 << 54;
/// What stands between a queue and its namespace.
const NETNS: &str = " netns ";
/// The name of what is not shown by itself.
pub(crate) const OTHERS: &str = "others";

/// How the result is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// By what.
    pub per: Per,
    /// How many groups are shown.
    pub top: usize,
    /// Which.
    pub sort: Sort,
}

/// Which groups are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// Those with most packets.
    #[default]
    Packets,
    /// Those with the highest 99th percentile of a span, or maximum where samples are few.
    P99,
}

impl Per {
    /// Its number in the programs (`enum per`).
    pub fn number(self) -> u32 {
        match self {
            Self::Cpu => 1,
            Self::Node => 2,
            Self::Queue => 3,
            Self::Flow => 4,
            Self::Process => 5,
            Self::Cgroup => 6,
        }
    }

    /// Whether groups are known only when a path ends, so that it must be kept.
    pub fn is_known_late(self) -> bool {
        matches!(self, Self::Process | Self::Cgroup)
    }
}

/// A group, or several, by numbers of spans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    name: String,
    packets: u64,
    samples: BTreeMap<usize, Samples>,
}

/// The groups as the programs have them now. Read before the whole, which then has at least as many.
pub fn read(groups: &dyn MapCore, cells: &dyn MapCore, per: Per) -> Vec<Part> {
    let value = |map: &dyn MapCore, key: &[u8]| map.lookup(key, MapFlags::ANY).ok().flatten();
    let number = |key: &[u8]| key.try_into().ok().map(u64::from_ne_bytes);
    let mut parts: HashMap<u64, Part> = HashMap::new();
    for key in groups.keys() {
        let (Some(id), Some(value)) = (number(&key), value(groups, &key)) else { continue };
        let name = name(per, id, &value);
        parts.insert(id, Part { name, packets: word(&value, 0), ..Part::default() });
    }
    for key in cells.keys() {
        let (Some(id), Some(value)) = (number(&key), value(cells, &key)) else { continue };
        if let (Some(part), Ok(span)) = (parts.get_mut(&(id >> 8)), usize::try_from(id & 0xff)) {
            part.samples.entry(span).or_default().add_words(|index| word(&value, 8 * index));
        }
    }
    let mut parts: Vec<Part> = parts.into_values().collect();
    parts.sort_by(|a, b| a.name.cmp(&b.name));
    parts
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_ne_bytes).unwrap_or_default()
}

/// What people call a group.
pub(crate) fn name(per: Per, id: u64, value: &[u8]) -> String {
    let half = |at: usize| u32::try_from(word(value, NAME + at) & 0xffff_ffff).unwrap_or_default();
    let name = value.get(NAME..).unwrap_or_default();
    match per {
        _ if id == NO_PROCESS => "no process".to_owned(),
        Per::Cpu => format!("cpu {}", id.saturating_sub(1)),
        Per::Node if id > u64::from(u32::MAX) => "node unknown".to_owned(),
        Per::Node => format!("node {}", id.saturating_sub(1)),
        Per::Queue => {
            let device = comm(name.get(16..32).unwrap_or_default());
            let direction = if half(8) == 0 { "rx" } else { "tx" };
            let queue = half(12).checked_sub(1);
            let queue = queue.map_or_else(|| "unknown".to_owned(), |queue| queue.to_string());
            format!("{device} {direction}-{queue}{NETNS}{}", half(0))
        }
        Per::Flow => flow(name.get(..40).unwrap_or_default()).unwrap_or_default(),
        Per::Process => format!("{}/{}", comm(name.get(8..24).unwrap_or_default()), half(0)),
        Per::Cgroup => cgroup(name),
    }
}

/// The path from its names, the leaf first; the root of a hierarchy has none.
fn cgroup(names: &[u8]) -> String {
    let names: Vec<String> =
        names.chunks_exact(CGROUP_NAME).take(CGROUP_LEVELS).map(comm).collect();
    let deep = names.iter().all(|name| !name.is_empty());
    let path: Vec<&str> =
        names.iter().rev().map(String::as_str).filter(|name| !name.is_empty()).collect();
    format!("{}/{}", if deep { "…" } else { "" }, path.join("/"))
}

/// A span of the whole: its stages, its number, its samples.
pub type SpanOfWhole = ((usize, usize), usize, Samples);

/// The groups to show, and the others as one: what these leave of the whole.
pub fn shown(
    parts: Vec<Part>,
    grouping: Grouping,
    (packets, spans): (u64, &[SpanOfWhole]),
    layout: &Layout,
) -> Vec<Group> {
    let group = |part: &Part| {
        let span = |(pair, number, _): &SpanOfWhole| {
            part.samples.get(number)?.span((stage(pair.0)?, stage(pair.1)?), layout, Vec::new())
        };
        Group {
            per: grouping.per,
            name: part.name.clone(),
            packets: part.packets,
            spans: spans.iter().filter_map(span).collect(),
        }
    };
    let tail = |part: &Part| group(part).worst().map(|span| (span.p99_ns, span.max_ns));
    let mut parts = merged(parts);
    match grouping.sort {
        Sort::Packets => parts.sort_by_key(|part| Reverse(part.packets)),
        Sort::P99 => parts.sort_by_cached_key(|part| Reverse(tail(part))),
    }
    let rest = parts.split_off(grouping.top.min(parts.len()));
    let others = others(&parts, &rest, packets, spans);
    let mut groups: Vec<Group> = parts.iter().map(group).collect();
    if others.packets > 0 || others.samples.values().any(|samples| samples.count() > 0) {
        groups.push(group(&others));
    }
    groups
}

/// The short name of each group where it tells groups apart, else its whole name.
pub(crate) fn short_names(names: &[&str]) -> Vec<String> {
    let short = |name: &str| name.split(NETNS).next().unwrap_or_default().to_owned();
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *uses.entry(short(name)).or_default() += 1;
    }
    let told = |name: &&str| match short(name) {
        short if uses.get(&short) == Some(&1) => short,
        _ => (*name).to_owned(),
    };
    names.iter().map(told).collect()
}

/// Under short names where they tell groups apart; parts of one name are one.
fn merged(parts: Vec<Part>) -> Vec<Part> {
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    let names = short_names(&names);
    let mut merged: BTreeMap<String, Part> = BTreeMap::new();
    for (part, name) in parts.into_iter().zip(names) {
        let into = merged.entry(name.clone()).or_insert(Part { name, ..Part::default() });
        into.packets += part.packets;
        for (span, samples) in part.samples {
            into.samples.entry(span).or_default().add(&samples);
        }
    }
    merged.into_values().collect()
}

/// What the shown groups leave of the whole. Of the groups that make up the rest extremes are
/// known; not so of packets whose group is unknown, such as those that are still under way.
fn others(shown: &[Part], rest: &[Part], packets: u64, spans: &[SpanOfWhole]) -> Part {
    let sum = shown.iter().map(|part| part.packets).sum();
    let mut others = Part { name: OTHERS.to_owned(), ..Part::default() };
    others.packets = packets.saturating_sub(sum);
    for (_, number, samples) in spans {
        let mut known = Samples::default();
        rest.iter().filter_map(|part| part.samples.get(number)).for_each(|more| known.add(more));
        let mut left = samples.clone();
        shown.iter().filter_map(|part| part.samples.get(number)).for_each(|p| left.subtract(p));
        let left = if known.count() == left.count() { known } else { left };
        others.samples.insert(*number, left);
    }
    others
}

#[cfg(test)]
mod tests {
    use super::super::samples::tests::counted;
    use super::*;
    use nearpath_host::Topology;
    use proptest::prelude::*;

    const SPAN: (usize, usize) = (1, 2);

    fn part(name: &str, packets: u64, latencies: &[u64]) -> Part {
        Part { name: name.to_owned(), packets, samples: BTreeMap::from([(1, counted(latencies))]) }
    }

    fn top(top: usize, sort: Sort) -> Grouping {
        Grouping { per: Per::Queue, top, sort }
    }

    fn groups(parts: Vec<Part>, grouping: Grouping, packets: u64, whole: &[u64]) -> Vec<Group> {
        let layout = Layout::new(&Topology::default());
        shown(parts, grouping, (packets, &[(SPAN, 1, counted(whole))]), &layout)
    }

    fn names(groups: &[Group]) -> Vec<&str> {
        groups.iter().map(|group| group.name.as_str()).collect()
    }

    #[test]
    fn those_with_most_packets_or_the_worst_tail_are_shown() {
        let parts = || vec![part("a", 3, &[1]), part("b", 5, &[2, 2]), part("c", 1, &[9])];
        let whole = [1, 2, 2, 9];
        let most = groups(parts(), top(2, Sort::Packets), 9, &whole);
        assert_eq!(names(&most), ["b", "a", "others"]);
        assert_eq!((most[2].packets, most[2].spans[0].count), (1, 1));
        assert_eq!(most[2].spans[0].max_ns, Some(9), "the others are known");
        let worst = groups(parts(), top(1, Sort::P99), 9, &whole);
        assert_eq!(names(&worst), ["c", "others"]);
        assert_eq!(names(&groups(parts(), top(3, Sort::P99), 9, &whole)), ["c", "b", "a"]);
    }

    #[test]
    fn packets_of_no_known_group_are_among_the_others() {
        let found = groups(vec![part("a", 3, &[1])], top(10, Sort::Packets), 4, &[1, 7]);
        assert_eq!(names(&found), ["a", "others"]);
        assert_eq!((found[1].packets, found[1].spans[0].max_ns), (1, None));
    }

    #[test]
    fn namespaces_are_told_where_names_are_not_enough() {
        let parts = vec![
            part("eth0 rx-0 netns 1", 1, &[1]),
            part("eth0 rx-0 netns 2", 1, &[1]),
            part("eth1 rx-0 netns 1", 1, &[1]),
        ];
        let found = groups(parts, top(10, Sort::Packets), 3, &[1, 1, 1]);
        assert_eq!(names(&found), ["eth0 rx-0 netns 1", "eth0 rx-0 netns 2", "eth1 rx-0"]);
    }

    #[test]
    fn groups_have_names_that_people_know() {
        let mut value = vec![0; 8 + 512];
        assert_eq!(name(Per::Cpu, 4, &value), "cpu 3");
        assert_eq!(name(Per::Node, 1, &value), "node 0");
        assert_eq!(name(Per::Node, 1 << 32, &value), "node unknown");
        assert_eq!(name(Per::Cgroup, 5, &value), "/");
        assert_eq!(name(Per::Process, NO_PROCESS, &value), "no process");
        value[8..12].copy_from_slice(&42u32.to_ne_bytes());
        value[16..21].copy_from_slice(b"nginx");
        assert_eq!(name(Per::Process, 42, &value), "nginx/42");
        let mut queue = vec![0; 8 + 512];
        queue[24..28].copy_from_slice(b"eth0");
        assert_eq!(name(Per::Queue, 9, &queue), "eth0 rx-unknown netns 0");
        queue[16..20].copy_from_slice(&1u32.to_ne_bytes());
        queue[20..24].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(name(Per::Queue, 9, &queue), "eth0 tx-2 netns 0");
        let mut cgroup = vec![0; 8 + 512];
        cgroup[8..13].copy_from_slice(b"inner");
        cgroup[72..77].copy_from_slice(b"outer");
        assert_eq!(name(Per::Cgroup, 9, &cgroup), "/outer/inner");
        (0..8).for_each(|level| cgroup[8 + level * 64] = b'x');
        assert!(
            name(Per::Cgroup, 9, &cgroup).starts_with("…/x/"),
            "{}",
            name(Per::Cgroup, 9, &cgroup)
        );
    }

    #[test]
    fn numbers_are_those_of_the_programs() {
        let header = concat!(
            include_str!("../../../../bpf/group_names.h"),
            include_str!("../../../../bpf/group.h")
        );
        let has = |line: String| assert!(header.contains(&line), "{line}");
        has(format!("#define GROUPS_MAX {GROUPS_MAX}"));
        has(format!("#define CELLS_MAX {CELLS_MAX}"));
        has(format!("#define CGROUP_LEVELS {CGROUP_LEVELS}"));
        has(format!("#define CGROUP_NAME {CGROUP_NAME}"));
        has(format!("#define NO_PROCESS (1ULL << {})", NO_PROCESS.trailing_zeros()));
        let line = header.lines().find(|line| line.starts_with("enum per {")).unwrap();
        let names = ["NONE", "CPU", "NODE", "QUEUE", "FLOW", "PROCESS", "CGROUP"];
        assert_eq!(line, format!("enum per {{ PER_{} }};", names.join(", PER_")));
        let all = [Per::Cpu, Per::Node, Per::Queue, Per::Flow, Per::Process, Per::Cgroup];
        for (number, per) in (1..).zip(all) {
            assert_eq!(per.number(), number);
        }
    }

    proptest! {
        #[test]
        fn groups_add_up_to_the_whole(
            parts in prop::collection::vec((1..20u64, prop::collection::vec(0..16u64, 0..9)), 0..8),
            unknown in prop::collection::vec(0..16u64, 0..9),
            shown in 0..10usize,
            by_tail in any::<bool>(),
        ) {
            let whole: Vec<u64> =
                parts.iter().flat_map(|(_, ns)| ns).chain(&unknown).copied().collect();
            let packets = parts.iter().map(|(packets, _)| packets).sum::<u64>() + 3;
            let named = parts.iter().enumerate();
            let parts = named.map(|(i, (n, ns))| part(&i.to_string(), *n, ns)).collect();
            let sort = if by_tail { Sort::P99 } else { Sort::Packets };
            let found = groups(parts, top(shown, sort), packets, &whole);
            prop_assert!(found.len() <= shown + 1);
            prop_assert_eq!(found.iter().map(|group| group.packets).sum::<u64>(), packets);
            let counts = found.iter().flat_map(|group| &group.spans).map(|span| span.count);
            prop_assert_eq!(counts.sum::<u64>(), whole.len() as u64);
        }

        #[test]
        fn any_bytes_have_a_name(bytes in prop::collection::vec(any::<u8>(), 0..600), id in any::<u64>()) {
            for per in [Per::Node, Per::Queue, Per::Flow, Per::Process, Per::Cgroup] {
                let _ = name(per, id.max(1), &bytes);
            }
        }
    }
}
