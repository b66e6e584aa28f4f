//! Hardware timestamps of received packets: the NICs that provide them, and their clocks.
//!
//! Input: a root. Output: the devices of its network namespace that timestamp received packets
//! ([`rx_stamping`]), and readings of a NIC's clock relative to the kernel's ([`Phc`]). Nothing here configures
//! a NIC or sets a clock.

mod phc;

pub use phc::{Phc, PhcMethod, PhcReading};

use crate::nics::ioctl::Ioctl;
use crate::{ReadError, Root};
use nearpath_model::IfIndex;
use serde::{Deserialize, Serialize};
use std::io;

/// Names of `enum hwtstamp_rx_filters` (include/uapi/linux/net_tstamp.h), as in `hwstamp_ctl` and `ethtool -T`.
const RX_FILTERS: [&str; 16] = [
    "none",
    "all",
    "some",
    "ptpv1-l4-event",
    "ptpv1-l4-sync",
    "ptpv1-l4-delay-req",
    "ptpv2-l4-event",
    "ptpv2-l4-sync",
    "ptpv2-l4-delay-req",
    "ptpv2-l2-event",
    "ptpv2-l2-sync",
    "ptpv2-l2-delay-req",
    "ptpv2-event",
    "ptpv2-sync",
    "ptpv2-delay-req",
    "ntpall",
];

/// A NIC that timestamps received packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxStamping {
    /// Its name.
    pub nic: String,
    /// Its index.
    pub ifindex: IfIndex,
    /// Which packets: `all`, `ptpv2-event`, …
    pub rx_filter: String,
    /// Number of the clock of the timestamps (`/dev/ptp0`); `None`: not reported by the driver.
    pub phc: Option<u32>,
}

/// The driver's answer for one interface: its `rx_filter`, and its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    rx_filter: u32,
    phc: Option<u32>,
}

/// Whether this machine has any NIC clock.
pub fn has_phc(root: &Root) -> bool {
    root.list("/sys/class/ptp").is_ok_and(|clocks| !clocks.is_empty())
}

/// The devices of the root's network namespace that timestamp received packets, except those that only report
/// the setting of a lower device (VLANs, bonds).
///
/// # Errors
/// The interfaces cannot be listed.
pub fn rx_stamping(root: &Root) -> Result<Vec<RxStamping>, ReadError> {
    let mut found = Vec::new();
    for entry in root.list("/sys/class/net")? {
        let dir = format!("/sys/class/net/{}", entry.name);
        let Ok(answer) = root.answer(&format!("rx-stamping/{}", entry.name), || ask(&entry.name))
        else {
            continue;
        };
        let Some(ifindex) = root.text(&format!("{dir}/ifindex")).ok().and_then(|t| t.parse().ok())
        else {
            continue;
        };
        let is_upper =
            || root.list(&dir).is_ok_and(|all| all.iter().any(|e| e.name.starts_with("lower_")));
        if answer.rx_filter != 0 && !is_upper() {
            let rx_filter = filter_name(answer.rx_filter);
            let ifindex = IfIndex(ifindex);
            found.push(RxStamping { nic: entry.name, ifindex, rx_filter, phc: answer.phc });
        }
    }
    Ok(found)
}

fn filter_name(filter: u32) -> String {
    let name = usize::try_from(filter).ok().and_then(|filter| RX_FILTERS.get(filter));
    name.map_or_else(|| format!("filter {filter}"), |&name| name.to_owned())
}

/// Both for one interface of the calling thread's namespace; the clock only if it timestamps.
fn ask(nic: &str) -> Result<Answer, ReadError> {
    let refused = |what: &str, error: &io::Error| {
        let errno = rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO);
        ReadError::from_errno(&format!("{what} of {nic}"), errno)
    };
    let ioctl = Ioctl::open().map_err(|e| refused("time stamping", &e))?;
    let rx_filter = ioctl.rx_filter(nic).map_err(|e| refused("time stamping", &e))?;
    // An interface without a clock is still reported: its timestamps cannot be converted.
    let phc = (rx_filter != 0).then(|| ioctl.phc_index(nic).ok().flatten()).flatten();
    Ok(Answer { rx_filter, phc })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn interface(tree: &Path, name: &str, index: u32, lower: Option<&str>, answer: Option<Answer>) {
        let dir = tree.join(format!("sys/class/net/{name}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("ifindex"), format!("{index}\n")).unwrap();
        if let Some(lower) = lower {
            fs::create_dir(dir.join(format!("lower_{lower}"))).unwrap();
        }
        if let Some(answer) = answer {
            let answers = tree.join("nearpath/answers");
            fs::create_dir_all(&answers).unwrap();
            let given = serde_json::json!({ "given": answer }).to_string();
            fs::write(
                answers.join(format!("rx-stamping%2F{}.json", name.replace('.', "%2E"))),
                given,
            )
            .unwrap();
        }
    }

    #[test]
    fn timestamping_devices_are_found_and_upper_devices_are_not() {
        let tree = tempfile::tempdir().unwrap();
        let answer = |rx_filter, phc| Some(Answer { rx_filter, phc });
        interface(tree.path(), "eth0", 2, None, answer(1, Some(0)));
        interface(tree.path(), "eth0.100", 3, Some("eth0"), answer(1, Some(0)));
        interface(tree.path(), "eth1", 4, None, answer(0, Some(1)));
        interface(tree.path(), "eth2", 5, None, answer(12, None));
        interface(tree.path(), "lo", 1, None, None);
        let root = Root::tree(tree.path()).unwrap();
        let found = rx_stamping(&root).unwrap();
        let short: Vec<_> = found
            .iter()
            .map(|s| (s.nic.as_str(), s.ifindex.0, s.rx_filter.as_str(), s.phc))
            .collect();
        assert_eq!(short, [("eth0", 2, "all", Some(0)), ("eth2", 5, "ptpv2-event", None)]);
        assert!(!has_phc(&root));
    }

    #[test]
    fn filters_have_the_kernels_names() {
        assert_eq!([0, 1, 15].map(filter_name), ["none", "all", "ntpall"]);
        assert_eq!(filter_name(99), "filter 99");
    }

    #[test]
    fn software_devices_of_this_machine_do_not_timestamp() {
        assert!(!rx_stamping(&Root::live()).unwrap().iter().any(|s| s.nic == "lo"));
    }
}
