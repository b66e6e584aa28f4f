//! `/proc/net/dev` (net/core/net-procfs.c, `dev_seq_printf_stats`): two header lines, then a line for each
//! interface of the network namespace:
//!
//! ```text
//! eth0: bytes packets errs drop fifo frame compressed multicast   bytes packets errs drop fifo colls carrier compressed
//! ```
//! The kernel adds rx_missed_errors to drop.

use crate::cpu_table::Malformed;
use crate::{ReadError, Root};
use nearpath_model::DeviceCounts;

const PATH: &str = "/proc/net/dev";
/// Maximum number of interfaces read.
const MOST: usize = 65_536;
/// Columns per interface.
const COLUMNS: usize = 16;

/// The counters of all interfaces of the network namespace.
///
/// # Errors
/// The file cannot be read, or is malformed.
pub fn read_device_counts(root: &Root) -> Result<Vec<DeviceCounts>, ReadError> {
    let bytes = root.read(PATH)?;
    parse_net_dev(&bytes).map_err(|reason| ReadError::new(PATH, &reason.to_string()))
}

/// Parses `/proc/net/dev`.
///
/// # Errors
/// An interface line without 16 numbers.
pub fn parse_net_dev(bytes: &[u8]) -> Result<Vec<DeviceCounts>, Malformed> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().skip(2).filter(|line| !line.trim().is_empty()).take(MOST).map(device).collect()
}

/// A name may contain a colon, the numbers do not.
fn device(line: &str) -> Result<DeviceCounts, Malformed> {
    let malformed = || Malformed("not an interface line".to_owned());
    let (name, numbers) = line.rsplit_once(':').ok_or_else(malformed)?;
    let numbers: Vec<u64> =
        numbers.split_ascii_whitespace().map_while(|number| number.parse().ok()).collect();
    let &[
        _,
        rx_packets,
        rx_errors,
        rx_dropped,
        _,
        _,
        _,
        _,
        _,
        tx_packets,
        tx_errors,
        tx_dropped,
        ..,
    ] = numbers.as_slice()
    else {
        return Err(malformed());
    };
    if numbers.len() < COLUMNS {
        return Err(malformed());
    }
    let name = name.trim().to_owned();
    Ok(DeviceCounts { name, rx_packets, rx_errors, rx_dropped, tx_packets, tx_errors, tx_dropped })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 100 10 0 0 0 0 0 0 100 10 0 0 0 0 0 0
eth0:1: 200 20 1 2 0 0 0 7 300 30 3 4 0 0 0 0
";

    #[test]
    fn interfaces_are_read_with_their_drops() {
        let devices = parse_net_dev(TEXT.as_bytes()).unwrap();
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["lo", "eth0:1"]);
        let DeviceCounts { rx_packets, rx_errors, rx_dropped, .. } = devices[1];
        assert_eq!((rx_packets, rx_errors, rx_dropped), (20, 1, 2));
        let DeviceCounts { tx_packets, tx_errors, tx_dropped, .. } = devices[1];
        assert_eq!((tx_packets, tx_errors, tx_dropped), (30, 3, 4));
        assert_eq!(parse_net_dev(b"").unwrap(), []);
    }

    #[test]
    fn malformed_lines_are_rejected() {
        for line in ["eth0 1 2 3", "eth0: 1 2 3", "eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 x"] {
            assert!(parse_net_dev(format!("a\nb\n{line}\n").as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let devices = crate::read_device_counts(&Root::live()).unwrap();
        assert!(devices.iter().any(|device| device.name == "lo"));
    }
}
