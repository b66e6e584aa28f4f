//! Receive-side scaling: the indirection table and the hash key (`ethtool -X`).
//!
//! Input: tables in ethtool's syntax (`equal 4`, `weight 1 3`) or entry by entry (`table 0 1 1 …`), and keys (`6d:5a:…`). The
//! kernel's default table (queue = entry modulo queues) is set by requesting the default, so that the kernel keeps
//! regenerating it when the number of channels changes (`IFF_RXFH_CONFIGURED`, net/ethtool/rss.c).

use super::{NicSetting, failure};
use crate::TuneError;
use crate::setting::Setting;
use nearpath_host::ethtool::{Device, Rxfh, attribute, rxnfc};
use nearpath_model::Rss;
use std::cell::Cell;
use std::io;

/// Kernel 6.17 and later.
const RSS_SET: u8 = 48;
/// `ETHTOOL_A_RSS_INDIR` and `_HKEY` (include/uapi/linux/ethtool_netlink.h).
const INDIR: u16 = 4;
const HKEY: u16 = 5;
const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_SRSSH: u32 = 0x47;
/// `ETH_RXFH_INDIR_NO_CHANGE` (include/uapi/linux/ethtool.h).
const INDIR_NO_CHANGE: u32 = u32::MAX;

/// Entries of a table, at most, and bytes of a key.
const MAX_ENTRIES: usize = 65_536;
const MAX_KEY_BYTES: usize = 1024;
/// An attribute has at most 65,535 bytes with its header.
const MAX_ATTRIBUTE_ENTRIES: usize = 16_000;

/// A table in text form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Table {
    /// The first queues in rotation.
    Equal(u32),
    /// One run of entries for each queue, as long as its weight.
    Weight(Vec<u32>),
    /// Each entry's queue.
    Entries(Vec<u32>),
}

impl Table {
    /// A table from its text.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = |text: &str| -> Option<Vec<u32>> {
            let digits = |word: &str| {
                let plain = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
                plain.then(|| word.parse().ok()).flatten()
            };
            let all: Option<Vec<u32>> = text.split(' ').take(MAX_ENTRIES + 1).map(digits).collect();
            all.filter(|all| all.len() <= MAX_ENTRIES)
        };
        let (kind, rest) = text.split_once(' ')?;
        match kind {
            "equal" => match numbers(rest)?[..] {
                [queues] if queues > 0 => Some(Self::Equal(queues)),
                _ => None,
            },
            "weight" => {
                Some(Self::Weight(numbers(rest)?)).filter(|_| rest.bytes().any(|b| b > b'0'))
            }
            "table" => Some(Self::Entries(numbers(rest)?)),
            _ => None,
        }
    }

    /// The shortest text for these entries.
    pub fn of(entries: Vec<u32>) -> Self {
        let queues = entries.iter().max().map_or(1, |most| most.saturating_add(1));
        let equal = Self::Equal(queues);
        if equal.entries(entries.len()).as_ref() == Some(&entries) {
            return equal;
        }
        let mut weights = vec![0u32; (queues as usize).min(MAX_ENTRIES)];
        for queue in &entries {
            if let Some(weight) = weights.get_mut(*queue as usize) {
                *weight += 1;
            }
        }
        let all = weights.iter().copied().fold(0, gcd).max(1);
        let reduced = Self::Weight(weights.iter().map(|weight| weight / all).collect());
        for table in [reduced, Self::Weight(weights)] {
            if table.entries(entries.len()).as_ref() == Some(&entries) {
                return table;
            }
        }
        Self::Entries(entries)
    }

    /// The queue of each entry of a table of this size, as ethtool fills it (`fill_indir_table`).
    pub fn entries(&self, size: usize) -> Option<Vec<u32>> {
        let number = |i: usize| u32::try_from(i).ok();
        match self {
            Self::Equal(queues) => (0..size).map(|i| number(i)?.checked_rem(*queues)).collect(),
            Self::Entries(entries) => (entries.len() == size).then(|| entries.clone()),
            Self::Weight(weights) => {
                let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
                // More queues than entries: some would get none.
                if sum == 0 || sum > size as u64 {
                    return None;
                }
                let (mut entries, mut partial) = (Vec::with_capacity(size), 0);
                for (queue, weight) in weights.iter().enumerate() {
                    partial += u64::from(*weight);
                    while (entries.len() as u64) < size as u64 * partial / sum {
                        entries.push(number(queue)?);
                    }
                }
                Some(entries)
            }
        }
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, numbers) = match self {
            Self::Equal(queues) => return write!(f, "equal {queues}"),
            Self::Weight(weights) => ("weight", weights),
            Self::Entries(entries) => ("table", entries),
        };
        f.write_str(kind)?;
        numbers.iter().try_for_each(|number| write!(f, " {number}"))
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The indirection table of an interface.
pub(super) struct TableSetting<'a> {
    target: &'a NicSetting,
    /// Entries of the NIC's table, once it is read.
    size: Cell<Option<usize>>,
}

impl<'a> TableSetting<'a> {
    pub fn new(target: &'a NicSetting) -> Self {
        Self { target, size: Cell::new(None) }
    }

    fn entries(&self, text: &str) -> Option<Vec<u32>> {
        Table::parse(text)?.entries(self.size.get()?)
    }
}

impl Setting for TableSetting<'_> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        Table::parse(value).map(drop).ok_or_else(|| {
            TuneError::Refused(format!("{}: {value:?} is not an indirection table", self.target))
        })
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let Some(rss) = rss(self.target)? else { return Ok(None) };
        let entries: Vec<u32> = rss.indirection.iter().map(|queue| queue.0).collect();
        if entries.is_empty() {
            return Err(none(self.target, "the NIC has no indirection table"));
        }
        self.size.set(Some(entries.len()));
        Ok(Some(Table::of(entries).to_string()))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        if self.size.get().is_none() {
            self.read()?;
        }
        let step = || format!("setting {} to {value}", self.target);
        let Some(entries) = self.entries(value) else {
            let size = self.size.get().unwrap_or(0);
            return Err(TuneError::Refused(format!(
                "{}: {value:?} does not fill the NIC's table of {size} entries",
                self.target
            )));
        };
        let mut device = failure::open(self.target, "setting")?;
        let is_default = rx_rings(&device).is_ok_and(|rings| {
            Table::Equal(rings).entries(entries.len()).as_ref() == Some(&entries)
        });
        let table: &[u32] = if is_default { &[] } else { &entries };
        let bytes: Vec<u8> = table.iter().flat_map(|queue| queue.to_ne_bytes()).collect();
        set(&mut device, attribute_of(INDIR, &bytes), |device| {
            ioctl(device, u32::try_from(table.len()).unwrap_or(0), table, &[])
        })
        .map_err(|error| failure::refusal(step(), &error, device.words()))
    }

    fn same(&self, a: &str, b: &str) -> bool {
        match (self.entries(a), self.entries(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        }
    }
}

/// The hash key of an interface.
pub(super) struct KeySetting<'a> {
    pub target: &'a NicSetting,
}

impl Setting for KeySetting<'_> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        key_bytes(value).map(drop).ok_or_else(|| {
            TuneError::Refused(format!("{}: {value:?} is not a key such as 6d:5a:56", self.target))
        })
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let Some(rss) = rss(self.target)? else { return Ok(None) };
        rss.key
            .map(Some)
            .ok_or_else(|| none(self.target, "the driver does not report its hash key"))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        let key = key_bytes(value).unwrap_or_default();
        let mut device = failure::open(self.target, "setting")?;
        set(&mut device, attribute_of(HKEY, &key), |device| {
            ioctl(device, INDIR_NO_CHANGE, &[], &key)
        })
        .map_err(|error| {
            let step = format!("setting {} to {value}", self.target);
            failure::refusal(step, &error, device.words())
        })
    }

    fn same(&self, a: &str, b: &str) -> bool {
        match (key_bytes(a), key_bytes(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        }
    }
}

/// The bytes of a key in hexadecimal with colons.
pub(crate) fn key_bytes(text: &str) -> Option<Vec<u8>> {
    if text.len() > 3 * MAX_KEY_BYTES {
        return None;
    }
    let byte = |part: &str| {
        let plain = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    text.split(':').map(byte).collect()
}

fn rss(target: &NicSetting) -> Result<Option<Rss>, TuneError> {
    let mut device = failure::open(target, "reading")?;
    match failure::answer(target, device.rss())? {
        None => Ok(None),
        Some(Some(rss)) => Ok(Some(rss)),
        Some(None) => Err(none(target, "the NIC has no receive-side scaling")),
    }
}

fn none(target: &NicSetting, reason: &str) -> TuneError {
    TuneError::Unsupported { step: format!("reading {target}"), reason: reason.to_owned() }
}

/// The number of receive queues that the table may use.
fn rx_rings(device: &Device) -> io::Result<u32> {
    let mut request = rxnfc::<1>(ETHTOOL_GRXRINGS);
    // SAFETY: for this command the kernel writes at most one `struct ethtool_rxnfc`.
    unsafe { device.ioctl().ask(device.name(), &raw mut *request) }?;
    u32::try_from(request.data).map_err(io::Error::other)
}

/// The attribute, if it is not too long for one.
fn attribute_of(kind: u16, value: &[u8]) -> Option<Vec<u8>> {
    (value.len() <= 4 * MAX_ATTRIBUTE_ENTRIES).then(|| attribute(kind, value))
}

/// Sets by netlink, or by ioctl where the kernel has no such request.
fn set(
    device: &mut Device,
    attribute: Option<Vec<u8>>,
    by_ioctl: impl Fn(&Device) -> io::Result<()>,
) -> io::Result<()> {
    let Some(attribute) = attribute else { return by_ioctl(device) };
    match device.send(RSS_SET, &[attribute]) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => by_ioctl(device),
        done => done,
    }
}

/// `ETHTOOL_SRSSH`: sets a table of this size (0: the kernel's own) and a key, if it is not empty.
fn ioctl(device: &Device, indir_size: u32, table: &[u32], key: &[u8]) -> io::Result<()> {
    let now = device.ioctl().rss_sizes(device.name())?;
    let request = Rxfh {
        cmd: ETHTOOL_SRSSH,
        indir_size,
        key_size: u32::try_from(key.len()).map_err(io::Error::other)?,
        // The hash function is unchanged. The first byte, used by later kernels, is passed back as read.
        hfunc: 0,
        ..now
    };
    let words = size_of::<Rxfh>() / 4;
    let mut buffer = vec![0u32; words + table.len() + key.len().div_ceil(4)];
    for (to, from) in buffer.iter_mut().skip(words).zip(table) {
        *to = *from;
    }
    for (to, bytes) in buffer.iter_mut().skip(words + table.len()).zip(key.chunks(4)) {
        let mut word = [0; 4];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        *to = u32::from_ne_bytes(word);
    }
    // SAFETY: the buffer is aligned for the structure and longer than it.
    unsafe { buffer.as_mut_ptr().cast::<Rxfh>().write(request) };
    // SAFETY: the kernel reads the structure, the table and the key, and writes only the structure.
    unsafe { device.ioctl().ask(device.name(), buffer.as_mut_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn entries(text: &str, size: usize) -> Option<Vec<u32>> {
        Table::parse(text).unwrap().entries(size)
    }

    #[test]
    fn tables_are_filled_as_ethtool_fills_them() {
        assert_eq!(entries("equal 3", 8).unwrap(), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(entries("weight 1 3", 8).unwrap(), [0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(entries("weight 0 1 0 1", 4).unwrap(), [1, 1, 3, 3]);
        assert_eq!(entries("weight 2 1", 4).unwrap(), [0, 0, 1, 1]);
        assert_eq!(entries("table 1 1 0", 3).unwrap(), [1, 1, 0]);
        assert_eq!(entries("table 1 1 0", 4), None);
        assert_eq!(entries("weight 5 5", 4), None);
        for bad in
            ["", "equal", "equal 0", "equal 1 2", "weight 0 0", "weight +1", "table x", "x 1"]
        {
            assert_eq!(Table::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_table_has_the_shortest_text() {
        let shortest = |entries: &[u32]| Table::of(entries.to_vec()).to_string();
        assert_eq!(shortest(&[0, 1, 0, 1]), "equal 2");
        assert_eq!(shortest(&[0, 0, 1, 1, 1, 1, 1, 1]), "weight 1 3");
        assert_eq!(shortest(&[1, 1, 3, 3]), "weight 0 1 0 1");
        assert_eq!(shortest(&[1, 0, 0, 1]), "table 1 0 0 1");
    }

    #[test]
    fn keys_are_bytes() {
        assert_eq!(key_bytes("6d:5A"), Some(vec![0x6d, 0x5a]));
        for bad in ["", "6d:", "6d5a", "6:5", "+6:5a", "zz"] {
            assert_eq!(key_bytes(bad), None, "{bad}");
        }
    }

    proptest! {
        /// Any table round-trips through its text.
        #[test]
        fn tables_are_kept_exactly(table in vec(0u32..9, 1..80)) {
            let text = Table::of(table.clone()).to_string();
            prop_assert_eq!(Table::parse(&text).unwrap().entries(table.len()), Some(table));
        }

        #[test]
        fn any_text_is_refused_or_parsed(text in "(equal|weight|table|) ?[0-9 :+-]{0,30}") {
            if let Some(table) = Table::parse(&text) {
                prop_assert_eq!(Table::parse(&table.to_string()), Some(table.clone()));
                let _ = table.entries(128);
            }
        }
    }
}
