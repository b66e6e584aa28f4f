//! Hardware time stamps of received packets: which NICs give them, and the clocks that they are times of.
//!
//! In goes a root; out come the devices of its network namespace that stamp what they receive ([`rx_stamping`]), and
//! readings of a NIC's clock beside the kernel's ([`Phc`]). Nothing here sets a NIC or a clock.

mod phc;

pub use phc::{Phc, PhcMethod, PhcReading};

use crate::nics::ioctl::Ioctl;
use crate::{ReadError, Root};
use nearpath_model::IfIndex;
use serde::{Deserialize, Serialize};
use std::io;

/// Names of `enum hwtstamp_rx_filters` (include/uapi/linux/net_tstamp.h), as `hwstamp_ctl` and `ethtool -T` have them.
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

/// A NIC that stamps packets it receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxStamping {
    /// Its name.
    pub nic: String,
    /// Its index.
    pub ifindex: IfIndex,
    /// Which packets: `all`, `ptpv2-event`, …
    pub rx_filter: String,
    /// Number of the clock that the stamps are times of (`/dev/ptp0`); `None`: the driver names none.
    pub phc: Option<u32>,
}

/// What a driver says of one interface: its `rx_filter`, and its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    rx_filter: u32,
    phc: Option<u32>,
}

/// Whether this machine has a clock of a NIC at all.
pub fn has_phc(root: &Root) -> bool {
    root.list("/sys/class/ptp").is_ok_and(|clocks| !clocks.is_empty())
}

/// The devices of the root's network namespace that stamp packets they receive, without those that only pass on what a
/// lower device says (VLANs, bonds).
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

/// Both of one interface of the calling thread's namespace; the clock only where it stamps.
fn ask(nic: &str) -> Result<Answer, ReadError> {
    let refused = |what: &str, error: &io::Error| {
        let errno = rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO);
        ReadError::from_errno(&format!("{what} of {nic}"), errno)
    };
    let ioctl = Ioctl::open().map_err(|e| refused("time stamping", &e))?;
    let rx_filter = ioctl.rx_filter(nic).map_err(|e| refused("time stamping", &e))?;
    // That it has none is an answer of its own: the stamps cannot be converted.
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
    fn devices_that_stamp_are_found_and_those_above_them_are_not() {
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
    fn filters_have_the_names_of_the_kernel() {
        assert_eq!([0, 1, 15].map(filter_name), ["none", "all", "ntpall"]);
        assert_eq!(filter_name(99), "filter 99");
    }

    #[test]
    fn software_devices_of_this_machine_stamp_nothing() {
        assert!(!rx_stamping(&Root::live()).unwrap().iter().any(|s| s.nic == "lo"));
    }
}
