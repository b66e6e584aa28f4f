//! What is compared: nothing, programs that do nothing, nearpath in several settings, and peers that
//! measure the same with a hash map.

use nearpath_host::{CpuId, Topology};
use nearpath_instruments::locality::{Method, PacketLocality};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument, Measurement};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// One way to observe, or not to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// No program is attached.
    Nothing,
    /// The programs are attached and do nothing.
    Empty,
    /// nearpath as it comes: with budgets, and the paths of the ten slowest packets.
    Nearpath,
    /// `--no-budgets`.
    NoBudgets,
    /// `--sample 1/16`; a load of one flow is most times left out as a whole.
    Sampled,
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
            Self::Nearpath => "nearpath",
            Self::NoBudgets => "no-budgets",
            Self::Sampled => "sample-1/16",
            Self::Bpftrace => "bpftrace",
            Self::Bcc => "bcc",
            Self::Locality => "locality",
            Self::LocalityBpftrace => "locality-bt",
            Self::LocalityFunctions => "locality-fn",
        }
    }

    /// All tools, in the order of the report.
    pub const ALL: [Self; 10] = [
        Self::Nothing,
        Self::Empty,
        Self::Nearpath,
        Self::NoBudgets,
        Self::Sampled,
        Self::Bpftrace,
        Self::Bcc,
        Self::Locality,
        Self::LocalityBpftrace,
        Self::LocalityFunctions,
    ];

    /// Whether it can be run here; says why not.
    pub fn available(self) -> Result<(), String> {
        match self {
            Self::Bpftrace | Self::LocalityBpftrace | Self::LocalityFunctions
                if !nearpath_testing::require_program("bpftrace") =>
            {
                Err("there is no bpftrace".to_owned())
            }
            Self::LocalityFunctions => {
                let program = "kretfunc:__alloc_skb { exit(); } BEGIN { exit(); }";
                let attached = bpftrace().args(["-e", program]).output();
                let there = attached.is_ok_and(|output| output.status.success());
                there.then_some(()).ok_or_else(|| {
                    "bpftrace cannot attach to the kernel's functions here".to_owned()
                })
            }
            Self::Bcc => {
                let import = Command::new(PYTHON).args(["-c", "import bcc"]).output();
                let there = import.is_ok_and(|output| output.status.success());
                there.then_some(()).ok_or_else(|| "there is no python3-bpfcc".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Attaches it; it observes when this returns.
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
            Self::Nearpath => Options { budgets: true, outliers: 10, ..Options::default() },
            Self::NoBudgets => Options::default(),
            Self::Sampled => {
                let filter = Filter { sample: NonZeroU32::new(16), ..Filter::default() };
                Options { filter, budgets: true, outliers: 10, ..Options::default() }
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

/// The distribution's own Python, which the distribution's modules are for.
const PYTHON: &str = "/usr/bin/python3";

/// What nearpath says of a piece of work.
pub enum Measured {
    Nothing,
    Stages(Box<Measurement>),
    /// How packets were seen.
    Locality(Method),
}

/// A tool at work.
pub enum Running {
    Nothing,
    Nearpath(Box<Stages>),
    Locality(Box<PacketLocality>),
    Peer(Child),
}

impl Running {
    /// Detaches it; what nearpath has measured.
    pub fn stop(self) -> io::Result<Measured> {
        match self {
            Self::Nothing => Ok(Measured::Nothing),
            Self::Nearpath(mut stages) => {
                let measurement = stages.stop().map_err(io::Error::other)?;
                Ok(Measured::Stages(Box::new(measurement)))
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

/// bpftrace in a mount namespace of its own, where it finds the formats of tracepoints and the names of
/// functions.
fn bpftrace() -> Command {
    let mount = "test -e $T/events || mount -t tracefs nodev $T && exec bpftrace \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mount, "sh"]).env("T", "/sys/kernel/tracing");
    command
}

/// Starts a peer, and waits until it says that all its probes are attached.
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
            // Maps are printed at the end; somebody must read them.
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
