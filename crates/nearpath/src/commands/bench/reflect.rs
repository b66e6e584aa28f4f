//! `nearpath bench reflect`: the far side of the benchmarks. It runs until a signal or the end of `--for`.

use super::load::load_port;
use super::{PORT, Sockets};
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use nearpath_trial::background::{LOAD_PORT, Servers};
use nearpath_trial::latency::{Reflector, ReflectorPlan};
use nearpath_trial::packets::Sink;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Answers UDP and TCP probes on one port until Ctrl-C, then reports how many it answered. On the next
port it counts the packets of 'bench packets'. Without --bind it listens on loopback only.

SECURITY
An answer is as long as its probe, and anything that is not a probe is ignored. But anyone who can
reach the port can make it answer, over UDP also to a spoofed address: bind it to the network under
test. With --load two iperf3 servers run on each address, open to anyone who can reach them.

EXAMPLES
  nearpath bench reflect                            for a prober on this host
  nearpath bench reflect --bind 10.0.0.2            for probers on other hosts
  nearpath bench reflect --bind 10.0.0.2 --cpus 3   on CPU 3
  nearpath bench reflect --bind 10.0.0.2 --load     also accept 'bench latency --load'
  ip netns exec blue nearpath bench reflect --bind 10.0.0.2";

/// Arguments of `bench reflect`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Reflect {
    /// Address to listen on; repeatable [default: loopback]
    #[arg(long, value_name = "ADDRESS")]
    bind: Vec<IpAddr>,
    /// Port for UDP and TCP probes; the next port is for 'bench packets'; 0 picks free ports
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    #[arg(value_parser = RangedU64ValueParser::<u16>::new().range(0..=65_534))]
    port: u16,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Print one JSON document at the end; the addresses it listens on go to standard error
    #[arg(long)]
    json: bool,
    /// Also run iperf3 servers for 'bench latency --load'
    #[arg(long)]
    load: bool,
    /// Port of the iperf3 server for TCP; UDP uses the next port
    #[arg(long, value_name = "PORT", default_value_t = LOAD_PORT, requires = "load")]
    #[arg(value_parser = load_port())]
    load_port: u16,
    #[command(flatten)]
    sockets: Sockets,
}

/// How often the iperf3 servers are checked.
const LOOK: Duration = Duration::from_millis(500);
/// Upper bound of one wait for a signal, without servers to check and without `--for`.
const FOREVER: Duration = Duration::from_secs(3600);

impl Reflect {
    pub(in crate::commands) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let plan = ReflectorPlan {
            addresses: if self.bind.is_empty() { loopback() } else { self.bind.clone() },
            port: self.port,
            cpus: self.sockets.cpus.clone(),
            options: self.sockets.options(),
        };
        let reflector = Reflector::start(&plan).map_err(anyhow::Error::from)?;
        let port = if self.port == 0 { 0 } else { self.port.saturating_add(1) };
        let sink =
            Sink::start(&plan.addresses, port, plan.cpus.as_ref()).map_err(anyhow::Error::from)?;
        let mut servers = if self.load {
            Some(Servers::start(&plan.addresses, self.load_port).map_err(anyhow::Error::from)?)
        } else {
            None
        };
        let loaded = servers.as_ref().map(Servers::addresses).unwrap_or_default();
        let taking = loaded
            .into_iter()
            .map(|(address, port)| format!("iperf3 listens on {}", SocketAddr::new(address, port)));
        let answering =
            reflector.addresses().iter().map(|at| format!("answering UDP and TCP on {at}"));
        let counting = sink.addresses().iter().map(|at| format!("counting packets on {at}"));
        for line in answering.chain(counting).chain(taking) {
            if self.json { say(&line) } else { output::text(&format!("{line}\n"))? }
        }
        let (begin, look) = (Instant::now(), if servers.is_some() { LOOK } else { FOREVER });
        let left =
            || self.duration.map_or(look, |all| all.saturating_sub(begin.elapsed()).min(look));
        while !left().is_zero() && !interrupt.wait(left()) {
            if let Some(servers) = &mut servers {
                servers.revive().map_err(anyhow::Error::from)?;
            }
        }
        let report = reflector.reflected();
        if self.json {
            return output::json(&report);
        }
        output::text(&format!(
            "answered {} datagrams, and {} messages of {} connections; ignored {}, refused {} connections\n",
            report.udp_answered,
            report.tcp_answered,
            report.connections,
            report.ignored,
            report.refused
        ))
    }
}

/// The loopback addresses of the families that the host has.
fn loopback() -> Vec<IpAddr> {
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let has_v6 = UdpSocket::bind((v6, 0)).is_ok();
    [IpAddr::V4(Ipv4Addr::LOCALHOST)].into_iter().chain(has_v6.then_some(v6)).collect()
}
