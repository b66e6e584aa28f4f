//! The kernel's answers about NICs other than sysfs: netlink dumps and ioctls, one key for all interfaces,
//! through [`Root::answer`] so that snapshots contain them.
//!
//! Input: a root and its interfaces. Output: the answers by interface, or the reason why there are none.

use super::ioctl::Ioctl;
use super::netlink::{Connection, ethtool, ethtool::Ethtool, netdev, rtnetlink};
use super::per_nic::{PerNic, words};
use crate::{ReadError, Root};
use nearpath_model::{Channels, IfIndex, IrqNumber, NtupleRule, Qdisc, Rings, Rss, counter_kind};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// An answer about all interfaces, or the reason why there is none.
type Answer<T> = Result<T, ReadError>;

/// The reason for a missing fact that other NICs have.
pub(super) const NOT_SUPPORTED: &str = "not supported by the driver";

/// All requests.
#[derive(Debug)]
pub(super) struct Answers {
    pub links: Answer<BTreeMap<IfIndex, rtnetlink::Link>>,
    pub qdiscs: Answer<BTreeMap<IfIndex, Vec<Qdisc>>>,
    pub channels: Answer<PerNic<Channels>>,
    pub rings: Answer<PerNic<Rings>>,
    pub coalesce: Answer<PerNic<BTreeMap<String, u64>>>,
    pub offloads: Answer<PerNic<BTreeMap<String, bool>>>,
    pub fixed_offloads: Answer<PerNic<BTreeSet<String>>>,
    pub rss: Answer<PerNic<Rss>>,
    pub ntuple: Answer<PerNic<Vec<NtupleRule>>>,
    pub drivers: Answer<PerNic<String>>,
    pub driver_counters: Answer<PerNic<BTreeMap<String, u64>>>,
    pub queues: Answer<BTreeMap<IfIndex, netdev::QueueNapi>>,
    pub napi_irqs: Answer<BTreeMap<u32, IrqNumber>>,
}

impl Answers {
    /// Queries the kernel behind a root about its interfaces, given by index and name. The driver's name is
    /// queried only if sysfs does not have it.
    pub(super) fn gather(
        root: &Root,
        nics: &[(IfIndex, &str)],
        driverless: &[(IfIndex, &str)],
    ) -> Self {
        let mut live = Live::default();
        let indices: Vec<_> = nics.iter().map(|(index, _)| *index).collect();
        Self {
            links: ask(root, "rtnetlink/links", || rtnetlink::links(live.route()?)),
            qdiscs: ask(root, "rtnetlink/qdiscs", || rtnetlink::qdiscs(live.route()?)),
            channels: ask(root, "ethtool/channels", || live.ethtool()?.channels(&indices)),
            rings: ask(root, "ethtool/rings", || live.ethtool()?.rings(&indices)),
            coalesce: ask(root, "ethtool/coalesce", || live.ethtool()?.coalesce(&indices)),
            offloads: ask(root, "ethtool/offloads", || live.ethtool()?.offloads(&indices)),
            fixed_offloads: ask(root, "ethtool/fixed-offloads", || {
                live.ethtool()?.fixed_offloads(&indices)
            }),
            rss: ask(root, "ethtool/rss", || live.rss(nics)),
            ntuple: ask(root, "ethtool/ntuple", || by_ioctl(nics, Ioctl::ntuple)),
            drivers: ask(root, "ethtool/drivers", || by_ioctl(driverless, Ioctl::driver)),
            driver_counters: ask(root, "ethtool/driver-counters", || {
                let wanted = |name: &str| counter_kind(name).is_some();
                by_ioctl(nics, |ioctl, name| ioctl.statistics(name, wanted))
            }),
            queues: ask(root, "netdev/queues", || {
                let (connection, family) = live.family(netdev::FAMILY)?;
                netdev::queues(connection, family)
            }),
            napi_irqs: ask(root, "netdev/napi-irqs", || {
                let (connection, family) = live.family(netdev::FAMILY)?;
                netdev::napi_irqs(connection, family)
            }),
        }
    }
}

/// The fact of one interface, or the reason why it is unknown.
pub(super) fn fact<T>(answer: &mut Answer<PerNic<T>>, index: IfIndex) -> Result<T, String> {
    let per_nic = answer.as_mut().map_err(|error| error.reason.clone())?;
    match per_nic.answers.remove(&index) {
        Some(fact) => Ok(fact),
        None => Err(match per_nic.refused.get(&index) {
            Some(refusal) => refusal.clone(),
            None => NOT_SUPPORTED.to_owned(),
        }),
    }
}

/// The entry of one interface in a list of all; `None` if it is not listed.
pub(super) fn listed<T: Default>(
    answer: &mut Answer<BTreeMap<IfIndex, T>>,
    index: IfIndex,
) -> Result<T, String> {
    let all = answer.as_mut().map_err(|error| error.reason.clone())?;
    Ok(all.remove(&index).unwrap_or_default())
}

fn ask<T: Serialize + DeserializeOwned>(
    root: &Root,
    key: &str,
    request: impl FnOnce() -> io::Result<T>,
) -> Answer<T> {
    root.answer(key, || {
        request().map_err(|error| ReadError {
            what: key.to_owned(),
            reason: words(&error),
            absent: error.raw_os_error() == Some(libc::ENOENT),
        })
    })
}

/// One ioctl per interface.
fn by_ioctl<T>(
    nics: &[(IfIndex, &str)],
    request: impl Fn(&Ioctl, &str) -> io::Result<T>,
) -> io::Result<PerNic<T>> {
    let ioctl = Ioctl::open()?;
    let mut all = PerNic::default();
    for (index, name) in nics {
        all.answered(*index, request(&ioctl, name));
    }
    Ok(all)
}

/// The sockets of one reading, opened on first use.
#[derive(Default)]
struct Live {
    route: Option<Connection>,
    generic: Option<Connection>,
    families: BTreeMap<&'static str, u16>,
}

impl Live {
    fn route(&mut self) -> io::Result<&mut Connection> {
        connect(&mut self.route, libc::NETLINK_ROUTE)
    }

    fn family(&mut self, name: &'static str) -> io::Result<(&mut Connection, u16)> {
        let connection = connect(&mut self.generic, libc::NETLINK_GENERIC)?;
        let family = match self.families.get(name) {
            Some(family) => *family,
            None => connection.family(name)?,
        };
        self.families.insert(name, family);
        Ok((connection, family))
    }

    fn ethtool(&mut self) -> io::Result<Ethtool<'_>> {
        let (connection, family) = self.family(ethtool::FAMILY)?;
        Ok(Ethtool { connection, family })
    }

    /// One dump if the kernel supports it, else one ioctl per interface.
    fn rss(&mut self, nics: &[(IfIndex, &str)]) -> io::Result<PerNic<Rss>> {
        if let Ok(all) = self.ethtool().and_then(|mut ethtool| ethtool.rss()) {
            return Ok(all);
        }
        let ioctl = Ioctl::open()?;
        let mut all = PerNic::default();
        for (index, name) in nics {
            match ioctl.rss(name) {
                Ok(rss) => all.answers.extend(rss.map(|rss| (*index, rss))),
                refusal => all.refuse(*index, refusal),
            }
        }
        Ok(all)
    }
}

fn connect(slot: &mut Option<Connection>, protocol: libc::c_int) -> io::Result<&mut Connection> {
    let connection = match slot.take() {
        Some(open) => open,
        None => Connection::open(protocol)?,
    };
    Ok(slot.insert(connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interface_has_a_fact_or_a_reason() {
        let mut all = PerNic::default();
        let refusal = |errno| Err(io::Error::from_raw_os_error(errno));
        all.answered(IfIndex(1), Ok(7));
        all.answered(IfIndex(2), refusal(libc::EOPNOTSUPP));
        all.answered(IfIndex(3), refusal(libc::EPERM));
        let json = serde_json::to_string(&all).unwrap();
        assert!(json.starts_with(r#"{"answers":{"1":7},"refused":{"3":"#), "{json}");
        let mut answer = Ok(serde_json::from_str::<PerNic<u32>>(&json).unwrap());
        assert_eq!(fact(&mut answer, IfIndex(1)), Ok(7));
        assert_eq!(fact(&mut answer, IfIndex(2)).unwrap_err(), "not supported by the driver");
        assert!(fact(&mut answer, IfIndex(3)).unwrap_err().contains("CAP_NET_ADMIN"));
    }
}
