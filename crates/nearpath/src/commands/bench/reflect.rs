//! `nearpath bench reflect`: answers the prober until it is told to stop.

use super::{PORT, Sockets};
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use clap::Args;
use nearpath_trial::latency::{Reflector, ReflectorPlan};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

const AFTER_HELP: &str = "\
Answers UDP and TCP on the same port until ^C, then tells how many probes it answered. Without --bind
it listens on loopback alone. An answer is as long as its probe, and whatever is no probe is not
answered; but anybody who reaches the port can make it answer, also (by UDP) to an address that is not
his own: bind it to the network that is measured.

EXAMPLES
  nearpath bench reflect                            for a prober on this machine
  nearpath bench reflect --bind 10.0.0.2            for others
  nearpath bench reflect --bind 10.0.0.2 --cpus 3   on CPU 3
  ip netns exec blue nearpath bench reflect --bind 10.0.0.2";

/// Arguments of `bench reflect`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Reflect {
    /// An address to listen on, several times if wanted [default: loopback]
    #[arg(long, value_name = "ADDRESS")]
    bind: Vec<IpAddr>,
    /// The port of UDP and TCP; 0: any that is free
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// End after that time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Print what was answered as one JSON document in the end, and where it listens on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sockets: Sockets,
}

/// Without an end it is looked for a signal anew after so long.
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
        for address in reflector.addresses() {
            let line = format!("answering UDP and TCP on {address}");
            if self.json { say(&line) } else { output::text(&format!("{line}\n"))? }
        }
        while !interrupt.wait(self.duration.unwrap_or(FOREVER)) && self.duration.is_none() {}
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
