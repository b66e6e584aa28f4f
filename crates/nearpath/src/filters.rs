//! The options that select packets, and the filter that they mean for the instrument.
//!
//! Input: arguments and the host (for interface indexes). Output: a [`Filter`]. Everything that does not need
//! the host is checked while parsing, as a usage error.

use crate::lower_devices::lower_devices;
use anyhow::anyhow;
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use nearpath_instruments::{Device, Filter};
use nearpath_model::{Direction, Host, Nic, Protocol, shell};

use nearpath_views::text::printable;
use std::net::IpAddr;
use std::num::NonZeroU32;

/// Packet filter; a packet must match all given options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Packet filter")]
pub struct Filters {
    /// Only packets on this interface
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,
    /// Only this protocol
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    proto: Option<Proto>,
    /// Only packets from this address or network (IPv4 or IPv6)
    #[arg(long, value_name = "CIDR", value_parser = network)]
    src: Option<IpNet>,
    /// Only packets to this address or network
    #[arg(long, value_name = "CIDR", value_parser = network)]
    dst: Option<IpNet>,
    /// Only packets from or to this address or network
    #[arg(long, value_name = "CIDR", value_parser = network)]
    host: Option<IpNet>,
    /// Only packets from this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    sport: Option<u16>,
    /// Only packets to this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    dport: Option<u16>,
    /// Only packets from or to this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Only received, or only sent packets
    #[arg(long, value_enum, value_name = "DIRECTION", default_value = "both")]
    direction: DirectionArg,
    /// Only one in N flows, selected by hash
    #[arg(long, value_name = "1/N", value_parser = one_in)]
    sample: Option<NonZeroU32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Proto {
    Tcp,
    Udp,
    Icmp,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DirectionArg {
    Rx,
    Tx,
    #[default]
    Both,
}

/// The name of a value on the command line.
fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Filters {
    /// Received or sent packets, of an interface and a port if given.
    pub fn one_way(direction: Direction, dev: Option<String>, port: Option<u16>) -> Self {
        let direction = match direction {
            Direction::Rx => DirectionArg::Rx,
            Direction::Tx => DirectionArg::Tx,
        };
        Self { dev, port, direction, ..Self::default() }
    }

    /// Whether any packet is excluded.
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }

    /// The options as on the command line, each after a space.
    pub fn words(&self) -> String {
        let text = |net: &Option<IpNet>| net.map(|net| net.to_string());
        let direction = (self.direction != DirectionArg::Both).then(|| name(&self.direction));
        let options = [
            ("--dev", self.dev.as_deref().map(|name| shell::word(name).to_string())),
            ("--proto", self.proto.as_ref().map(name)),
            ("--src", text(&self.src)),
            ("--dst", text(&self.dst)),
            ("--host", text(&self.host)),
            ("--sport", self.sport.map(|port| port.to_string())),
            ("--dport", self.dport.map(|port| port.to_string())),
            ("--port", self.port.map(|port| port.to_string())),
            ("--direction", direction),
            ("--sample", self.sample.map(|n| format!("1/{n}"))),
        ];
        options
            .into_iter()
            .filter_map(|(name, value)| Some(format!(" {name} {}", value?)))
            .collect()
    }

    /// The filter for the instrument. `host` was read in the observed namespace; `netns` is its inode if only
    /// packets in it count.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn resolve(&self, host: &Host, netns: Option<u64>) -> anyhow::Result<Filter> {
        let device = self.dev.as_ref().map(|name| device(host, name)).transpose()?;
        Ok(Filter {
            direction: match self.direction {
                DirectionArg::Rx => Some(Direction::Rx),
                DirectionArg::Tx => Some(Direction::Tx),
                DirectionArg::Both => None,
            },
            device,
            netns: netns.map(namespace).transpose()?,
            protocol: self.proto.map(|proto| match proto {
                Proto::Tcp => Protocol::Tcp,
                Proto::Udp => Protocol::Udp,
                Proto::Icmp => Protocol::Icmp,
            }),
            src: self.src,
            dst: self.dst,
            host: self.host,
            sport: self.sport,
            dport: self.dport,
            port: self.port,
            sample: self.sample,
        })
    }
}

/// The interface with this name.
///
/// # Errors
/// There is none; the error lists the existing ones.
pub fn interface<'a>(host: &'a Host, name: &str) -> anyhow::Result<&'a Nic> {
    const NAMED: usize = 12;
    let Some(nic) = host.nics.iter().find(|nic| nic.name == name) else {
        let names: Vec<&str> = host.nics.iter().take(NAMED).map(|nic| nic.name.as_str()).collect();
        let more = if host.nics.len() > NAMED { ", …" } else { "" };
        let there = printable(&names.join(", "));
        return Err(anyhow!(
            "no interface {name:?} in this network namespace; it has: {there}{more}"
        ));
    };
    Ok(nic)
}

/// The interface with this name as a filter.
fn device(host: &Host, name: &str) -> anyhow::Result<Device> {
    let nic = interface(host, name)?;
    let netns = |nic: &Nic| nic.netns.inode.map(namespace).transpose();
    Ok(Device {
        name: nic.name.clone(),
        ifindex: nic.ifindex.0,
        netns: netns(nic)?,
        lower: lower_devices(host, nic)?,
    })
}

/// The inode of a namespace as BPF programs see it (`ns_common.inum`, 32 bits).
fn namespace(inode: u64) -> anyhow::Result<u32> {
    u32::try_from(inode).map_err(|_| anyhow!("{inode} is not a network namespace inode"))
}

/// Parses an address, as a network of one, or a network.
pub fn network(text: &str) -> Result<IpNet, String> {
    if let Ok(net) = text.parse::<IpNet>() {
        return Ok(net);
    }
    let address = text.parse::<IpAddr>();
    address.map(IpNet::from).map_err(|_| {
        "expected an address or network, e.g. 10.0.0.1, 10.0.0.0/8 or fd00::/8".to_owned()
    })
}

/// `1/16`, or `16` for short.
pub fn one_in(text: &str) -> Result<NonZeroU32, String> {
    let number = text.strip_prefix("1/").unwrap_or(text);
    number.parse().map_err(|_| "expected 1/N, e.g. 1/16".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use nearpath_model::{IfIndex, Netns, NicKind};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        filters: Filters,
    }

    fn parse(args: &str) -> Result<Filters, clap::Error> {
        let args = std::iter::once("test").chain(args.split_whitespace());
        Line::try_parse_from(args).map(|line| line.filters)
    }

    fn host() -> Host {
        let nic = serde_json::json!({
            "name": "eth0", "ifindex": IfIndex(7), "kind": NicKind::Veth,
            "netns": Netns { name: None, inode: Some(4_026_531_840) },
            "rx_queues": [], "tx_queues": [], "statistics": {},
        });
        Host { nics: vec![serde_json::from_value(nic).unwrap()], ..Host::default() }
    }

    #[test]
    fn options_become_a_filter() {
        let line = "--dev eth0 --proto udp --src 10.0.0.0/8 --dst fd00::1 --dport 53 \
                    --direction rx --sample 1/16";
        let filter = parse(line).unwrap().resolve(&host(), Some(99)).unwrap();
        assert_eq!(
            filter.to_string(),
            "--direction rx --dev eth0 --netns 99 --proto udp --src 10.0.0.0/8 \
             --dst fd00::1/128 --dport 53 --sample 1/16"
        );
        let device = filter.device.unwrap();
        assert_eq!((device.ifindex, device.netns), (7, Some(4_026_531_840)));
        let all = parse("").unwrap().resolve(&host(), None).unwrap();
        assert_eq!(all, Filter::default());
    }

    #[test]
    fn invalid_values_are_refused() {
        for bad in [
            "--src 10.0.0.0/33",
            "--host 10.0.0",
            "--dst fd00::/129",
            "--port 0",
            "--port 65536",
            "--proto sctp",
            "--direction up",
            "--sample 1/0",
            "--sample 2/3",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let unknown = parse("--dev eth9").unwrap().resolve(&host(), None).unwrap_err();
        assert!(unknown.to_string().contains("eth9") && unknown.to_string().contains("eth0"));
    }
}
