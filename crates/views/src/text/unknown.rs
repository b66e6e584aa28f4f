//! What could not be read, and why: the end of every view.
//!
//! Input: the host's `unknown` facts. Output: lines grouped by reason: a thousand CPUs that lack the same file are one
//! line.

use super::units::{printable, ranges};
use super::{heading, line};
use nearpath_model::{Host, Unknown};
use std::collections::BTreeMap;

/// Lines of the facts that are unknown and whose subject (`cpu 3`, `nic eth0`, `host`) is of one
/// of the kinds; of all facts when no kind is given. Nothing when there is none.
pub fn unknown(unknown: &[Unknown], kinds: &[&str]) -> String {
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    for item in unknown {
        let (kind, id) = item.subject.split_once(' ').unwrap_or((item.subject.as_str(), ""));
        if !kinds.is_empty() && !kinds.contains(&kind) {
            continue;
        }
        let key = (kind.to_owned(), template(&item.reason, id));
        let group = groups.entry(key).or_default();
        if group.ids.is_empty() {
            group.reason.clone_from(&item.reason);
        }
        if !group.ids.iter().any(|known| known == id) {
            group.ids.push(id.to_owned());
        }
        for fact in item.fact.split(", ") {
            if !group.facts.iter().any(|known| known == fact) {
                group.facts.push(fact.to_owned());
            }
        }
    }
    if groups.is_empty() {
        return String::new();
    }
    let mut out = String::new();
    heading(&mut out, "unknown:");
    for ((kind, template), group) in &groups {
        let reason = if group.ids.len() == 1 { &group.reason } else { template };
        let subject = match names(&group.ids) {
            ids if ids.is_empty() => kind.clone(),
            ids => format!("{kind} {ids}"),
        };
        let facts = folded(&group.facts);
        line!(out, "  {}", printable(&format!("{subject}: {facts}: {reason}")));
    }
    out
}

/// What stands in place of a table without rows: that there are none, or why the host's fact could not be read, as a
/// file that is missing is not an empty one.
pub(super) fn none_of(host: &Host, what: &str, fact: &str) -> String {
    let is_it =
        |item: &&Unknown| item.subject == "host" && item.fact.split(", ").any(|f| f == fact);
    match host.unknown.iter().find(is_it) {
        Some(item) => format!("{what} unknown: {}", printable(&item.reason)),
        None => format!("no {what}"),
    }
}

/// What shares a reason.
#[derive(Default)]
struct Group {
    ids: Vec<String>,
    facts: Vec<String>,
    /// The reason of the first of them.
    reason: String,
}

/// The reason with what differs from subject to subject made the same: the subject's name and
/// the numbers of the path become `*`. What the kernel said, after the path, stays.
fn template(reason: &str, id: &str) -> String {
    let (path, said) = reason.split_once(": ").unwrap_or(("", reason));
    if !path.starts_with('/') {
        return reason.to_owned();
    }
    let starred: Vec<String> = path.split('/').map(|part| starred(part, id)).collect();
    format!("{}: {said}", starred.join("/"))
}

fn starred(part: &str, id: &str) -> String {
    if !id.is_empty() && part == id {
        return "*".to_owned();
    }
    let stem = part.trim_end_matches(|c: char| c.is_ascii_digit());
    if stem.len() == part.len() { part.to_owned() } else { format!("{stem}*") }
}

/// Numbers as ranges, names in a row, at most eight.
fn names(ids: &[String]) -> String {
    let numbers: Result<Vec<u32>, _> = ids.iter().map(|id| id.parse()).collect();
    numbers.map_or_else(|_| folded(ids), ranges)
}

fn folded(words: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = words.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if words.len() > SHOWN {
        text.push_str(&format!(" and {} more", words.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(subject: &str, fact: &str, reason: &str) -> Unknown {
        Unknown { subject: subject.into(), fact: fact.into(), reason: reason.into() }
    }

    #[test]
    fn the_same_reason_is_one_line() {
        let mut items: Vec<_> = (0..1024)
            .map(|cpu| {
                let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/die_id: not there");
                item(&format!("cpu {cpu}"), "die", &path)
            })
            .collect();
        items.push(item("nic eth0", "numa_node", "/sys/class/net/eth0/device/numa_node: says -1"));
        items.push(item("nic eth1", "numa_node", "/sys/class/net/eth1/device/numa_node: says -1"));
        items.push(item("host", "sysctls", "not asked"));
        let text = anstream_free(&unknown(&items, &[]));
        assert_eq!(
            text,
            "unknown:\n\
             \x20 cpu 0-1023: die: /sys/devices/system/cpu/cpu*/topology/die_id: not there\n\
             \x20 host: sysctls: not asked\n\
             \x20 nic eth0, eth1: numa_node: /sys/class/net/*/device/numa_node: says -1\n"
        );
        assert!(unknown(&items, &["irq"]).is_empty());
        assert_eq!(unknown(&items, &["host"]).lines().count(), 2);
    }

    #[test]
    fn a_missing_file_is_not_an_empty_one() {
        let mut host = Host::default();
        assert_eq!(none_of(&host, "interrupts", "irqs"), "no interrupts");
        host.unknown.push(item("host", "nics, irqs", "/proc/interrupts: not found"));
        assert_eq!(
            none_of(&host, "interrupts", "irqs"),
            "interrupts unknown: /proc/interrupts: not found"
        );
        assert_eq!(none_of(&host, "softnet counters", "softnet"), "no softnet counters");
    }

    fn anstream_free(text: &str) -> String {
        let bold = anstyle::Style::new().bold();
        text.replace(&bold.render().to_string(), "").replace(&bold.render_reset().to_string(), "")
    }
}
