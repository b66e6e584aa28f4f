//! Packets by group. Input: the programs' groups and their counts. Output: the requested groups, and one of all
//! others, so that they add up to the whole.

use crate::Grouping;
use crate::grouping::{OTHERS, name, short_names};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::Per;
use nearpath_model::locality::{Distances, LocalityGroup};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Number of words in `rx` of `struct group_counts`; `tx` follows with the same number.
const WORDS: usize = 8;

/// The current groups of the programs.
pub fn read(groups: &dyn MapCore, counts: &dyn MapCore, per: Per) -> Vec<LocalityGroup> {
    let value = |map: &dyn MapCore, key: &[u8]| map.lookup(key, MapFlags::ANY).ok().flatten();
    let group = |key: Vec<u8>| {
        let id = u64::from_ne_bytes(key.as_slice().try_into().ok()?);
        let counts = value(counts, &key)?;
        let distances =
            |first: usize| Distances::of(std::array::from_fn(|i| word(&counts, first + i)));
        // A group that did not fit in its map may have counts, but no name.
        let name = name(per, id, &value(groups, &key)?);
        Some(LocalityGroup { per, name, rx: distances(0), tx: distances(WORDS) })
    };
    counts.keys().filter_map(group).collect()
}

fn word(bytes: &[u8], number: usize) -> u64 {
    let bytes = bytes.get(8 * number..8 * number + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_ne_bytes).unwrap_or_default()
}

/// Those with most packets, and the remainder of the whole.
pub fn shown(
    parts: Vec<LocalityGroup>,
    grouping: Grouping,
    rx: Distances,
    tx: Distances,
) -> Vec<LocalityGroup> {
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    let names = short_names(&names);
    let mut merged: BTreeMap<String, (Distances, Distances)> = BTreeMap::new();
    for (part, name) in parts.iter().zip(names) {
        let sum = merged.entry(name).or_default();
        *sum = (sum.0.with(&part.rx), sum.1.with(&part.tx));
    }
    let group = |(name, (rx, tx))| LocalityGroup { per: grouping.per, name, rx, tx };
    let mut shown: Vec<LocalityGroup> = merged.into_iter().map(group).collect();
    shown.sort_by_key(|group| Reverse(group.rx.packets.saturating_add(group.tx.packets)));
    shown.truncate(grouping.top);
    let left = |whole: Distances, of: fn(&LocalityGroup) -> Distances| {
        shown.iter().fold(whole, |left, group| left.since(&of(group)))
    };
    let others = (left(rx, |group| group.rx), left(tx, |group| group.tx));
    if others.0.packets > 0 || others.1.packets > 0 {
        shown.push(group((OTHERS.to_owned(), others)));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sort;

    fn part(name: &str, rx: u64, tx: u64) -> LocalityGroup {
        let of = |n| Distances::of([n, 0, 0, 0, 1, 0]);
        LocalityGroup { per: Per::Queue, name: name.to_owned(), rx: of(rx), tx: of(tx) }
    }

    #[test]
    fn those_with_most_packets_are_shown_and_all_add_up() {
        let parts = vec![
            part("eth0 rx-0 netns 1", 5, 0),
            part("eth0 rx-1 netns 1", 9, 0),
            part("eth1 rx-0 netns 1", 1, 0),
            part("eth1 rx-0 netns 2", 2, 30),
        ];
        let (rx, tx) = (Distances::of([20, 0, 0, 0, 6, 0]), Distances::of([30, 0, 0, 0, 4, 0]));
        let by = |top| Grouping { per: Per::Queue, top, sort: Sort::Packets };
        let found = shown(parts.clone(), by(2), rx, tx);
        let names: Vec<&str> = found.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["eth1 rx-0 netns 2", "eth0 rx-1", "others"]);
        for top in 0..6 {
            let found = shown(parts.clone(), by(top), rx, tx);
            let sum = |of: fn(&LocalityGroup) -> Distances| {
                found.iter().map(of).fold(Distances::default(), |sum, one| sum.with(&one))
            };
            assert_eq!((sum(|group| group.rx), sum(|group| group.tx)), (rx, tx));
        }
        assert_eq!(shown(Vec::new(), by(9), Distances::default(), Distances::default()), []);
    }
}
