//! Statistics of `/proc/net/stat`. Input: the bytes of a file. Output: sums over CPUs.

use std::collections::BTreeMap;

/// Maximum number of lines, one per CPU.
const MAX_LINES: usize = 65_536;

/// The sums of some columns, as `table.column`: a line of names, then a line of hexadecimal numbers per CPU.
pub(super) fn sums(bytes: &[u8], table: &str, kept: &[&str]) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let mut sums = BTreeMap::new();
    for line in lines.take(MAX_LINES) {
        for (name, value) in names.iter().zip(line.split_whitespace()) {
            if kept.contains(name)
                && let Ok(value) = u64::from_str_radix(value, 16)
            {
                let sum: &mut u64 = sums.entry(format!("{table}.{name}")).or_default();
                *sum = sum.saturating_add(value);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_summed_over_cpus() {
        let text = b"entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart\n\
            00000010  00000000 0 0 0000000c 0 0 0 0 00000001 0000000a 00000002 0 0 0 0 0\n\
            00000010  00000000 0 0 00000000 0 0 0 0 00000000 00000006 00000000 0 0 0 0 0\n";
        let found = sums(text, "conntrack", &["drop", "early_drop", "insert_failed"]);
        assert_eq!(found["conntrack.drop"], 16);
        assert_eq!((found["conntrack.early_drop"], found["conntrack.insert_failed"]), (2, 1));
        assert_eq!(found.len(), 3);
        assert_eq!(sums(b"drop\nx\n", "t", &["drop"]), BTreeMap::new());
        assert_eq!(sums(b"", "t", &["drop"]), BTreeMap::new());
    }
}
