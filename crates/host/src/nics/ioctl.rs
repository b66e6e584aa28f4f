//! ethtool ioctls, for requests that its netlink family does not have: the driver's name, n-tuple rules, and
//! receive-side scaling on kernels before 6.12.
//!
//! Layouts are those of include/uapi/linux/ethtool.h. The socket belongs to the network
//! namespace of the calling thread.

use super::ntuple::{self, FlowSpec};
use super::rss;
use nearpath_model::{NtupleRule, Rss};
use netlink_sys::{Socket, protocols::NETLINK_GENERIC};
use std::collections::BTreeMap;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
const ETHTOOL_GRSSH: u32 = 0x46;
/// From include/uapi/linux/sockios.h: reads which packets a NIC timestamps, without changing it.
const SIOCGHWTSTAMP: u32 = 0x89b1;

/// Upper bound of rules per NIC; the largest tables have 8,192 locations.
const MAX_RULES: usize = 16_384;
/// The string set with the names of a driver's statistics.
const ETH_SS_STATS: u32 = 1;
const STRING_BYTES: usize = 32;
/// Upper bound of statistics per NIC; a large one has some thousands.
const MAX_STATISTICS: usize = 65_536;
/// Offset of `n_stats` in what follows `driver` in `struct ethtool_drvinfo`.
const N_STATS: usize = 144;
/// Bounds for one NIC's indirection table and key.
const MAX_INDIRECTION: usize = 65_536;
const MAX_KEY_BYTES: usize = 1024;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_ts_info`.
#[repr(C)]
struct TimestampingInfo {
    cmd: u32,
    so_timestamping: u32,
    phc_index: i32,
    tx_types: u32,
    tx_reserved: [u32; 3],
    rx_filters: u32,
    rx_reserved: [u32; 3],
}

/// `struct hwtstamp_config` of include/uapi/linux/net_tstamp.h.
#[repr(C)]
struct HwtstampConfig {
    flags: i32,
    tx_type: i32,
    rx_filter: i32,
}

/// `struct ethtool_rxnfc` with room for `rule_locs`.
#[repr(C)]
#[derive(Debug)]
pub struct Rxnfc<const LOCATIONS: usize> {
    /// The command.
    pub cmd: u32,
    /// Used only by requests about hashing.
    pub flow_type: u32,
    /// Size of the NIC's table in the answer to a request for the number of rules.
    pub data: u64,
    /// The rule.
    pub spec: FlowSpec,
    /// `rule_cnt` or `rss_context`.
    pub count: u32,
    /// `rule_locs`.
    pub locations: [u32; LOCATIONS],
}

/// `struct ethtool_rxfh`, before its table and key.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Rxfh {
    /// The command.
    pub cmd: u32,
    /// 0: the NIC itself.
    pub rss_context: u32,
    /// Number of table entries.
    pub indir_size: u32,
    /// Key length in bytes.
    pub key_size: u32,
    /// The hash function, as a bit.
    pub hfunc: u8,
    /// `input_xfrm` (since 6.8), followed by reserved bytes.
    pub reserved8: [u8; 3],
    /// Must be 0.
    pub reserved32: u32,
}

const _: () = assert!(size_of::<DriverInfo>() == 196);
const _: () = assert!(size_of::<Rxfh>() == 24);
const _: () = assert!(size_of::<TimestampingInfo>() == 44);
const _: () = assert!(size_of::<HwtstampConfig>() == 12);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    offset_of!(Rxnfc<1>, spec) == 16
        && offset_of!(Rxnfc<1>, count) == 184
        && offset_of!(Rxnfc<1>, locations) == 188
        && size_of::<Rxnfc<1>>() == 192
);

/// A socket for requests.
pub struct Ioctl {
    socket: Socket,
}

impl Ioctl {
    /// Opens a socket in the thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open() -> io::Result<Self> {
        // Any socket works; ethtool itself uses a netlink socket if there is no IPv4.
        Ok(Self { socket: Socket::new(NETLINK_GENERIC)? })
    }

    /// `ethtool -i`: the driver's name.
    ///
    /// # Errors
    /// EOPNOTSUPP: not supported by the driver.
    pub(crate) fn driver(&self, name: &str) -> io::Result<String> {
        let mut info = DriverInfo { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        // SAFETY: the kernel writes one `struct ethtool_drvinfo`, whose size is asserted above.
        unsafe { self.ask(name, &raw mut info) }?;
        Ok(super::netlink::attributes::text_of(&info.driver))
    }

    /// `hwstamp_ctl -i`: which received packets the NIC timestamps (`enum hwtstamp_rx_filters`).
    ///
    /// # Errors
    /// EOPNOTSUPP: the driver does not timestamp.
    pub(crate) fn rx_filter(&self, name: &str) -> io::Result<u32> {
        let mut config = HwtstampConfig { flags: 0, tx_type: 0, rx_filter: 0 };
        // SAFETY: the kernel writes one `struct hwtstamp_config`, whose size is asserted above.
        unsafe { self.request(SIOCGHWTSTAMP, name, &raw mut config) }?;
        Ok(u32::try_from(config.rx_filter).unwrap_or(0))
    }

    /// `ethtool -T`: the number of the NIC's clock; `None` if it has none.
    ///
    /// # Errors
    /// The error of the kernel or the driver.
    pub(crate) fn phc_index(&self, name: &str) -> io::Result<Option<u32>> {
        let mut info = TimestampingInfo {
            cmd: ETHTOOL_GET_TS_INFO,
            so_timestamping: 0,
            phc_index: -1,
            tx_types: 0,
            tx_reserved: [0; 3],
            rx_filters: 0,
            rx_reserved: [0; 3],
        };
        // SAFETY: the kernel writes one `struct ethtool_ts_info`, whose size is asserted above.
        unsafe { self.ask(name, &raw mut info) }?;
        Ok(u32::try_from(info.phc_index).ok())
    }

    /// `ethtool -S`: the requested counters of the driver.
    ///
    /// # Errors
    /// EOPNOTSUPP: the driver has none. E2BIG: more than the limit.
    pub(crate) fn statistics(
        &self,
        name: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> io::Result<BTreeMap<String, u64>> {
        let mut info = DriverInfo { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        // SAFETY: as in `driver`.
        unsafe { self.ask(name, &raw mut info) }?;
        let count = info.rest.get(N_STATS..).and_then(|rest| rest.first_chunk().copied());
        let count = u32::from_ne_bytes(count.unwrap_or_default()) as usize;
        if count == 0 {
            return Ok(BTreeMap::new());
        }
        if count > MAX_STATISTICS {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        // The kernel writes as many values as exist at the time of the call, without a bound: the buffer has
        // room for the maximum, in case the driver creates queues in the meantime. Untouched pages cost
        // nothing.
        let mut names = vec![0u64; 2 + MAX_STATISTICS * STRING_BYTES / 8];
        names[0] = u64::from_ne_bytes(two_words(ETHTOOL_GSTRINGS, ETH_SS_STATS));
        // SAFETY: `struct ethtool_gstrings` is 12 bytes and followed by the strings.
        unsafe { self.ask(name, names.as_mut_ptr()) }?;
        let mut values = vec![0u64; 1 + MAX_STATISTICS];
        values[0] =
            u64::from_ne_bytes(two_words(ETHTOOL_GSTATS, u32::try_from(count).unwrap_or(0)));
        // SAFETY: `struct ethtool_stats` is 8 bytes and followed by the values.
        unsafe { self.ask(name, values.as_mut_ptr()) }?;
        let words = names.iter().take(2 + count * STRING_BYTES / 8);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let strings = bytes.get(12..).unwrap_or_default().chunks_exact(STRING_BYTES);
        let named = strings.zip(values.iter().skip(1)).take(count);
        Ok(named
            .map(|(string, value)| (super::netlink::attributes::text_of(string), *value))
            .filter(|(name, _)| wanted(name))
            .collect())
    }

    /// `ethtool -n`: all n-tuple rules.
    ///
    /// # Errors
    /// EOPNOTSUPP: not supported by the NIC. E2BIG: more than the limit.
    pub(crate) fn ntuple(&self, name: &str) -> io::Result<Vec<NtupleRule>> {
        let mut rules = Vec::new();
        for location in self.rule_locations(name)? {
            match self.rule_at(name, location) {
                Ok((spec, context)) => rules.push(ntuple::rule(&spec, context)),
                // It was deleted in the meantime.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(rules)
    }

    /// The locations of the NIC's table that have a rule.
    ///
    /// # Errors
    /// As [`Ioctl::ntuple`].
    pub fn rule_locations(&self, name: &str) -> io::Result<Vec<u32>> {
        let mut known = rxnfc::<1>(ETHTOOL_GRXCLSRLCNT);
        // SAFETY: for this command the kernel writes one `struct ethtool_rxnfc`.
        unsafe { self.ask(name, &raw mut *known) }?;
        if known.count == 0 {
            return Ok(Vec::new());
        }
        if usize::try_from(known.count).is_ok_and(|count| count > MAX_RULES) {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut list = rxnfc::<MAX_RULES>(ETHTOOL_GRXCLSRLALL);
        list.count = known.count;
        // SAFETY: the kernel writes the structure and at most `count` locations after it, and
        // there is room for `MAX_RULES`, which `count` does not exceed.
        unsafe { self.ask(name, &raw mut *list) }?;
        let count = usize::try_from(list.count).unwrap_or(0).min(MAX_RULES);
        Ok(list.locations.iter().take(count).copied().collect())
    }

    /// The rule at a location, and its RSS context.
    ///
    /// # Errors
    /// ENOENT, and for some drivers EINVAL: no rule there.
    pub fn rule_at(&self, name: &str, location: u32) -> io::Result<(FlowSpec, u32)> {
        let mut one = rxnfc::<1>(ETHTOOL_GRXCLSRULE);
        one.spec.location = location;
        // SAFETY: for this command the kernel writes one `struct ethtool_rxnfc`.
        unsafe { self.ask(name, &raw mut *one) }?;
        Ok((one.spec.clone(), one.count))
    }

    /// `ethtool -x`: indirection table and hash key; `None` if the NIC has neither.
    ///
    /// # Errors
    /// EOPNOTSUPP: no receive-side scaling. E2BIG: the table is longer than the limit.
    pub fn rss(&self, name: &str) -> io::Result<Option<Rss>> {
        let mut sizes = self.rss_sizes(name)?;
        sizes.cmd = ETHTOOL_GRSSH;
        let (entries, key) = (sizes.indir_size as usize, sizes.key_size as usize);
        if entries > MAX_INDIRECTION || key > MAX_KEY_BYTES {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let words = size_of::<Rxfh>() / 4;
        let mut buffer = vec![0u32; words + entries + key.div_ceil(4)];
        // SAFETY: the buffer is aligned for the structure and longer than it.
        unsafe { buffer.as_mut_ptr().cast::<Rxfh>().write(sizes) };
        // SAFETY: the kernel writes the structure, `entries` words and `key` bytes, for which the buffer has
        // room; if the driver's sizes changed in the meantime it fails with EINVAL.
        unsafe { self.ask(name, buffer.as_mut_ptr()) }?;
        let (table, key_words) = buffer[words..].split_at(entries);
        let bytes: Vec<u8> =
            key_words.iter().flat_map(|word| word.to_ne_bytes()).take(key).collect();
        // SAFETY: as above; the kernel filled the structure.
        let filled = unsafe { buffer.as_ptr().cast::<Rxfh>().read() };
        Ok(rss::from_parts(table.iter().copied(), &bytes, u32::from(filled.hfunc)))
    }

    /// Length of the table and the key, and the hash function.
    ///
    /// # Errors
    /// EOPNOTSUPP: no receive-side scaling.
    pub fn rss_sizes(&self, name: &str) -> io::Result<Rxfh> {
        let mut sizes = Rxfh {
            cmd: ETHTOOL_GRSSH,
            rss_context: 0,
            indir_size: 0,
            key_size: 0,
            hfunc: 0,
            reserved8: [0; 3],
            reserved32: 0,
        };
        // SAFETY: with sizes of 0 the kernel writes the structure without table and key.
        unsafe { self.ask(name, &raw mut sizes) }?;
        Ok(sizes)
    }

    /// `ioctl(SIOCETHTOOL)`.
    ///
    /// # Errors
    /// The error of the kernel or the driver.
    ///
    /// # Safety
    /// `request` starts with the command, and has room for everything that the kernel writes.
    pub unsafe fn ask<T>(&self, name: &str, request: *mut T) -> io::Result<()> {
        // SAFETY: guaranteed by the caller for `request`.
        unsafe { self.request(libc::SIOCETHTOOL as u32, name, request) }
    }

    /// `ioctl` with a `struct ifreq` that points to `data`.
    ///
    /// # Safety
    /// `data` has room for everything that the kernel writes for this request.
    unsafe fn request<T>(&self, request: u32, name: &str, data: *mut T) -> io::Result<()> {
        // SAFETY: all zero bytes are a valid `ifreq`.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= ifreq.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in ifreq.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        ifreq.ifr_ifru.ifru_data = data.cast();
        // SAFETY: `ifreq` lives through the call; the caller guarantees `data`.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), request as _, &raw mut ifreq) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The bytes of two adjacent fields.
fn two_words(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

/// An empty request about n-tuple rules, on the heap because it may be long.
pub fn rxnfc<const LOCATIONS: usize>(cmd: u32) -> Box<Rxnfc<LOCATIONS>> {
    Box::new(Rxnfc {
        cmd,
        flow_type: 0,
        data: 0,
        spec: FlowSpec::default(),
        count: 0,
        locations: [0; LOCATIONS],
    })
}
