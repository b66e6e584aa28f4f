//! `nearpath bench paths`: compares the latency of paths to targets, in random order, with and without load, each split
//! into the stages on the path into a virtual machine of this host.

use super::load::{bits, load_port};
use super::{Sockets, target};
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Progress, duration};
use anyhow::{Context, anyhow, bail};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use nearpath_host::{NetnsRef, Root, Wanted, in_netns};
use nearpath_instruments::Instrument;
use nearpath_instruments::vm::VmPackets;
use nearpath_model::Host;
use nearpath_trial::background::{
    Background, BackgroundError, BackgroundReport, LOAD_PORT, Loading, MAX_STREAMS, Protocol,
};
use nearpath_trial::latency::{
    Arrivals, LatencyPlan, LatencyReport, Loop, MAX_RATE_PER_S, Marked, Probing, SIZE_MAX,
    SIZE_MIN, SocketOptions, Transport, measure_marked,
};
use nearpath_trial::paths::{
    OwnLoad, PATHS_SCHEMA, PathBlock, PathLoad, PathsReport, random_order, random_seed, result,
};
use nearpath_trial::scenarios::interface_of;
use nearpath_views::text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
LOADS
  none   no load
  udp    streams of iperf3 to 'bench reflect --load' at the target; where iperf3 is not installed, or the
         target has no server, datagrams of nearpath's own, which the target answers as it does probes
  tcp    the same by TCP

A target answers probes with 'bench reflect', or is an echo service that returns UDP datagrams unchanged.
Probes are sent from this host, with --from from another network namespace of it, which should be at
the far end of a NIC: only then do they come with an interrupt, and (a) and (b) exist. Each round measures
every path under every load once, in random order. Stages need root, as 'nearpath measure vm' does; without,
round trips are measured alone.

EXAMPLES
  nearpath bench paths host=10.0.0.1 tap=10.0.0.50 macvtap=10.0.0.60 --from peer
  nearpath bench paths tap=10.0.0.50:7 --load none,udp,tcp --load-streams 4 --load-rate 500M
  nearpath bench paths tap=10.0.0.50 vf=10.0.0.70 --vfio vf=web1 --from peer
  nearpath bench paths host=10.0.0.1 vm=10.0.0.50 --from peer --json | \\
      jq '.paths[] | [.path, .load, .percentiles[\"50\"], (.vm.queue.spans[] | [.span, .p50_ns])]'";

/// Extra time of a load: for first contact, and until the last answer.
const AROUND: Duration = Duration::from_secs(2);
/// How long a server of iperf3 may take to accept.
const SERVER: Duration = Duration::from_secs(2);
/// Payload of nearpath's own datagrams, in bytes, and their rate where none is given.
const OWN_SIZE: u32 = 1_400;
const OWN_RATE_PER_S: u32 = 1_000;

/// Arguments of `bench paths`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Paths {
    /// Paths to compare: a name of your choice, and the address of the target
    #[arg(value_name = "NAME=HOST[:PORT]", required = true, value_parser = named)]
    paths: Vec<(String, String)>,
    /// Send the probes from this network namespace: a name in /run/netns, a path, or pid:NUMBER
    #[arg(long, value_name = "NAME|PATH")]
    from: Option<String>,
    /// The target of this path is the virtual machine VM (name or process id) by a device passed through: show its
    /// interrupts meanwhile
    #[arg(long, value_name = "NAME=VM", value_parser = named)]
    vfio: Vec<(String, String)>,
    /// Blocks of each path under each load
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = RangedU64ValueParser::<u16>::new().range(1..=1000))]
    rounds: u16,
    /// Duration of a block: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = duration)]
    block: Duration,
    /// Warm-up before each block
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = duration)]
    warm_up: Duration,
    /// Probes per second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Payload of a probe in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(SIZE_MIN as i64..=SIZE_MAX as i64))]
    size: u32,
    /// Seed of the random order [default: random, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Loads to measure each path under, separately
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "none,udp"
    )]
    #[arg(help_heading = "Background load")]
    load: Vec<LoadName>,
    /// Streams of a load
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Background load")]
    #[arg(value_parser = RangedU64ValueParser::<u16>::new().range(1..=u64::from(MAX_STREAMS)))]
    load_streams: u16,
    /// Bits per second per stream: 500M, 2.5G [default: unlimited; nearpath's own datagrams: 11.2M]
    #[arg(long, value_name = "BITS", value_parser = bits, help_heading = "Background load")]
    load_rate: Option<u64>,
    /// Port of the iperf3 server for TCP; UDP uses the next port
    #[arg(long, value_name = "PORT", default_value_t = LOAD_PORT, value_parser = load_port())]
    #[arg(help_heading = "Background load")]
    load_port: u16,
    #[command(flatten)]
    sockets: Sockets,
    // Expert options (see help.rs) stand last.
    /// How long to wait for outstanding answers at the end of a block
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    late_after: Duration,
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoadName {
    None,
    Udp,
    Tcp,
}

impl LoadName {
    fn load(self) -> PathLoad {
        match self {
            Self::None => PathLoad::None,
            Self::Udp => PathLoad::Udp,
            Self::Tcp => PathLoad::Tcp,
        }
    }
}

/// A path.
struct Target<'a> {
    name: &'a str,
    address: SocketAddr,
    /// The interface of this host that has the address.
    own: Option<String>,
    /// The virtual machine that a device is passed through to.
    by_device: Option<&'a str>,
}

/// Parses `tap=10.0.0.2`.
fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, host)) if !name.is_empty() && !host.is_empty() => {
            Ok((name.to_owned(), host.to_owned()))
        }
        _ => Err("expected NAME=HOST or NAME=HOST:PORT".to_owned()),
    }
}

impl Paths {
    pub(in crate::commands) fn run(&self) -> Result<(), Failure> {
        let mut targets: Vec<Target<'_>> = Vec::new();
        for (name, host) in &self.paths {
            if targets.iter().any(|known| known.name == name) {
                return Err(Failure::Usage(format!("two paths are named {name}")));
            }
            let address = target(host)?;
            let own = interface_of(address.ip()).context("cannot list the interfaces")?;
            let of = self.vfio.iter().find(|(path, _)| path == name);
            let by_device = of.map(|(_, vm)| vm.as_str());
            targets.push(Target { name, address, own, by_device });
        }
        if let Some((path, _)) =
            self.vfio.iter().find(|(path, _)| !targets.iter().any(|target| target.name == path))
        {
            return Err(Failure::Usage(format!("--vfio: no path is named {path}")));
        }
        let interrupt = Interrupt::listen()?;
        let host = nearpath_host::read(&Root::live(), &Wanted::default())
            .context("cannot read the host")?;
        let measure = || self.measure(&targets, &host, &interrupt);
        let report = match &self.from {
            None => measure()?,
            Some(from) => {
                let Ok(from) = from.parse::<NetnsRef>();
                in_netns(&from, |_| measure()).map_err(|e| anyhow!("--from: {e}"))??
            }
        };
        let failed = report.paths.iter().flat_map(|path| &path.streams);
        let failed = failed.filter_map(|load| load.failure.clone()).next();
        if self.json { output::json(&report) } else { output::text(&text::bench_paths(&report)) }?;
        // A result measured without the requested load is printed, but is not a success.
        match failed {
            Some(failure) => Err(anyhow!("the requested load was not complete: {failure}").into()),
            None => Ok(()),
        }
    }

    /// Everything, in the network namespace that probes are sent from.
    fn measure(
        &self,
        targets: &[Target<'_>],
        host: &Host,
        interrupt: &Interrupt,
    ) -> anyhow::Result<PathsReport> {
        let loads: BTreeSet<PathLoad> = self.load.iter().map(|load| load.load()).collect();
        let pairs: Vec<(usize, PathLoad)> = (0..targets.len())
            .flat_map(|path| loads.iter().map(move |load| (path, *load)))
            .collect();
        let seed = self.seed.unwrap_or_else(random_seed);
        let order = random_order(&pairs, usize::from(self.rounds), seed);
        let mut notes = Vec::new();
        let root = Root::live();
        let mut packets = VmPackets::new(&root, host, self.btf.clone());
        let is_split = match packets.start().and_then(|()| packets.follow_probes(None)) {
            Ok(()) => true,
            Err(reason) => {
                notes.push(format!("not split into stages: {reason}"));
                false
            }
        };
        if is_split {
            let missing = packets.read().context("cannot measure")?.not_available;
            notes
                .extend(missing.iter().map(|m| format!("not available: {}: {}", m.what, m.reason)));
            if self.from.is_none() {
                notes.push(
                    "probes are sent by this host itself: they come without an interrupt, and (a) and (b) do not \
                     exist; give --from"
                        .to_owned(),
                );
            }
        }
        let mut run = Run {
            options: self,
            packets: is_split.then_some(packets),
            interrupt,
            asked: BTreeSet::new(),
            own: BTreeSet::new(),
        };
        let mut blocks: BTreeMap<(usize, PathLoad), Vec<PathBlock>> = BTreeMap::new();
        let each = self.block + self.warm_up;
        let progress = Progress::new(each * u32::try_from(order.len()).unwrap_or(u32::MAX));
        say(&format!(
            "measuring {} blocks of {each:?} in random order (--seed {seed})",
            order.len()
        ));
        let began = Instant::now();
        for (number, &(path, load)) in order.iter().enumerate() {
            let (name, target) = (targets[path].name, targets[path].address);
            let (number, all) = (number + 1, order.len());
            let what = format!("block {number} of {all}: {name}, load {}", load.name());
            progress.show(began.elapsed(), &what);
            let block = run.block(target, load).with_context(|| what.clone())?;
            if interrupt.happened() {
                bail!("stopped early by a signal");
            }
            blocks.entry((path, load)).or_default().push(block);
        }
        if let Some(packets) = &mut run.packets {
            let lost = packets.stop().context("cannot measure")?.events_lost;
            if lost > 0 {
                notes.push(format!(
                    "{lost} events were lost by the kernel: as many probes may not be followed"
                ));
            }
        }
        if !run.own.is_empty() {
            let is_own =
                |target: &&Target<'_>| run.own.iter().any(|(own, _)| *own == target.address);
            let names: Vec<&str> =
                targets.iter().filter(is_own).map(|target| target.name).collect();
            notes.push(format!(
                "no iperf3 or no server of it at {}: the load was nearpath's own datagrams",
                names.join(", ")
            ));
        }
        let row = |&(path, load): &(usize, PathLoad)| {
            let Target { name, address, own, by_device } = &targets[path];
            let blocks = blocks.get(&(path, load)).map_or(&[][..], Vec::as_slice);
            let mut row = result(name, &address.to_string(), load, blocks, *by_device);
            if let (None, Some(_), Some(own)) = (&row.vm, &row.not_split, own) {
                row.not_split = Some(format!("the target is this host itself ({own})"));
            }
            row
        };
        Ok(PathsReport {
            schema: PATHS_SCHEMA,
            from: self.from.clone(),
            seed,
            rounds: usize::from(self.rounds),
            block_s: self.block.as_secs_f64(),
            rate_per_s: self.rate,
            size_bytes: self.size,
            order: order
                .iter()
                .map(|(path, load)| (targets[*path].name.to_owned(), *load))
                .collect(),
            paths: pairs.iter().map(row).collect(),
            notes,
        })
    }

    fn plan(&self, target: SocketAddr, time: Duration) -> LatencyPlan {
        LatencyPlan {
            target,
            transport: Transport::Udp,
            mode: Loop::Open(Arrivals::Constant),
            rate_per_s: Some(self.rate),
            size: self.size,
            connections: 1,
            warm_up: Duration::ZERO,
            duration: time,
            late_after: self.late_after,
            split: false,
            echo: true,
            spin: false,
            lead: None,
            cpus: self.sockets.cpus.clone(),
            options: self.sockets.options(),
        }
    }
}

/// What blocks share.
struct Run<'a> {
    options: &'a Paths,
    /// `None`: stages cannot be observed.
    packets: Option<VmPackets<'a>>,
    interrupt: &'a Interrupt,
    /// Targets, with the load: those probed for a server of iperf3, and those without.
    asked: BTreeSet<(SocketAddr, PathLoad)>,
    own: BTreeSet<(SocketAddr, PathLoad)>,
}

/// A running load.
enum Running {
    None,
    Streams(Vec<Loading>),
    Own(Probing, Instant),
}

impl Run<'_> {
    /// Probes a path under a load.
    fn block(&mut self, target: SocketAddr, load: PathLoad) -> anyhow::Result<PathBlock> {
        let Paths { warm_up, block, .. } = *self.options;
        let running = self.start(target, load)?;
        let (warm, uncounted) = self.probe(target, warm_up, false)?;
        let (latency, more) = self.probe(target, block, true)?;
        let uncounted = uncounted + warm.sent + more;
        let seen = match &mut self.packets {
            Some(packets) => Some(packets.read().context("cannot measure")?),
            None => None,
        };
        let (streams, own) = running.finish(self.interrupt.happened())?;
        Ok(PathBlock { latency, uncounted, seen, streams, own })
    }

    /// Sends probes, which the instrument follows if they count.
    fn probe(
        &mut self,
        target: SocketAddr,
        time: Duration,
        counts: bool,
    ) -> anyhow::Result<(LatencyReport, u64)> {
        let Self { options, packets, interrupt, .. } = self;
        let mut ready = |marked: Marked| -> anyhow::Result<()> {
            let Some(packets) = packets else { return Ok(()) };
            let probes = counts.then_some((marked.session, marked.first..marked.end));
            packets.follow_probes(probes).context("cannot measure")
        };
        measure_marked(&options.plan(target, time), &|wait| !interrupt.wait(wait), &mut ready)
    }

    /// Whether iperf3's server may listen there. (iperf3 reports only at its end that nothing answers.) It is asked
    /// once: the server takes a connection for a client.
    fn has_server(&mut self, target: SocketAddr, load: PathLoad, protocol: Protocol) -> bool {
        if self.asked.insert((target, load)) {
            let base_port = self.options.load_port;
            let server = Background { base_port, ..Background::new(protocol, target.ip()) };
            let server = SocketAddr::new(target.ip(), server.port());
            if TcpStream::connect_timeout(&server, SERVER).is_err() {
                self.own.insert((target, load));
            }
        }
        !self.own.contains(&(target, load))
    }

    fn start(&mut self, target: SocketAddr, load: PathLoad) -> anyhow::Result<Running> {
        let options = self.options;
        let (protocol, transport) = match load {
            PathLoad::None => return Ok(Running::None),
            PathLoad::Tcp => (Protocol::Tcp, Transport::Tcp),
            PathLoad::Udp => (Protocol::Udp, Transport::Udp),
        };
        if self.has_server(target, load, protocol) {
            let streams = Background {
                base_port: options.load_port,
                streams: options.load_streams,
                bits_per_s: options.load_rate,
                ..Background::new(protocol, target.ip())
            };
            match Loading::start(&streams, options.warm_up + options.block + AROUND) {
                Ok(loading) => return Ok(Running::Streams(vec![loading])),
                Err(BackgroundError::Missing | BackgroundError::Refused { .. }) => {
                    self.own.insert((target, load));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let streams = u32::from(options.load_streams);
        let of_stream = options.load_rate.map(|bits| bits / (8 * u64::from(OWN_SIZE)));
        let of_stream =
            of_stream.map_or(OWN_RATE_PER_S, |rate| u32::try_from(rate).unwrap_or(u32::MAX));
        let plan = LatencyPlan {
            transport,
            rate_per_s: Some(of_stream.saturating_mul(streams).clamp(streams, MAX_RATE_PER_S)),
            size: OWN_SIZE,
            connections: streams,
            cpus: None,
            options: SocketOptions::default(),
            ..options.plan(target, options.block)
        };
        let probing = Probing::start(&plan).context("no load by iperf3, nor by nearpath")?;
        Ok(Running::Own(probing, Instant::now()))
    }
}

impl Running {
    fn finish(self, early: bool) -> anyhow::Result<(Vec<BackgroundReport>, Option<OwnLoad>)> {
        match self {
            Self::None => Ok((Vec::new(), None)),
            Self::Streams(loads) => {
                Ok((loads.into_iter().map(|load| load.finish(early)).collect(), None))
            }
            Self::Own(mut probing, began) => {
                let probes = probing.look().context("the load ended")?;
                let (sent, answered) = (probes.sent, probes.received);
                let seconds = began.elapsed().as_secs_f64();
                Ok((Vec::new(), Some(OwnLoad { sent, answered, size_bytes: OWN_SIZE, seconds })))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_name_and_a_target() {
        assert_eq!(named("tap=10.0.0.2:7"), Ok(("tap".to_owned(), "10.0.0.2:7".to_owned())));
        assert_eq!(named("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        for bad in ["", "tap", "=10.0.0.2", "tap="] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }
}
