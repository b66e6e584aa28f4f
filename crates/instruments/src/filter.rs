//! Which packets are observed.

use ipnet::IpNet;
use nearpath_model::{Direction, Protocol};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;

/// The numbers of a protocol in IPv4 and in IPv6.
pub(crate) fn protocol_numbers(protocol: Protocol) -> (u32, u32) {
    match protocol {
        Protocol::Tcp => (6, 6),
        Protocol::Udp => (17, 17),
        Protocol::Icmp => (1, 58),
    }
}

/// Maximum number of lower devices (`LOWER_DEVICES_MAX` in `bpf/filter.h`).
pub const LOWER_DEVICES_MAX: usize = 16;
/// Maximum number of nested VLANs (`VLANS_MAX` in `bpf/filter.h`).
pub const VLANS_MAX: usize = 2;

/// A lower device through which packets reach an upper (stacked) device (a bond, a VLAN, a macvlan). The kernel
/// passes them to the protocols on the lower device only, so the upper device's packets are recognized by tags
/// and address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LowerDevice {
    /// Its index, in the same namespace.
    pub ifindex: u32,
    /// VLAN tags of the packets, outermost first; at most [`VLANS_MAX`].
    pub vlans: Vec<u16>,
    /// Their destination address, if it identifies the upper device.
    pub address: Option<[u8; 6]>,
}

/// An interface to observe. Its index is valid only within its namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Inode of its namespace; `None` if unknown, then only the index is compared.
    pub netns: Option<u32>,
    /// Lower devices through which its packets are received; at most [`LOWER_DEVICES_MAX`].
    pub lower: Vec<LowerDevice>,
}

/// Which packets are observed; the default is all of IPv4 and IPv6 in all namespaces.
///
/// All given conditions must hold. A packet is matched at the start of its path, so `device` is the first
/// matching device on which it is seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Receive or transmit; both when `None`.
    pub direction: Option<Direction>,
    /// Only on this interface.
    pub device: Option<Device>,
    /// Only in the network namespace with this inode.
    pub netns: Option<u32>,
    /// Only of this protocol.
    pub protocol: Option<Protocol>,
    /// Only from these addresses.
    pub src: Option<IpNet>,
    /// Only to these addresses.
    pub dst: Option<IpNet>,
    /// Only from or to these addresses.
    pub host: Option<IpNet>,
    /// Only from this port.
    pub sport: Option<u16>,
    /// Only to this port.
    pub dport: Option<u16>,
    /// Only from or to this port.
    pub port: Option<u16>,
    /// Only one flow in this many.
    pub sample: Option<NonZeroU32>,
}

impl Filter {
    /// Whether the headers of packets must be read to match them.
    pub(crate) fn reads_headers(&self) -> bool {
        self.protocol.is_some()
            || self.src.or(self.dst).or(self.host).is_some()
            || self.sport.or(self.dport).or(self.port).is_some()
            || self.sample.is_some_and(|n| n.get() > 1)
    }
}

/// As on the command line: `--proto tcp --port 443`; empty if all packets are observed.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = self.direction.map(|d| match d {
            Direction::Rx => "rx".to_owned(),
            Direction::Tx => "tx".to_owned(),
        });
        let options = [
            ("--direction", direction),
            ("--dev", self.device.as_ref().map(|d| d.name.clone())),
            ("--netns", self.netns.map(|n| n.to_string())),
            ("--proto", self.protocol.map(|p| p.to_string())),
            ("--src", self.src.map(|n| n.to_string())),
            ("--dst", self.dst.map(|n| n.to_string())),
            ("--host", self.host.map(|n| n.to_string())),
            ("--sport", self.sport.map(|n| n.to_string())),
            ("--dport", self.dport.map(|n| n.to_string())),
            ("--port", self.port.map(|n| n.to_string())),
            ("--sample", self.sample.filter(|n| n.get() > 1).map(|n| format!("1/{n}"))),
        ];
        let given: Vec<_> =
            options.into_iter().filter_map(|(o, v)| Some(format!("{o} {}", v?))).collect();
        f.write_str(&given.join(" "))
    }
}

/// An address as the programs compare it: 16 bytes, IPv4 mapped into IPv6, in network order.
pub(crate) fn words(address: IpAddr) -> [u32; 4] {
    let bytes = match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    };
    let word = |i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    [word(0), word(4), word(8), word(12)]
}

/// The mask of a prefix, in the same form.
pub(crate) fn mask_words(net: IpNet) -> [u32; 4] {
    let length = match net {
        IpNet::V4(_) => u32::from(net.prefix_len()) + 96,
        IpNet::V6(_) => u32::from(net.prefix_len()),
    };
    let mask = if length == 0 { 0 } else { u128::MAX << (128 - length) };
    words(IpAddr::V6(mask.into()))
}

/// Defines the function that turns a [`Filter`] into the constants of `bpf/filter.h`, with the types of a
/// skeleton: each skeleton has its own.
macro_rules! constants_of_filter {
    ($types:ident) => {
        fn filter_constants(filter: &$crate::Filter) -> $types::filter {
            let prefix = |net: Option<ipnet::IpNet>| match net {
                Some(net) => $types::prefix {
                    value: $types::address { words: $crate::filter::words(net.network()) },
                    mask: $types::address { words: $crate::filter::mask_words(net) },
                    used: 1,
                },
                None => $types::prefix::default(),
            };
            let (protocol, protocol6) =
                filter.protocol.map_or((0, 0), $crate::filter::protocol_numbers);
            let mut lower = [$types::lower_device::default(); $crate::filter::LOWER_DEVICES_MAX];
            let below = filter.device.iter().flat_map(|device| &device.lower);
            let mut lower_count = 0;
            for (to, from) in lower.iter_mut().zip(below) {
                to.ifindex = from.ifindex;
                for (to, from) in to.vlans.iter_mut().zip(&from.vlans) {
                    *to = *from;
                }
                to.vlan_count = from.vlans.len().min($crate::filter::VLANS_MAX) as u8;
                to.has_address = from.address.is_some().into();
                to.address = from.address.unwrap_or_default();
                lower_count += 1;
            }
            $types::filter {
                directions: match filter.direction {
                    None => 3,
                    Some(::nearpath_model::Direction::Rx) => 1,
                    Some(::nearpath_model::Direction::Tx) => 2,
                },
                ifindex: filter.device.as_ref().map_or(0, |d| d.ifindex),
                lower_count,
                lower,
                netns: filter.netns.or(filter.device.as_ref().and_then(|d| d.netns)).unwrap_or(0),
                protocol,
                protocol6,
                sport: filter.sport.unwrap_or(0).into(),
                dport: filter.dport.unwrap_or(0).into(),
                port: filter.port.unwrap_or(0).into(),
                headers: filter.reads_headers().into(),
                sample: filter.sample.map_or(1, Into::into),
                // The flows in a sample differ between runs.
                seed: std::process::id().wrapping_mul(0x9e37_79b1),
                src: prefix(filter.src),
                dst: prefix(filter.dst),
                host: prefix(filter.host),
            }
        }
    };
}
pub(crate) use constants_of_filter;

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(net: &str, address: &str) -> bool {
        let net: IpNet = net.parse().unwrap();
        let (value, mask) = (words(net.network()), mask_words(net));
        let address = words(address.parse().unwrap());
        (0..4).all(|i| address[i] & mask[i] == value[i])
    }

    #[test]
    fn prefixes_match_as_words() {
        assert!(matches("10.1.0.0/16", "10.1.255.1"));
        assert!(!matches("10.1.0.0/16", "10.2.0.1"));
        assert!(matches("10.1.2.3/32", "10.1.2.3"));
        assert!(matches("0.0.0.0/0", "8.8.8.8") && !matches("0.0.0.0/0", "fd00::1"));
        assert!(matches("fd00::/8", "fdff::1") && !matches("fd00::/8", "fe80::1"));
        assert!(matches("::/0", "fd00::1") && matches("fd00::1/128", "fd00::1"));
        assert!(matches("10.1.7.9/16", "10.1.0.1"), "host bits of the prefix do not count");
    }

    #[test]
    fn a_filter_is_shown_as_on_the_command_line() {
        let filter = Filter {
            protocol: Some(Protocol::Tcp),
            host: "10.0.0.0/8".parse().ok(),
            port: Some(443),
            sample: NonZeroU32::new(16),
            ..Filter::default()
        };
        assert_eq!(filter.to_string(), "--proto tcp --host 10.0.0.0/8 --port 443 --sample 1/16");
        assert_eq!(Filter::default().to_string(), "");
    }
}
