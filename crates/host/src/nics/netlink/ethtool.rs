//! NIC data from ethtool's netlink family: one dump per kind (since 5.6).
//!
//! Message and attribute numbers are those of include/uapi/linux/ethtool_netlink.h.

use super::attributes::{attribute, attributes, find, nested, text_of, u8_of, u32_of, u32s_of};
use super::{Connection, generic, generic_body};
use crate::nics::per_nic::PerNic;
use crate::nics::rss;
use nearpath_model::{Channels, IfIndex, Rings, Rss};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Name of the generic netlink family.
pub(crate) const FAMILY: &str = "ethtool";

const STRSET_GET: u8 = 1;
pub(crate) const FEATURES_GET: u8 = 11;
pub(crate) const RINGS_GET: u8 = 15;
pub(crate) const CHANNELS_GET: u8 = 17;
pub(crate) const COALESCE_GET: u8 = 19;
const RSS_GET: u8 = 38;

/// In every request and reply, the nested attribute that identifies the interface.
pub(crate) const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;
pub(crate) const HEADER_DEV_NAME: u16 = 2;
pub(crate) const HEADER_FLAGS: u16 = 3;
pub(crate) const COMPACT_BITSETS: u32 = 1;

/// `ETH_SS_FEATURES`, include/uapi/linux/ethtool.h.
const FEATURE_NAMES: u32 = 4;
/// Upper bound of feature names: the kernel has some 70.
const MAX_FEATURES: usize = 1024;

/// Names of `ETHTOOL_A_COALESCE_*` from number 2, as in Documentation/netlink/specs/ethtool.yaml.
pub(crate) const COALESCE_NAMES: [&str; 27] = [
    "rx-usecs",
    "rx-max-frames",
    "rx-usecs-irq",
    "rx-max-frames-irq",
    "tx-usecs",
    "tx-max-frames",
    "tx-usecs-irq",
    "tx-max-frames-irq",
    "stats-block-usecs",
    "use-adaptive-rx",
    "use-adaptive-tx",
    "pkt-rate-low",
    "rx-usecs-low",
    "rx-max-frames-low",
    "tx-usecs-low",
    "tx-max-frames-low",
    "pkt-rate-high",
    "rx-usecs-high",
    "rx-max-frames-high",
    "tx-usecs-high",
    "tx-max-frames-high",
    "rate-sample-interval",
    "use-cqe-mode-tx",
    "use-cqe-mode-rx",
    "tx-aggr-max-bytes",
    "tx-aggr-max-frames",
    "tx-aggr-time-usecs",
];

/// A connection to the family.
pub(crate) struct Ethtool<'a> {
    /// A generic netlink socket.
    pub connection: &'a mut Connection,
    /// The family's id.
    pub family: u16,
}

impl Ethtool<'_> {
    /// `ethtool -l` of all interfaces.
    ///
    /// # Errors
    /// The kernel does not answer at all.
    pub(crate) fn channels(&mut self, all: &[IfIndex]) -> io::Result<PerNic<Channels>> {
        self.each(CHANNELS_GET, 0, all, channels)
    }

    /// `ethtool -g` of all interfaces.
    ///
    /// # Errors
    /// The kernel does not answer at all.
    pub(crate) fn rings(&mut self, all: &[IfIndex]) -> io::Result<PerNic<Rings>> {
        self.each(RINGS_GET, 0, all, rings)
    }

    /// `ethtool -c` of all interfaces.
    ///
    /// # Errors
    /// The kernel does not answer at all.
    pub(crate) fn coalesce(
        &mut self,
        all: &[IfIndex],
    ) -> io::Result<PerNic<BTreeMap<String, u64>>> {
        self.each(COALESCE_GET, 0, all, coalesce)
    }

    /// `ethtool -k` of all interfaces.
    ///
    /// # Errors
    /// The kernel does not answer at all.
    pub(crate) fn offloads(
        &mut self,
        all: &[IfIndex],
    ) -> io::Result<PerNic<BTreeMap<String, bool>>> {
        let names = self.feature_names()?;
        self.each(FEATURES_GET, COMPACT_BITSETS, all, |body| features(body, &names))
    }

    /// The features that `ethtool -k` marks as fixed, of all interfaces.
    ///
    /// # Errors
    /// The kernel does not answer at all.
    pub(crate) fn fixed_offloads(
        &mut self,
        all: &[IfIndex],
    ) -> io::Result<PerNic<BTreeSet<String>>> {
        let names = self.feature_names()?;
        self.each(FEATURES_GET, COMPACT_BITSETS, all, |body| {
            let all = changeable(body, &names)?.into_iter();
            Some(all.filter(|(_, changeable)| !changeable).map(|(name, _)| name).collect())
        })
    }

    /// `ethtool -x` of all interfaces, by a dump (since 6.12).
    ///
    /// # Errors
    /// The kernel has no such dump, or an answer does not fit in it.
    pub(crate) fn rss(&mut self) -> io::Result<PerNic<Rss>> {
        let mut all = PerNic::default();
        let request = generic(RSS_GET, &header(None, 0));
        self.connection.dump(self.family, &request, |payload| {
            let body = generic_body(payload);
            all.answers.extend(interface(body).zip(rss(body)));
        })?;
        Ok(all)
    }

    /// Names of the features, by the number of their bit.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn feature_names(&mut self) -> io::Result<Vec<String>> {
        let set = attribute(1, &FEATURE_NAMES.to_ne_bytes());
        let sets = nested(2, &[nested(1, &[set])]);
        let request = generic(STRSET_GET, &[header(None, 0), sets].concat());
        let mut names = Vec::new();
        self.connection.ask(self.family, &request, |payload| {
            names = feature_names(generic_body(payload));
        })?;
        Ok(names)
    }

    /// Dumps one kind of fact.
    ///
    /// The kernel omits interfaces whose driver does not support it (`ethnl_default_dump_one`,
    /// net/ethtool/netlink.c), but any other error of a driver ends the dump: the others are then queried
    /// individually.
    fn each<T>(
        &mut self,
        command: u8,
        flags: u32,
        all: &[IfIndex],
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<PerNic<T>> {
        let mut known = PerNic::default();
        let request = generic(command, &header(None, flags));
        let dumped = self.connection.dump(self.family, &request, |payload| {
            let body = generic_body(payload);
            known.answers.extend(interface(body).zip(parse(body)));
        });
        let Err(error) = dumped else { return Ok(known) };
        if known.answers.is_empty() && error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            return Err(error);
        }
        for &index in all {
            if known.answers.contains_key(&index) {
                continue;
            }
            let request = generic(command, &header(Some(index), flags));
            let asked = self.connection.ask(self.family, &request, |payload| {
                known.answers.extend(parse(generic_body(payload)).map(|fact| (index, fact)));
            });
            known.refuse(index, asked);
        }
        Ok(known)
    }
}

/// The nested attribute that identifies the interface, or an empty one for a dump.
fn header(index: Option<IfIndex>, flags: u32) -> Vec<u8> {
    let mut inner = Vec::new();
    inner.extend(index.map(|index| attribute(HEADER_DEV_INDEX, &index.0.to_ne_bytes())));
    if flags != 0 {
        inner.push(attribute(HEADER_FLAGS, &flags.to_ne_bytes()));
    }
    nested(HEADER, &inner)
}

/// The interface of a reply.
pub(crate) fn interface(body: &[u8]) -> Option<IfIndex> {
    find(find(body, HEADER)?, HEADER_DEV_INDEX).and_then(u32_of).map(IfIndex)
}

/// `ETHTOOL_A_CHANNELS_*`; numbers that the driver does not report are absent.
pub(crate) fn channels(body: &[u8]) -> Option<Channels> {
    let mut channels = Channels::default();
    for (kind, value) in attributes(body) {
        let field = match kind {
            2 => &mut channels.rx_max,
            3 => &mut channels.tx_max,
            4 => &mut channels.other_max,
            5 => &mut channels.combined_max,
            6 => &mut channels.rx,
            7 => &mut channels.tx,
            8 => &mut channels.other,
            9 => &mut channels.combined,
            _ => continue,
        };
        *field = u32_of(value);
    }
    (channels != Channels::default()).then_some(channels)
}

/// `ETHTOOL_A_RINGS_*`.
pub(crate) fn rings(body: &[u8]) -> Option<Rings> {
    let mut rings = Rings::default();
    for (kind, value) in attributes(body) {
        let field = match kind {
            2 => &mut rings.rx_max,
            5 => &mut rings.tx_max,
            6 => &mut rings.rx,
            9 => &mut rings.tx,
            _ => continue,
        };
        *field = u32_of(value);
    }
    (rings != Rings::default()).then_some(rings)
}

/// `ETHTOOL_A_COALESCE_*`.
pub(crate) fn coalesce(body: &[u8]) -> Option<BTreeMap<String, u64>> {
    let known: BTreeMap<_, _> = attributes(body)
        .filter_map(|(kind, value)| {
            let name = COALESCE_NAMES.get(usize::from(kind).checked_sub(2)?)?;
            let number = u32_of(value).or_else(|| u8_of(value).map(u32::from))?;
            Some(((*name).to_owned(), u64::from(number)))
        })
        .collect();
    (!known.is_empty()).then_some(known)
}

/// `ETHTOOL_A_FEATURES_ACTIVE` as a compact bitset, with the names of its bits.
pub(crate) fn features(body: &[u8], names: &[String]) -> Option<BTreeMap<String, bool>> {
    feature_set(body, 4, names)
}

/// `ETHTOOL_A_FEATURES_HW`: the features that can be changed.
pub(crate) fn changeable(body: &[u8], names: &[String]) -> Option<BTreeMap<String, bool>> {
    feature_set(body, 2, names)
}

/// One of the compact bitsets of a reply, with the names of its bits.
fn feature_set(body: &[u8], set: u16, names: &[String]) -> Option<BTreeMap<String, bool>> {
    let bits: Vec<u32> = u32s_of(find(find(body, set)?, 4)?).collect();
    let is_set = |bit: usize| bits.get(bit / 32).map(|word| word & (1 << (bit % 32)) != 0);
    let named = names.iter().enumerate().filter(|(_, name)| !name.is_empty());
    Some(named.filter_map(|(bit, name)| Some((name.clone(), is_set(bit)?))).collect())
}

/// `ETHTOOL_A_STRSET_*`: the strings of the first set, by their index.
pub(crate) fn feature_names(body: &[u8]) -> Vec<String> {
    let strings = find(body, 2).and_then(|sets| find(sets, 1)).and_then(|set| find(set, 3));
    let mut names = Vec::new();
    for (_, string) in attributes(strings.unwrap_or_default()) {
        let index = find(string, 1).and_then(u32_of).and_then(|index| usize::try_from(index).ok());
        let (Some(index), Some(name)) = (index, find(string, 2)) else { continue };
        if index < MAX_FEATURES {
            names.resize(names.len().max(index + 1), String::new());
            names[index] = text_of(name);
        }
    }
    names
}

/// `ETHTOOL_A_RSS_*` of the NIC's main table; those of other RSS contexts are ignored.
pub(crate) fn rss(body: &[u8]) -> Option<Rss> {
    let context = find(body, 2).and_then(u32_of).unwrap_or(0);
    (context == 0).then(|| {
        rss::from_parts(
            u32s_of(find(body, 4).unwrap_or_default()),
            find(body, 5).unwrap_or_default(),
            find(body, 3).and_then(u32_of).unwrap_or(0),
        )
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(kind: u16, value: u32) -> Vec<u8> {
        attribute(kind, &value.to_ne_bytes())
    }

    fn about(index: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = nested(HEADER, &[number(HEADER_DEV_INDEX, index), attribute(2, b"eth0\0")]);
        body.extend(attributes.concat());
        body
    }

    #[test]
    fn channels_of_a_reply() {
        let body = about(3, &[number(5, 63), number(9, 16), number(8, 1)]);
        assert_eq!(interface(&body), Some(IfIndex(3)));
        let read = channels(&body).unwrap();
        assert_eq!((read.combined_max, read.combined, read.other), (Some(63), Some(16), Some(1)));
        assert_eq!((read.rx, read.rx_max), (None, None));
        assert_eq!(channels(&about(3, &[])), None);
    }

    #[test]
    fn coalescing_has_numbers_and_flags() {
        let body = about(3, &[number(2, 50), attribute(11, &[1]), number(28, 9), number(99, 1)]);
        let read = coalesce(&body).unwrap();
        let expected = [("rx-usecs", 50), ("tx-aggr-time-usecs", 9), ("use-adaptive-rx", 1)];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn features_by_name() {
        let string = |index, name: &[u8]| nested(1, &[number(1, index), attribute(2, name)]);
        let strings =
            [string(0, b"rx-gro\0"), string(33, b"rx-hashing\0"), string(u32::MAX, b"x\0")];
        let set = nested(1, &[number(1, FEATURE_NAMES), nested(3, &strings)]);
        let names = feature_names(&nested(2, &[set]));
        assert_eq!(names.len(), 34);
        let bits: Vec<u8> = [1u32, 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let body = about(3, &[nested(4, &[number(2, 64), attribute(4, &bits)])]);
        let expected = [("rx-gro".to_owned(), true), ("rx-hashing".to_owned(), true)];
        assert_eq!(features(&body, &names), Some(expected.into()));
    }

    #[test]
    fn truncated_replies_never_panic() {
        let bits = attribute(4, &[0xff; 8]);
        let whole =
            about(3, &[number(2, 1), number(3, 1), nested(4, &[bits]), attribute(5, &[1; 40])]);
        for end in 0..=whole.len() {
            let cut = &whole[..end];
            let _ = (interface(cut), channels(cut), rings(cut), coalesce(cut), rss(cut));
            let _ = (features(cut, &["a".to_owned()]), feature_names(cut));
        }
    }
}
