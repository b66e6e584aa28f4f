//! `nearpath bench reflect`: the far side of the benchmarks, until it is told to stop.

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
Answers UDP and TCP on the same port until ^C, then tells how many probes it answered. On the next port
it counts the packets of 'bench packets'. Without --bind it listens on loopback alone. An answer is as long as its probe, and whatever is no probe is not
answered; but anybody who reaches the port can make it answer, also (by UDP) to an address that is not
his own: bind it to the network that is measured. With --load two servers of iperf3 run on each address,
which anybody can put load on.

EXAMPLES
  nearpath bench reflect                            for a prober on this machine
  nearpath bench reflect --bind 10.0.0.2            for others
  nearpath bench reflect --bind 10.0.0.2 --cpus 3   on CPU 3
  nearpath bench reflect --bind 10.0.0.2 --load     also for 'bench latency --load'
  ip netns exec blue nearpath bench reflect --bind 10.0.0.2";

/// Arguments of `bench reflect`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Reflect {
    /// An address to listen on, several times if wanted [default: loopback]
    #[arg(long, value_name = "ADDRESS")]
    bind: Vec<IpAddr>,
    /// The port of UDP and TCP, and with the next one that of 'bench packets'; 0: any that are free
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    #[arg(value_parser = RangedU64ValueParser::<u16>::new().range(0..=65_534))]
    port: u16,
    /// End after that time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Print what was answered as one JSON document in the end, and where it listens on standard error
    #[arg(long)]
    json: bool,
    /// Also run iperf3's servers, which take the load of 'bench latency --load'
    #[arg(long)]
    load: bool,
    /// Their port for TCP; that for UDP is the next one
    #[arg(long, value_name = "PORT", default_value_t = LOAD_PORT, requires = "load")]
    #[arg(value_parser = load_port())]
    load_port: u16,
    #[command(flatten)]
    sockets: Sockets,
}

/// How often it is looked whether iperf3's servers are there still.
const LOOK: Duration = Duration::from_millis(500);
/// Without them and without an end it is looked for a signal anew after so long.
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
        let taking = loaded.into_iter().map(|(address, port)| {
            format!("taking load by iperf3 on {}", SocketAddr::new(address, port))
        });
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
        let told = reflector.reflected();
        if self.json {
            return output::json(&told);
        }
        output::text(&format!(
            "answered {} datagrams, and {} messages of {} connections; ignored {}, refused {} connections\n",
            told.udp_answered, told.tcp_answered, told.connections, told.ignored, told.refused
        ))
    }
}

/// Of both families, as far as the machine has them.
fn loopback() -> Vec<IpAddr> {
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let has_v6 = UdpSocket::bind((v6, 0)).is_ok();
    [IpAddr::V4(Ipv4Addr::LOCALHOST)].into_iter().chain(has_v6.then_some(v6)).collect()
}
