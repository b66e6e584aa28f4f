//! What is compared: nothing, programs that do nothing, nearpath in several settings, and peers that
//! measure the same with a hash map.

use nearpath_host::{CpuId, Topology};
use nearpath_instruments::locality::PacketLocality;
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
    /// `peer_locality.bt`.
    LocalityBpftrace,
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
        }
    }

    /// All tools, in the order of the report.
    pub const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Empty,
        Self::Nearpath,
        Self::NoBudgets,
        Self::Sampled,
        Self::Bpftrace,
        Self::Bcc,
        Self::Locality,
        Self::LocalityBpftrace,
    ];

    /// Whether it can be run here; says why not.
    pub fn available(self) -> Result<(), String> {
        match self {
            Self::Bpftrace | Self::LocalityBpftrace
                if !nearpath_testing::require_program("bpftrace") =>
            {
                Err("there is no bpftrace".to_owned())
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
            Self::Bpftrace | Self::LocalityBpftrace => {
                let script = match self {
                    Self::Bpftrace => &scripts.bpftrace,
                    _ => &scripts.locality,
                };
                // A mount namespace of its own, where it finds the tracepoints' formats.
                let mount =
                    "test -e $T/events || mount -t tracefs nodev $T && exec bpftrace \"$0\"";
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", mount]).arg(script);
                command.env("T", "/sys/kernel/tracing");
                return peer(&mut command);
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
    functions: bool,
}

impl Scripts {
    /// Writes them; `functions` with the stages of Open vSwitch and others without tracepoint.
    pub fn write(functions: bool) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (bpftrace, bcc) = (folder.path().join("peer.bt"), folder.path().join("peer_bcc.py"));
        let more = if functions { include_str!("peer_functions.bt") } else { "" };
        std::fs::write(&bpftrace, [include_str!("peer.bt"), more].concat())?;
        std::fs::write(&bcc, include_str!("peer_bcc.py"))?;
        let locality = folder.path().join("peer_locality.bt");
        std::fs::write(&locality, include_str!("peer_locality.bt"))?;
        Ok(Self { _folder: folder, bpftrace, bcc, locality, functions })
    }
}

/// The distribution's own Python, which the distribution's modules are for.
const PYTHON: &str = "/usr/bin/python3";

/// A tool at work.
pub enum Running {
    Nothing,
    Nearpath(Box<Stages>),
    Locality(Box<PacketLocality>),
    Peer(Child),
}

impl Running {
    /// Detaches it; what nearpath has measured.
    pub fn stop(self) -> io::Result<Option<Measurement>> {
        match self {
            Self::Nothing => Ok(None),
            Self::Nearpath(mut stages) => stages.stop().map(Some).map_err(io::Error::other),
            Self::Locality(mut locality) => locality.stop().map(|_| None).map_err(io::Error::other),
            Self::Peer(mut child) => {
                let pid = rustix::process::Pid::from_child(&child);
                rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
                child.wait().map(|_| None)
            }
        }
    }
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
