//! Hardware timestamps of received packets: which NICs' are used, the accuracy of their conversion, and which are not used
//! and why.

use super::line;
use super::units::{digits, latency, printable};
use nearpath_model::{NicStamps, StampingNic};

/// A clock that keeps this close to the kernel's (0.1 ppm) does not drift.
const STEADY_PPB: f64 = 100.0;

/// Nothing where no NIC stamps what it receives.
pub(super) fn nic_stamps(stamps: Option<&NicStamps>) -> String {
    let mut out = String::new();
    let Some(stamps) = stamps else { return out };
    let packets = if stamps.used == 1 { "packet begins" } else { "packets begin" };
    line!(out, "NIC timestamps: {} {packets} at the NIC{}", stamps.used, not_used(stamps));
    for nic in &stamps.devices {
        line!(out, "  {}", printable(&device(nic)));
    }
    out
}

/// `; not used: 3 later than the first stage, 1 more than 1 s before it`.
fn not_used(stamps: &NicStamps) -> String {
    let reasons = [
        (stamps.ahead, "later than the first stage"),
        (stamps.too_old, "more than 1 s before it"),
        (stamps.unconverted, "of a device with an unknown clock"),
        (stamps.other_device, "of a device without timestamps"),
        (stamps.not_plain, "invalid"),
    ];
    let some = reasons.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = some.map(|(count, why)| format!("{count} {why}")).collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("; not used: {}", parts.join(", ")),
    }
}

/// `eth0 (all): ptp0 by extended, ± 1.20µs, 12 ppm faster`.
fn device(nic: &StampingNic) -> String {
    let filter = match nic.rx_filter.is_empty() {
        true => String::new(),
        false => format!(" ({})", nic.rx_filter),
    };
    let clock = nic.clock.as_deref().unwrap_or("no clock");
    let mut parts = vec![match &nic.method {
        Some(method) => format!("{clock} by {method}"),
        None => clock.to_owned(),
    }];
    parts.extend(nic.uncertainty_ns.map(|ns| format!("± {}", latency(ns))));
    parts.extend(nic.drift_ppb.filter(|ppb| ppb.abs() >= STEADY_PPB).map(|ppb| {
        let than = if ppb < 0.0 { "slower" } else { "faster" };
        format!("{} ppm {than}", digits(ppb.abs() / 1000.0))
    }));
    if nic.clock_steps > 0 {
        let times = if nic.clock_steps == 1 { "once" } else { "several times" };
        parts.push(format!("set {times} meanwhile"));
    }
    parts.extend(nic.left_out.as_ref().map(|reason| format!("not used: {reason}")));
    if nic.left_out.is_none() && !nic.used {
        parts.push("none of its packets was followed".to_owned());
    }
    format!("{}{filter}: {}", nic.nic, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::NicStamps;

    fn nic(json: &str) -> StampingNic {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn used_and_unused_timestamps_are_listed() {
        let eth0 = nic(
            r#"{"nic": "eth0", "ifindex": 2, "netns": 1, "rx_filter": "all", "clock": "ptp0", "method": "extended",
            "uncertainty_ns": 1200, "drift_ppb": 12345.6, "clock_steps": 1, "used": true, "left_out": null}"#,
        );
        let eth1 = nic(
            r#"{"nic": "eth1", "ifindex": 3, "netns": null, "rx_filter": "ptpv2-event", "clock": "ptp1",
            "method": null, "uncertainty_ns": null, "drift_ppb": null, "used": false,
            "left_out": "/dev/ptp1: not found"}"#,
        );
        let stamps = NicStamps {
            devices: vec![eth0, eth1],
            used: 4032,
            ahead: 3,
            unconverted: 17,
            ..NicStamps::default()
        };
        assert_eq!(
            nic_stamps(Some(&stamps)),
            "NIC timestamps: 4032 packets begin at the NIC; not used: 3 later than the first stage, \
             17 of a device with an unknown clock\n\
             \x20 eth0 (all): ptp0 by extended, ± 1.20µs, 12.3 ppm faster, set once meanwhile\n\
             \x20 eth1 (ptpv2-event): ptp1, not used: /dev/ptp1: not found\n"
        );
        assert_eq!(nic_stamps(None), "");
    }
}
