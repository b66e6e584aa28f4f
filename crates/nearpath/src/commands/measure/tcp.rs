//! `nearpath measure tcp`: TCP connections, what each did, and what limited it.

use crate::failure::{Failure, say};
use crate::filters::network;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Overhead, Time, overhead};
use crate::source::Namespace;
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use nearpath_host::{TcpFilter, current_netns};
use nearpath_instruments::tcp::{Options, Tcp};
use nearpath_model::Detail;
use nearpath_model::tcp::{TcpMeasurement, TcpPer, TcpRole};
use nearpath_views::{json, text};
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure tcp --port 5201                   what limits each connection of iperf3
  nearpath measure tcp --role server --per listener  the connections of each server
  nearpath measure tcp --pid 4711 -v                 all figures of the connections of a process
  nearpath measure tcp --port 443 --detail full      also RTT percentiles, and waits of readers
  nearpath measure tcp --json --interval 2s          one JSON document per line, every 2 seconds
  nearpath measure tcp --json | jq '.connections[] | [.src, .dst, .verdict.limit, .verdict.share]'

Addresses and ports are those of the socket, as in ss(8): --sport is the local port. Requires no
privilege; without root, the processes of other users are not named. Ctrl-C stops early and prints
the results so far. docs/json.md describes the JSON fields, docs/measure-tcp.md the method and the
limits.";

/// Readings per interval: the limits are named by samples of a connection's state.
const READINGS: u32 = 10;
/// Connections shown as text.
const SHOWN: usize = 20;
/// Arguments of `measure tcp`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct TcpArguments {
    /// Only connections of this port, local or remote
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Only connections of this local port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    sport: Option<u16>,
    /// Only connections of this remote port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    dport: Option<u16>,
    /// Only connections from or to this address or network
    #[arg(long, value_name = "CIDR", value_parser = network)]
    host: Option<IpNet>,
    /// Only connections with a local address in this network
    #[arg(long, value_name = "CIDR", value_parser = network)]
    src: Option<IpNet>,
    /// Only connections with a remote address in this network
    #[arg(long, value_name = "CIDR", value_parser = network)]
    dst: Option<IpNet>,
    /// Only connections of this process
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Only connections of processes in this cgroup or below it: /system.slice/nginx.service
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Only connections in which this host is the server (a socket listens on the local port), or the client
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Option<Role>,
    /// Also sum the connections by this property
    #[arg(long, value_enum, value_name = "WHAT", default_value = "connection")]
    per: What,
    /// Number of connections and groups to list, those with the most bytes [default: 20 as text, all as JSON]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// How much to observe: 'coarse' reads the sockets and observes state changes and retransmissions; 'full'
    /// observes each packet as well: the histogram of round-trip times, how long data waits to be read and on
    /// which CPU, and closed windows
    #[arg(long, value_enum, value_name = "HOW", default_value = "coarse")]
    detail: HowMuch,
    /// Overhead limit, as a share of one CPU such as '2%', or 'none'. Above it, sockets are read less often, and
    /// packets observed in time slices
    #[arg(long, value_name = "SHARE", default_value = "2%", value_parser = overhead)]
    max_overhead: Overhead,
    /// Show all figures of each connection
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON document; with --interval one line per interval, then one for the total
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    time: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Server,
    Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HowMuch {
    Coarse,
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Connection,
    Remote,
    Listener,
    Process,
    Cgroup,
}

impl TcpArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let measured = self.namespace.read(|root| {
            let mut tcp = Tcp::new(root, self.options(current_netns(root).inode));
            Ok(self.measure(&mut tcp, &interrupt))
        })?;
        let measurement = measured?;
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        match (self.json, self.time.interval) {
            (true, Some(_)) => Ok(()),
            (true, None) => output::json(&measurement),
            _ => output::text(&text::tcp(&measurement, self.verbose, output::width())),
        }
    }

    fn measure(&self, tcp: &mut Tcp<'_>, interrupt: &Interrupt) -> Result<TcpMeasurement, Failure> {
        if self.json && self.time.interval.is_some() {
            return self.time.print_lines(tcp, interrupt, |last, now| {
                output::json_line(&json::tcp_interval(last, now, self.top()))
            });
        }
        let each = |now: &TcpMeasurement| format!("{} connections", now.total);
        Ok(self.time.measure(tcp, interrupt, each)?)
    }

    fn options(&self, netns: Option<u64>) -> Options {
        let filter = TcpFilter {
            sport: self.sport,
            dport: self.dport,
            port: self.port,
            src: self.src,
            dst: self.dst,
            host: self.host,
        };
        let interval = self.time.interval.unwrap_or(Duration::from_secs(1));
        let shown = (!self.json).then_some(SHOWN);
        Options {
            filter_text: self.filter_text(),
            filter,
            role: self.role.map(|role| match role {
                Role::Server => TcpRole::Server,
                Role::Client => TcpRole::Client,
            }),
            pid: self.pid,
            cgroup: self.cgroup.clone(),
            netns,
            per: match self.per {
                What::Connection => None,
                What::Remote => Some(TcpPer::Remote),
                What::Listener => Some(TcpPer::Listener),
                What::Process => Some(TcpPer::Process),
                What::Cgroup => Some(TcpPer::Cgroup),
            },
            // The difference of two readings needs all connections of both.
            top: if self.json && self.time.interval.is_some() {
                None
            } else {
                self.top().or(shown)
            },
            notable: None,
            // Without intervals only the progress is shown.
            last_result_only: !(self.json && self.time.interval.is_some()),
            step: (interval.min(self.time.duration) / READINGS).max(Duration::from_millis(10)),
            btf_file: self.time.btf.clone(),
            limit: self.max_overhead.0,
            detail: match self.detail {
                HowMuch::Coarse => Detail::Coarse,
                HowMuch::Full => Detail::Full,
            },
        }
    }

    fn top(&self) -> Option<usize> {
        self.top.map(|top| usize::try_from(top).unwrap_or(usize::MAX))
    }

    /// The filter as on the command line.
    fn filter_text(&self) -> String {
        let number = |name: &str, value: Option<u64>| value.map(|value| format!("{name} {value}"));
        let net = |name: &str, value: Option<IpNet>| value.map(|value| format!("{name} {value}"));
        let given = [
            number("--port", self.port.map(u64::from)),
            number("--sport", self.sport.map(u64::from)),
            number("--dport", self.dport.map(u64::from)),
            net("--host", self.host),
            net("--src", self.src),
            net("--dst", self.dst),
            number("--pid", self.pid.map(u64::from)),
            self.cgroup.as_ref().map(|path| format!("--cgroup {path}")),
            self.role.map(|role| format!("--role {role:?}").to_lowercase()),
        ];
        given.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}
