//! The tools compared: none, empty programs, nearpath with several options, and peers that measure the same
//! with a hash map.

use nearpath_instruments::locality::PacketLocality;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::locality::Method;
use nearpath_model::{CpuId, Detail, Measurement, Topology};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// A tool, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// No program is attached.
    Nothing,
    /// Empty programs are attached.
    Empty,
    /// `measure stages` with default options: coarse, within 3% of a CPU, and the watch.
    Default,
    /// `--detail coarse --max-overhead none`; the same with empty programs.
    Coarse,
    CoarseEmpty,
    /// `--detail path --max-overhead none`.
    Path,
    /// `--detail full --max-overhead none`: with budgets, and the paths of the ten slowest packets.
    Nearpath,
    /// `--no-budgets`.
    NoBudgets,
    /// `--sample 1/16`; a load of one flow is usually not sampled at all.
    Sampled,
    /// `--duty 1/16` of each second, and `1/64`.
    Duty16,
    Duty64,
    /// `peer.bt`.
    Bpftrace,
    /// `peer_bcc.py`.
    Bcc,
    /// `measure locality`.
    Locality,
    /// `peer_locality.bt`, at tracepoints.
    LocalityBpftrace,
    /// `peer_locality_functions.bt`, as exact as `measure locality` can be.
    LocalityFunctions,
}

impl Tool {
    /// Its name in the report and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Empty => "empty",
            Self::Default => "default",
            Self::Coarse => "coarse",
            Self::CoarseEmpty => "coarse-empty",
            Self::Path => "path",
            Self::Nearpath => "full",
            Self::NoBudgets => "no-budgets",
            Self::Sampled => "sample-1/16",
            Self::Duty16 => "duty-1/16",
            Self::Duty64 => "duty-1/64",
            Self::Bpftrace => "bpftrace",
            Self::Bcc => "bcc",
            Self::Locality => "locality",
            Self::LocalityBpftrace => "locality-bt",
            Self::LocalityFunctions => "locality-fn",
        }
    }

    /// All tools, in the order of the report.
    pub const ALL: [Self; 16] = [
        Self::Nothing,
        Self::Empty,
        Self::Default,
        Self::Coarse,
        Self::CoarseEmpty,
        Self::Path,
        Self::Nearpath,
        Self::NoBudgets,
        Self::Sampled,
        Self::Duty16,
        Self::Duty64,
        Self::Bpftrace,
        Self::Bcc,
        Self::Locality,
        Self::LocalityBpftrace,
        Self::LocalityFunctions,
    ];

    /// Whether it can be run on this machine, or the reason why not.
    pub fn available(self) -> Result<(), String> {
        match self {
            Self::Bpftrace | Self::LocalityBpftrace | Self::LocalityFunctions
                if !nearpath_testing::require_program("bpftrace") =>
            {
                Err("bpftrace is not installed".to_owned())
            }
            Self::LocalityFunctions => {
                let program = "kretfunc:__alloc_skb { exit(); } BEGIN { exit(); }";
                let attached = bpftrace().args(["-e", program]).output();
                let there = attached.is_ok_and(|output| output.status.success());
                there
                    .then_some(())
                    .ok_or_else(|| "bpftrace cannot attach to functions of this kernel".to_owned())
            }
            Self::Bcc => {
                let import = Command::new(PYTHON).args(["-c", "import bcc"]).output();
                let there = import.is_ok_and(|output| output.status.success());
                there.then_some(()).ok_or_else(|| "python3-bpfcc is not installed".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether it observes only a part of the time.
    pub fn is_sliced(self) -> bool {
        matches!(self, Self::Default | Self::Duty16 | Self::Duty64)
    }

    /// Pieces of work per sample: several, so that each of its states is included.
    pub fn pieces(self) -> u32 {
        if self.is_sliced() { 4 } else { 1 }
    }

    /// Attaches it; it is observing when this returns.
    pub fn start(self, scripts: &Scripts) -> io::Result<Running> {
        let options = match self {
            Self::Nothing => return Ok(Running::Nothing),
            Self::Bpftrace | Self::LocalityBpftrace | Self::LocalityFunctions => {
                let script = match self {
                    Self::Bpftrace => &scripts.bpftrace,
                    Self::LocalityBpftrace => &scripts.locality,
                    _ => &scripts.locality_functions,
                };
                return peer(bpftrace().arg(script));
            }
            Self::Bcc => {
                let functions = scripts.functions.then_some("--functions");
                return peer(Command::new(PYTHON).arg(&scripts.bcc).args(functions));
            }
            Self::Locality => {
                let options = nearpath_instruments::locality::Options::default();
                let mut locality = Box::new(PacketLocality::new(&topology(), options));
                locality.start().map_err(io::Error::other)?;
                return Ok(Running::Locality(locality));
            }
            Self::Empty => Options { empty: true, budgets: true, ..Options::default() },
            Self::Default => {
                let detail = Detail::Coarse;
                let (watch, causes, limit) = (true, true, Some(0.03));
                return sliced(Options { detail, limit, watch, causes, ..Options::default() });
            }
            Self::Coarse => Options { detail: Detail::Coarse, ..Options::default() },
            Self::CoarseEmpty => {
                Options { detail: Detail::Coarse, empty: true, ..Options::default() }
            }
            Self::Path => {
                Options { detail: Detail::Path, budgets: true, outliers: 10, ..Options::default() }
            }
            Self::Nearpath => Options { budgets: true, outliers: 10, ..Options::default() },
            Self::NoBudgets => Options::default(),
            Self::Sampled => {
                let filter = Filter { sample: NonZeroU32::new(16), ..Filter::default() };
                Options { filter, budgets: true, outliers: 10, ..Options::default() }
            }
            Self::Duty16 | Self::Duty64 => {
                let duty = NonZeroU32::new(if self == Self::Duty16 { 16 } else { 64 });
                return sliced(Options { duty, budgets: true, outliers: 10, ..Options::default() });
            }
        };
        let mut stages = Box::new(Stages::new(&topology(), options));
        stages.start().map_err(io::Error::other)?;
        Ok(Running::Nearpath(stages))
    }
}

/// The peers, as files.
pub struct Scripts {
    _folder: tempfile::TempDir,
    bpftrace: PathBuf,
    bcc: PathBuf,
    locality: PathBuf,
    locality_functions: PathBuf,
    functions: bool,
}

impl Scripts {
    /// Writes them; `functions` with the stages of Open vSwitch and others without tracepoint.
    pub fn write(functions: bool) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).map(|()| path)
        };
        // What the one for BCC imports from its folder.
        write("bcc_headers.py", include_str!("bcc_headers.py"))?;
        let more = if functions { include_str!("peer_functions.bt") } else { "" };
        Ok(Self {
            bpftrace: write("peer.bt", &[include_str!("peer.bt"), more].concat())?,
            bcc: write("peer_bcc.py", include_str!("peer_bcc.py"))?,
            locality: write("peer_locality.bt", include_str!("peer_locality.bt"))?,
            locality_functions: write(
                "peer_locality_functions.bt",
                include_str!("peer_locality_functions.bt"),
            )?,
            _folder: folder,
            functions,
        })
    }
}

/// The distribution's Python, for which its modules are built.
const PYTHON: &str = "/usr/bin/python3";

/// nearpath's result for a piece of work.
pub enum Measured {
    Nothing,
    Stages(Box<Measurement>),
    /// How packets were observed.
    Locality(Method),
}

/// A running tool.
pub enum Running {
    Nothing,
    Nearpath(Box<Stages>),
    /// Ends when the sender is dropped.
    Sliced(Sender<()>, JoinHandle<io::Result<Measurement>>),
    Locality(Box<PacketLocality>),
    Peer(Child),
}

impl Running {
    /// Detaches it, and returns nearpath's result.
    pub fn stop(self) -> io::Result<Measured> {
        match self {
            Self::Nothing => Ok(Measured::Nothing),
            Self::Nearpath(mut stages) => {
                let measurement = stages.stop().map_err(io::Error::other)?;
                Ok(Measured::Stages(Box::new(measurement)))
            }
            Self::Sliced(running, thread) => {
                drop(running);
                let ended = thread.join().map_err(|_| io::Error::other("the tool panicked"))?;
                Ok(Measured::Stages(Box::new(ended?)))
            }
            Self::Locality(mut locality) => {
                let locality = locality.stop().map_err(io::Error::other)?;
                Ok(Measured::Locality(locality.method))
            }
            Self::Peer(mut child) => {
                let pid = rustix::process::Pid::from_child(&child);
                rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
                child.wait().map(|_| Measured::Nothing)
            }
        }
    }
}

/// bpftrace in a separate mount namespace with tracefs, for the formats of tracepoints and the names of
/// functions.
fn bpftrace() -> Command {
    let mount = "test -e $T/events || mount -t tracefs nodev $T && exec bpftrace \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mount, "sh"]).env("T", "/sys/kernel/tracing");
    command
}

/// Measures in slices, on a separate thread because it is attached and detached meanwhile.
fn sliced(options: Options) -> io::Result<Running> {
    let (running, ends) = mpsc::channel();
    let (measures, began) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let should_continue = |wait: Duration| {
            let _ = measures.send(());
            ends.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
        };
        let mut stages = Stages::new(&topology(), options);
        let (day, second) = (Duration::from_secs(86_400), Duration::from_secs(1));
        stages.measure(day, second, &should_continue, &mut |_| ()).map_err(io::Error::other)
    });
    // It is attached at the first callback; or it has ended, with an error that is reported at the end.
    let _ = began.recv();
    Ok(Running::Sliced(running, thread))
}

/// Starts a peer, and waits until it reports that all its probes are attached.
fn peer(command: &mut Command) -> io::Result<Running> {
    let mut said = tempfile::tempfile()?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(said.try_clone()?))
        .spawn()?;
    let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next() {
        if line? == "ready" {
            // Maps are printed at the end, and must be read.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(Running::Peer(child));
        }
    }
    child.wait()?;
    let mut why = String::new();
    said.rewind()?;
    said.read_to_string(&mut why)?;
    Err(io::Error::other(format!("the peer ended before it was ready: {why}")))
}

fn topology() -> Topology {
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let highest = cpus.trim().rsplit(['-', ',']).next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Topology { possible: (0..=highest).map(CpuId).collect(), ..Topology::default() }
}
