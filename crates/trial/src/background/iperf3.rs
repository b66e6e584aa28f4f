//! iperf3's command line and its JSON (3.1 and later). Input: a load, and the output of iperf3, which may be
//! malformed. Output: arguments, and the result of the load or an error.

use super::{Background, Carried, Protocol};
use serde::Deserialize;
use std::net::IpAddr;
use std::time::Duration;

/// The program.
pub(super) const PROGRAM: &str = "iperf3";
/// iperf3's timeout to connect to its server.
const CONNECT_MS: u32 = 1_000;

/// Arguments of a client that runs for this long.
pub(super) fn client(load: &Background, time: Duration) -> Vec<String> {
    let seconds = time.as_secs_f64().ceil().max(1.0);
    let mut all: Vec<String> = [
        ("--client", load.target.to_string()),
        ("--port", load.port().to_string()),
        ("--time", format!("{seconds:.0}")),
        ("--parallel", load.streams.to_string()),
        ("--connect-timeout", CONNECT_MS.to_string()),
        // Only the final report, so that its length does not depend on the duration.
        ("--interval", "0".to_owned()),
        // 0: unlimited, which is not iperf3's default for UDP.
        ("--bitrate", load.bits_per_s.unwrap_or(0).to_string()),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.to_owned(), value])
    .collect();
    all.push("--json".to_owned());
    if load.protocol == Protocol::Udp {
        all.push("--udp".to_owned());
    }
    if load.reverse {
        all.push("--reverse".to_owned());
    }
    all
}

/// Arguments of a server.
pub(super) fn server(address: IpAddr, port: u16) -> Vec<String> {
    ["--server", "--bind", &address.to_string(), "--port", &port.to_string()]
        .map(str::to_owned)
        .to_vec()
}

/// The parts of iperf3's output that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Printed {
    end: End,
    error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct End {
    /// UDP before 3.13 has only this: what was sent, and how much of it was lost.
    sum: Option<Sum>,
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct Sum {
    seconds: f64,
    bits_per_second: f64,
    retransmits: Option<u64>,
    lost_percent: Option<f64>,
}

/// The result of a client.
///
/// # Errors
/// iperf3 reported an error, or printed something else.
pub fn carried(out: &[u8]) -> Result<Carried, String> {
    let printed: Printed = serde_json::from_slice(out)
        .map_err(|reason| format!("the output of iperf3 is not a valid report ({reason})"))?;
    if let Some(error) = printed.error {
        return Err(error);
    }
    let End { sum, sum_sent, sum_received } = printed.end;
    let sent = sum_sent.or(sum).ok_or("iperf3 did not report what was sent")?;
    let lost_percent = sum_received.and_then(|sum| sum.lost_percent).or(sent.lost_percent);
    let arrived = 1.0 - lost_percent.unwrap_or(0.0) / 100.0;
    let received =
        sum_received.map_or(sent.bits_per_second * arrived, |received| received.bits_per_second);
    let numbers = [sent.seconds, sent.bits_per_second, received, lost_percent.unwrap_or(0.0)];
    if !numbers.iter().all(|number| number.is_finite() && *number >= 0.0) {
        return Err("iperf3 reported impossible numbers".to_owned());
    }
    Ok(Carried {
        seconds: sent.seconds,
        sent_bits_per_s: sent.bits_per_second,
        received_bits_per_s: received,
        retransmits: sent.retransmits,
        lost_percent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(protocol: Protocol) -> Background {
        Background { streams: 3, ..Background::new(protocol, "10.0.0.2".parse().unwrap()) }
    }

    #[test]
    fn a_client_has_its_arguments() {
        let words = |load: &Background| client(load, Duration::from_millis(2_500)).join(" ");
        assert_eq!(
            words(&load(Protocol::Tcp)),
            "--client 10.0.0.2 --port 5201 --time 3 --parallel 3 --connect-timeout 1000 --interval 0 \
             --bitrate 0 --json"
        );
        let udp = Background { bits_per_s: Some(5_000), reverse: true, ..load(Protocol::Udp) };
        let words = words(&udp);
        assert!(
            words.contains("--port 5202 ")
                && words.ends_with("--bitrate 5000 --json --udp --reverse")
        );
        assert_eq!(server("::1".parse().unwrap(), 7).join(" "), "--server --bind ::1 --port 7");
    }

    #[test]
    fn results_of_all_formats_are_parsed() {
        let tcp = br#"{"start":{"version":"iperf 3.12"},"end":{"sum_sent":{"seconds":2.0,"bytes":5,
            "bits_per_second":2e9,"retransmits":7},"sum_received":{"seconds":2.0,"bits_per_second":1.9e9}}}"#;
        let parsed = carried(tcp).unwrap();
        assert_eq!((parsed.seconds, parsed.retransmits, parsed.lost_percent), (2.0, Some(7), None));
        assert_eq!((parsed.sent_bits_per_s, parsed.received_bits_per_s), (2e9, 1.9e9));
        let udp = br#"{"end":{"sum":{"seconds":2.0,"bits_per_second":1e9,"lost_percent":25.0}}}"#;
        let parsed = carried(udp).unwrap();
        assert_eq!((parsed.received_bits_per_s, parsed.lost_percent), (7.5e8, Some(25.0)));
    }

    #[test]
    fn errors_are_reported() {
        let busy = br#"{"start":{},"intervals":[],"end":{},"error":"the server is busy"}"#;
        assert_eq!(carried(busy).unwrap_err(), "the server is busy");
        for odd in [&b""[..], b"{}", b"[1]", b"iperf3: error", br#"{"end":{"sum":{"seconds":-1}}}"#]
        {
            assert!(carried(odd).is_err(), "{}", String::from_utf8_lossy(odd));
        }
    }
}
