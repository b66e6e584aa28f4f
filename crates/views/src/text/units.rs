//! Formats numbers and untrusted names.

pub use nearpath_model::units::{bytes, time as latency};
pub(super) use nearpath_model::units::{
    digits, percent, percentage, seconds, short, signed_percentage,
};

/// The text with everything escaped that could move a terminal's cursor, colour it, or reverse
/// its reading order: names of interfaces and processes come from whoever made them.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || reorders {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// A power of ten without decimals: `100ns`, `10µs`.
pub(crate) fn whole(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}ms", ns / 1_000_000),
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

/// Numbers as ranges, ascending, each once: `0-3,8`.
pub(super) fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut numbers: Vec<u32> = numbers.into_iter().collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut parts: Vec<String> = Vec::new();
    for run in numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        match run {
            [one] => parts.push(one.to_string()),
            [first, .., last] => parts.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_folded_into_ranges() {
        assert_eq!(ranges([3, 1, 2, 8, 8]), "1-3,8");
        assert_eq!(ranges([u32::MAX, 0]), "0,4294967295");
        assert_eq!(ranges([]), "");
    }

    #[test]
    fn escape_sequences_cannot_reach_a_terminal() {
        assert_eq!(printable("a\u{1b}[2J\nb\u{202e}"), "a\\u{1b}[2J\\u{a}b\\u{202e}");
        assert_eq!(printable("mlx5_comp0@pci:0000:5e:00.0 é"), "mlx5_comp0@pci:0000:5e:00.0 é");
    }
}
