//! Numbers and untrusted names as people read them.

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

/// A size with a binary unit and three digits: `62.8 GiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut scaled = value as f64;
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        return format!("{value} B");
    }
    let text = digits(scaled);
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {}", UNITS[unit])
}

/// A latency in µs, ms or s with three digits: `0.850 µs`, `12.3 ms`.
pub fn latency(ns: u64) -> String {
    let ns = ns as f64;
    let (scaled, unit) = if ns < 999_500.0 {
        (ns / 1e3, "µs")
    } else if ns < 999_500_000.0 {
        (ns / 1e6, "ms")
    } else {
        (ns / 1e9, "s")
    };
    format!("{} {unit}", digits(scaled))
}

/// A number with three digits: `0.123`, `1.23`, `12.3`, `123`.
pub(super) fn digits(value: f64) -> String {
    let magnitude = value.abs();
    let decimals = match magnitude {
        m if m < 0.9995 => 3,
        m if m < 9.995 => 2,
        m if m < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// A share from 0 to 1 as a percentage: `42.0 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
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
    fn sizes_have_three_digits() {
        for (value, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.977 KiB"),
            (1024, "1 KiB"),
            (8 << 20, "8 MiB"),
            (67_430_000_000, "62.8 GiB"),
            (1023 << 20, "0.999 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(value), text, "{value}");
        }
    }

    #[test]
    fn latencies_have_three_digits() {
        for (ns, text) in [
            (0, "0.000 µs"),
            (850, "0.850 µs"),
            (9_994, "9.99 µs"),
            (9_996, "10.0 µs"),
            (999_499, "999 µs"),
            (999_600, "1.00 ms"),
            (12_345_678, "12.3 ms"),
            (2_500_000_000, "2.50 s"),
        ] {
            assert_eq!(latency(ns), text, "{ns}");
        }
    }

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
