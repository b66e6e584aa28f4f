//! Numbers for human readers: times, shares, counts and sizes with three digits (`812ns`, `16.4µs`, `100%`,
//! `369k`).
//!
//! All crates that print text use these, so that a figure looks the same everywhere.

/// A time with three digits: `812ns`, `12.3µs`, `4.56ms`, `1.20s`.
pub fn time(ns: u64) -> String {
    let value = ns as f64;
    match value {
        v if v < 999.5 => format!("{ns}ns"),
        v if v < 999_500.0 => format!("{}µs", digits(v / 1e3)),
        v if v < 999_500_000.0 => format!("{}ms", digits(v / 1e6)),
        v => format!("{}s", digits(v / 1e9)),
    }
}

/// A duration in seconds, with the unit that suits it: `193ms`, `2.50s`. Negative and unknown ones are `?`.
pub fn seconds(value: f64) -> String {
    if value.is_finite() && value >= 0.0 {
        time((value * 1e9).round() as u64)
    } else {
        "?".to_owned()
    }
}

/// A share of 0 to 1 as a percentage: `97.3%`, `4.2%`, `0.012%`, `100%`, `0%`.
pub fn percent(share: f64) -> String {
    percentage(share * 100.0)
}

/// A percentage: one decimal from 1, two digits below, none if it is whole. Values just below 100 are not
/// rounded to `100%`, nor values just above 0 to `0%`.
pub fn percentage(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "?%".to_owned(),
        0.0 => "0%".to_owned(),
        v if v > 99.9 && v < 100.0 => "99.9%".to_owned(),
        v if v == 100.0 || v >= 999.5 => format!("{value:.0}%"),
        v if v >= 0.995 => format!("{value:.1}%"),
        v if v >= 0.0995 => format!("{value:.2}%"),
        v if v >= 0.000_95 => {
            let decimals = if v >= 0.009_95 { 3 } else { 4 };
            format!("{value:.decimals$}%")
        }
        _ => "<0.001%".to_owned(),
    }
}

/// A change in percent, with its sign: `+12.3%`, `-0.45%`, `0%`.
pub fn signed_percentage(value: f64) -> String {
    let text = percentage(value.abs());
    match value {
        v if v > 0.0 => format!("+{text}"),
        v if v < 0.0 => format!("-{text}"),
        _ => text,
    }
}

/// A number with three digits, integers beyond that: `0.123`, `1.23`, `12.3`, `1234`.
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if !v.is_finite() => return "?".to_owned(),
        v if v < 0.9995 => 3,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// A count with three digits: `999`, `369k`, `1.25M`, `4.02G`.
pub fn short(count: u64) -> String {
    let value = count as f64;
    match value {
        v if v < 999.5 => count.to_string(),
        v if v < 999_500.0 => format!("{}k", digits(v / 1e3)),
        v if v < 999_500_000.0 => format!("{}M", digits(v / 1e6)),
        v => format!("{}G", digits(v / 1e9)),
    }
}

/// A size with a binary unit and three digits: `512 KiB`, `62.8 GiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = value as f64;
    let mut last = "B";
    for unit in UNITS {
        if scaled < 999.5 {
            break;
        }
        scaled /= 1024.0;
        last = unit;
    }
    if last == "B" {
        return format!("{value} B");
    }
    let text = digits(scaled);
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {last}")
}

/// Parses a size: `50MB`, `64MiB`, `1G`.
///
/// # Errors
/// It is none, or too large.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit: u64 = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return Err("expected a size, e.g. 50MB or 64MiB".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "expected a size, e.g. 50MB".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

/// A rate with a decimal unit and three digits, as in tc(8): `812 bit/s`, `9.60 Mbit/s`.
pub fn bit_rate(bits: u64) -> String {
    let value = bits as f64;
    match value {
        v if v < 999.5 => format!("{bits} bit/s"),
        v if v < 999_500.0 => format!("{} kbit/s", digits(v / 1e3)),
        v if v < 999_500_000.0 => format!("{} Mbit/s", digits(v / 1e6)),
        v => format!("{} Gbit/s", digits(v / 1e9)),
    }
}

/// `1 queue`, `4 queues`.
pub fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [
            (0, "0ns"),
            (812, "812ns"),
            (999, "999ns"),
            (1_000, "1.00µs"),
            (9_996, "10.0µs"),
            (16_400, "16.4µs"),
            (999_499, "999µs"),
            (999_600, "1.00ms"),
            (12_345_678, "12.3ms"),
            (2_500_000_000, "2.50s"),
            (u64::MAX, "18446744074s"),
        ] {
            assert_eq!(time(ns), text, "{ns}");
        }
    }

    #[test]
    fn only_exact_shares_are_0_or_100_percent() {
        for (share, text) in [
            (0.0, "0%"),
            (1.0, "100%"),
            (0.999_99, "99.9%"),
            (0.973, "97.3%"),
            (0.042, "4.2%"),
            (0.0042, "0.42%"),
            (0.000_12, "0.012%"),
            (0.000_012, "0.0012%"),
            (0.000_000_1, "<0.001%"),
            (1.5, "150.0%"),
            (f64::NAN, "?%"),
        ] {
            assert_eq!(percent(share), text, "{share}");
        }
    }

    #[test]
    fn counts_and_sizes_have_three_digits() {
        for (count, text) in
            [(0, "0"), (999, "999"), (1_000, "1.00k"), (369_012, "369k"), (1_250_000, "1.25M")]
        {
            assert_eq!(short(count), text, "{count}");
        }
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
        for (rate, text) in
            [(812, "812 bit/s"), (9_600_000, "9.60 Mbit/s"), (25_000_000_000, "25.0 Gbit/s")]
        {
            assert_eq!(bit_rate(rate), text);
        }
        assert_eq!(digits(f64::INFINITY), "?");
        assert_eq!(counted(1, "queue"), "1 queue");
        assert_eq!(counted(0, "queue"), "0 queues");
    }
}
