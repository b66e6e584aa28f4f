//! How much memory was accessed, as DAMON estimates it: a row for each target, and for each node of physical memory.

use super::table::{Table, left, right};
use super::units::{bytes, printable, seconds};
use super::{heading, line};
use nearpath_model::{AccessEstimates, AccessTarget, AccessedBytes, Kdamond};

/// Maximum number of targets shown; the JSON has more.
const SHOWN: usize = 10;

/// The estimates.
pub fn accesses(estimates: &AccessEstimates) -> String {
    let mut out = String::new();
    heading(&mut out, "accessed in the last aggregation interval, estimated by DAMON");
    let mut table = Table::new(&[
        left("MEMORY"),
        right("ACCESSED"),
        right("FREQUENTLY"),
        right("IDLE"),
        right("IDLE-FOR"),
        left("BY"),
    ]);
    let all = estimates
        .kdamonds
        .iter()
        .flat_map(|kdamond| kdamond.targets.iter().map(move |target| (kdamond, target)));
    for (kdamond, target) in all.clone().take(SHOWN) {
        table.row(row(name(kdamond, target), &target.all, &by(kdamond)));
        // Of one node, the sum says the same.
        if target.nodes.len() > 1 {
            for (node, bytes) in &target.nodes {
                table.row(row(format!("  node {}", node.0), bytes, ""));
            }
        }
    }
    out.push_str(&table.render());
    let more = all.count().saturating_sub(SHOWN);
    if more > 0 {
        line!(out, "and {more} more (--json)");
    }
    if estimates.lost > 0 {
        line!(out, "not counted: {} regions", estimates.lost);
    }
    out
}

fn name(kdamond: &Kdamond, target: &AccessTarget) -> String {
    match (target.pid, &target.comm) {
        (Some(pid), Some(comm)) => format!("{}[{pid}]", printable(comm)),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) if kdamond.operations.as_deref() == Some("paddr") => "physical".to_owned(),
        (None, _) => format!("target {}", target.target),
    }
}

/// `kdamond.77 of damon_reclaim, 10 checks in 5.0s`.
fn by(kdamond: &Kdamond) -> String {
    let owner = kdamond.owner.as_deref().unwrap_or("an unknown owner");
    let time = |us: u64| seconds(us as f64 / 1e6);
    let checks = match (kdamond.sample_us, kdamond.aggregation_us) {
        (Some(sample), Some(all)) => format!(", checked each {} of {}", time(sample), time(all)),
        _ => String::new(),
    };
    format!("thread {} of {}{checks}", kdamond.pid, printable(owner))
}

fn row(name: String, of: &AccessedBytes, by: &str) -> [String; 6] {
    [
        name,
        bytes(of.accessed_bytes),
        of.frequent_bytes.map_or_else(|| "?".to_owned(), bytes),
        bytes(of.idle_bytes),
        of.idle_s.map_or_else(|| "-".to_owned(), seconds),
        by.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::NodeId;

    #[test]
    fn targets_have_rows_and_nodes_below() {
        let of = |accessed, idle| AccessedBytes {
            accessed_bytes: accessed,
            frequent_bytes: Some(1 << 20),
            idle_bytes: idle,
            idle_s: Some(12.5),
        };
        let physical = AccessTarget {
            all: of(3 << 30, 5 << 30),
            nodes: [(NodeId(0), of(3 << 30, 1 << 30)), (NodeId(1), of(0, 4 << 30))].into(),
            ..AccessTarget::default()
        };
        let process = AccessTarget {
            pid: Some(812),
            comm: Some("a\u{1b}b".to_owned()),
            all: AccessedBytes { accessed_bytes: 4096, ..AccessedBytes::default() },
            ..AccessTarget::default()
        };
        let kdamond = |operations: &str, target| Kdamond {
            pid: 77,
            owner: Some("kdamonds/0".to_owned()),
            operations: Some(operations.to_owned()),
            sample_us: Some(5_000),
            aggregation_us: Some(100_000),
            targets: vec![target],
        };
        let kdamonds = vec![kdamond("paddr", physical), kdamond("vaddr", process)];
        let text = accesses(&AccessEstimates { kdamonds, lost: 2 });
        let text = anstream::adapter::strip_str(&text).to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let physical = ["physical", "3", "GiB", "1", "MiB", "5", "GiB", "12.5s", "thread"];
        assert_eq!(lines[2][..9], physical, "{text}");
        assert!(text.contains("checked each 5.00ms of 100ms"), "{text}");
        assert_eq!(lines[4][..2], ["node", "1"], "{text}");
        assert_eq!(lines[5][1..8], ["4", "KiB", "?", "0", "B", "-", "thread"], "{text}");
        assert!(lines[5][0].ends_with("[812]") && !text.contains('\u{1b}'), "{text}");
        assert!(text.ends_with("not counted: 2 regions\n"), "{text}");
    }
}
