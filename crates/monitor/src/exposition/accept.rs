//! The format that a scraper prefers, from its `Accept` header (RFC 9110, 12.5.1).

use super::Format;

/// More alternatives than this are not read.
const ALTERNATIVES_MAX: usize = 32;

/// The format with the highest weight, of equal ones the first; text if none of them is ours.
pub fn negotiate(accept: &str) -> Format {
    let mut best = (0u32, Format::Text);
    for alternative in accept.split(',').take(ALTERNATIVES_MAX) {
        if let Some((format, weight)) = parse(alternative)
            && weight > best.0
        {
            best = (weight, format);
        }
    }
    best.1
}

/// A format and its weight in thousandths; `None` for one that is not ours.
fn parse(alternative: &str) -> Option<(Format, u32)> {
    let mut parts = alternative.split(';').map(str::trim);
    let kind = parts.next()?.to_ascii_lowercase();
    let (mut weight, mut parameters) = (1_000, Vec::new());
    for part in parts {
        let (name, value) = part.split_once('=')?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
        if name == "q" {
            let q: f64 = value.parse().ok().filter(|q| (0.0..=1.0).contains(q))?;
            weight = (q * 1000.0).round() as u32;
        } else {
            parameters.push((name, value.to_owned()));
        }
    }
    let is = |name: &str, wanted: &str| {
        let value = parameters.iter().find(|(have, _)| have == name);
        value.is_none_or(|(_, value)| value.eq_ignore_ascii_case(wanted))
    };
    let has = |name: &str| parameters.iter().any(|(have, _)| have == name);
    let format = match kind.as_str() {
        "application/vnd.google.protobuf"
            if has("proto")
                && is("proto", "io.prometheus.client.MetricFamily")
                && is("encoding", "delimited") =>
        {
            Format::Protobuf
        }
        "application/openmetrics-text" if is("version", "1.0.0") || is("version", "0.0.1") => {
            Format::OpenMetrics
        }
        "text/plain" if is("version", "0.0.4") => Format::Text,
        "*/*" | "text/*" => Format::Text,
        _ => return None,
    };
    Some((format, weight))
}
