//! Packets by group (`bpf/group.h`). Input: the programs' groups, their samples and those of the whole. Output:
//! the requested groups, and one of all others, so that the sums agree.

use super::path::{self, PathTerms, PathsOfWhole};
use super::samples::Samples;
use super::table::stage;
use crate::grouping::{OTHERS, name, short_names, word};
use crate::layout::Layout;
use crate::{Grouping, Sort};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::{Group, PathKind, Per};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Maximum number of spans of groups (`CELLS_MAX`).
pub const CELLS_MAX: u32 = crate::constants::CELLS_MAX as u32;

/// A group, or several, by span number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    name: String,
    packets: u64,
    samples: BTreeMap<usize, Samples>,
}

/// The current groups of the programs. Read before the whole, which then has at least as many samples.
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

/// A span of the whole: its stages, its number, its samples.
pub type SpanOfWhole = ((usize, usize), usize, Samples);

/// All packets; groups are part of them.
pub struct Whole {
    /// Number of packets started.
    pub packets: u64,
    pub spans: Vec<SpanOfWhole>,
    pub paths: PathsOfWhole,
    pub terms: PathTerms,
}

impl Whole {
    /// All samples by the number of their cell in a group.
    fn samples(&self) -> impl Iterator<Item = (usize, &Samples)> {
        let paths = self.paths.iter().map(|(kind, samples)| (path::cell(*kind), samples));
        self.spans.iter().map(|(_, number, samples)| (*number, samples)).chain(paths)
    }
}

/// The groups to show, and the others as one: the remainder of the whole.
pub fn shown(parts: Vec<Part>, grouping: Grouping, whole: &Whole, layout: &Layout) -> Vec<Group> {
    let group = |part: &Part| {
        let span = |(pair, number, _): &SpanOfWhole| {
            part.samples.get(number)?.span((stage(pair.0)?, stage(pair.1)?), layout, Vec::new())
        };
        let latency = |(kind, _): &(PathKind, Samples)| {
            let samples = part.samples.get(&path::cell(*kind))?;
            path::latency(*kind, samples, &whole.terms, layout)
        };
        Group {
            per: grouping.per,
            name: part.name.clone(),
            packets: part.packets,
            paths: whole.paths.iter().filter_map(latency).collect(),
            spans: whole.spans.iter().filter_map(span).collect(),
        }
    };
    let tail = |part: &Part| {
        let group = group(part);
        let path = group.worst_path().map(|path| (path.p99_ns, path.max_ns));
        let span = group.worst().map(|span| (span.p99_ns, span.max_ns));
        // Groups without whole paths come after those with paths.
        (path, span)
    };
    let mut parts = merged(parts);
    match grouping.sort {
        Sort::Packets => parts.sort_by_key(|part| Reverse(part.packets)),
        Sort::P99 => parts.sort_by_cached_key(|part| Reverse(tail(part))),
    }
    let rest = parts.split_off(grouping.top.min(parts.len()));
    let others = others(&parts, &rest, whole);
    let mut groups: Vec<Group> = parts.iter().map(group).collect();
    if others.packets > 0 || others.samples.values().any(|samples| samples.count() > 0) {
        groups.push(group(&others));
    }
    groups
}

/// Uses short names if they are unique; groups with the same name are merged.
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

/// The remainder of the whole without the shown groups. Extremes are known for the groups in the remainder, but
/// not for packets whose group is unknown, such as those still in flight.
fn others(shown: &[Part], rest: &[Part], whole: &Whole) -> Part {
    let sum = shown.iter().map(|part| part.packets).sum();
    let mut others = Part { name: OTHERS.to_owned(), ..Part::default() };
    others.packets = whole.packets.saturating_sub(sum);
    for (number, samples) in whole.samples() {
        let mut known = Samples::default();
        rest.iter().filter_map(|part| part.samples.get(&number)).for_each(|more| known.add(more));
        let mut left = samples.clone();
        shown.iter().filter_map(|part| part.samples.get(&number)).for_each(|p| left.subtract(p));
        let left = if known.count() == left.count() { known } else { left };
        others.samples.insert(number, left);
    }
    others
}

#[cfg(test)]
mod tests {
    use super::super::samples::tests::counted;
    use super::*;
    use nearpath_model::Topology;
    use proptest::prelude::*;

    const SPAN: (usize, usize) = (1, 2);

    fn part(name: &str, packets: u64, latencies: &[u64]) -> Part {
        let cells = [1, path::cell(PathKind::Receive)].map(|cell| (cell, counted(latencies)));
        Part { name: name.to_owned(), packets, samples: cells.into() }
    }

    fn top(top: usize, sort: Sort) -> Grouping {
        Grouping { per: Per::Queue, top, sort }
    }

    fn groups(parts: Vec<Part>, grouping: Grouping, packets: u64, whole: &[u64]) -> Vec<Group> {
        let layout = Layout::new(&Topology::default());
        let whole = Whole {
            packets,
            spans: vec![(SPAN, 1, counted(whole))],
            paths: vec![(PathKind::Receive, counted(whole))],
            terms: PathTerms::new(&[std::time::Duration::from_micros(1)], |_| true),
        };
        shown(parts, grouping, &whole, &layout)
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
        assert_eq!(most[2].spans[0].max_ns, Some(9), "the others have known extremes");
        let worst = groups(parts(), top(1, Sort::P99), 9, &whole);
        assert_eq!(names(&worst), ["c", "others"]);
        assert_eq!(names(&groups(parts(), top(3, Sort::P99), 9, &whole)), ["c", "b", "a"]);
    }

    #[test]
    fn the_worst_tail_is_that_of_whole_packets() {
        // In one span `a` is the slower one, end to end `b` is; `c` has no packets that are read.
        let cells = |span: &[u64], kind: PathKind, path: &[u64]| {
            [(1, counted(span)), (path::cell(kind), counted(path))].into()
        };
        let part = |name: &str, samples| Part { name: name.to_owned(), packets: 2, samples };
        let parts = || {
            vec![
                part("a", cells(&[900; 2000], PathKind::Receive, &[1_000; 2000])),
                part("b", cells(&[300; 2000], PathKind::Receive, &[5_000; 2000])),
                part("c", cells(&[9_000; 2000], PathKind::Forward, &[])),
            ]
        };
        let whole = [[300; 2000], [900; 2000], [9_000; 2000]].concat();
        let found = groups(parts(), top(3, Sort::P99), 6, &whole);
        assert_eq!(names(&found)[..3], ["b", "a", "c"]);
        assert_eq!(found[0].worst_path().map(|path| path.kind), Some(PathKind::Receive));
        assert!(found[2].worst_path().is_none());
    }

    #[test]
    fn packets_without_a_known_group_are_among_the_others() {
        let found = groups(vec![part("a", 3, &[1])], top(10, Sort::Packets), 4, &[1, 7]);
        assert_eq!(names(&found), ["a", "others"]);
        assert_eq!((found[1].packets, found[1].spans[0].max_ns), (1, None));
    }

    #[test]
    fn namespaces_are_shown_if_names_are_not_unique() {
        let parts = vec![
            part("eth0 rx-0 netns 1", 1, &[1]),
            part("eth0 rx-0 netns 2", 1, &[1]),
            part("eth1 rx-0 netns 1", 1, &[1]),
        ];
        let found = groups(parts, top(10, Sort::Packets), 3, &[1, 1, 1]);
        assert_eq!(names(&found), ["eth0 rx-0 netns 1", "eth0 rx-0 netns 2", "eth1 rx-0"]);
    }

    proptest! {
        #[test]
        fn groups_add_up_to_the_whole(
            parts in prop::collection::vec((1..20u64, prop::collection::vec(0..2000u64, 0..9)), 0..8),
            unknown in prop::collection::vec(0..2000u64, 0..9),
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
            let paths = || found.iter().flat_map(|group| &group.paths);
            prop_assert_eq!(paths().map(|path| path.count).sum::<u64>(), whole.len() as u64);
            let above = whole.iter().filter(|&&ns| ns > 1000).count() as u64;
            prop_assert_eq!(paths().map(|path| path.above[0].count).sum::<u64>(), above);
        }
    }
}
