//! Words and figures for findings: times with three digits, shares, lists of CPUs, and names
//! from an untrusted host made harmless.

use nearpath_model::CpuSet;

/// A time with three digits: `812 ns`, `12.3 µs`, `4.56 ms`, `1.20 s`.
pub(crate) fn time(ns: u64) -> String {
    let ns = ns as f64;
    for (unit, size) in [("s", 1e9), ("ms", 1e6), ("µs", 1e3)] {
        if ns >= size {
            return format!("{} {unit}", three_digits(ns / size));
        }
    }
    format!("{ns} ns")
}

/// A share of 0 to 1 in per cent with three digits: `97.3 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", three_digits(share * 100.0))
}

/// A number with three digits, whole ones beyond that: `0.0123`, `1.23`, `12.3`, `1234`.
pub(crate) fn three_digits(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "?".to_owned(),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 || v == 0.0 => format!("{value:.2}"),
        v if v >= 0.01 => format!("{value:.3}"),
        v if v >= 0.0001 => format!("{value:.5}"),
        _ => format!("{value:.1e}"),
    }
}

/// `CPU 3`, `CPUs 0-3,8`, or `no CPU`.
pub(crate) fn cpus(set: &CpuSet) -> String {
    match set.len() {
        0 => "no CPU".to_owned(),
        1 => format!("CPU {set}"),
        _ => format!("CPUs {set}"),
    }
}

/// `1 queue`, `4 queues`.
pub(crate) fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Things in a sentence: `a`, `a and b`, `a, b and c`.
pub(crate) fn list<T: std::fmt::Display>(things: &[T]) -> String {
    match things {
        [] => "none".to_owned(),
        [one] => one.to_string(),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(ToString::to_string).collect();
            format!("{} and {last}", most.join(", "))
        }
    }
}

/// Text of an untrusted host in one harmless line: control characters become spaces, and it is
/// cut at 200 characters.
pub(crate) fn clean(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Bytes in the nearest unit: `512 KiB`, `1.50 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= size {
            return format!("{} {unit}", three_digits(value / size as f64));
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(time(812), "812 ns");
        assert_eq!(time(12_345), "12.3 µs");
        assert_eq!(time(4_560_000), "4.56 ms");
        assert_eq!(time(u64::MAX), "18446744074 s");
        assert_eq!(percent(0.973), "97.3 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(percent(0.0), "0.00 %");
        assert_eq!(three_digits(f64::NAN), "?");
        assert_eq!(bytes(3 << 29), "1.50 GiB");
    }

    #[test]
    fn words_are_harmless() {
        assert_eq!(clean("a\u{1b}[31m\nb"), "a [31m b");
        assert_eq!(clean(&"x".repeat(1000)).len(), 200);
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
        assert_eq!(cpus(&CpuSet::from_list("0-3").unwrap()), "CPUs 0-3");
        assert_eq!(count(1, "queue"), "1 queue");
    }
}
