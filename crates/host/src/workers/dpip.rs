//! DPVS's workers by its own tool, `dpip link show cpu -s` (tools/dpip/link.c): roles, queues and counters. DPVS's
//! control socket carries structures of its build, so nothing else can ask it.
//!
//! ```text
//! << Controll Plane >>
//! 1: cpu0: socket 0
//!     queues none
//!     lcore_loop          pktburst            zpktburst           fpktburst
//!     1234                0                   0                   0
//! << Data Plane >>
//! 2: cpu1: socket 0
//!     queues rx0:0 tx0:0
//! ```

use crate::{ReadError, Root};
use nearpath_model::{NodeId, PollingRole, WorkerCounts};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Where the tool may be. Others could be anybody's.
const TOOLS: [&str; 4] =
    ["/usr/bin/dpip", "/usr/sbin/dpip", "/usr/local/bin/dpip", "/usr/local/sbin/dpip"];
/// Its arguments.
const ARGUMENTS: [&str; 4] = ["link", "show", "cpu", "-s"];
/// Time limit of the tool.
const TIME: Duration = Duration::from_secs(2);
/// Maximum size in bytes of its output: 64 workers have some 50 KiB.
const OUTPUT: u64 = 1 << 20;
/// Maximum number of workers (`DPVS_MAX_LCORE`).
const MAX: usize = 64;

/// A worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpvsWorker {
    /// Its lcore.
    pub lcore: u32,
    /// Its node as DPDK has it.
    pub node: Option<NodeId>,
    /// Its role.
    pub role: PollingRole,
    /// Its queues, as the tool prints them.
    pub queues: String,
    /// Totals.
    pub counts: WorkerCounts,
}

/// Runs the tool.
///
/// # Errors
/// It is not installed, belongs to another user than root, or does not answer in time.
pub fn ask() -> Result<Vec<DpvsWorker>, ReadError> {
    let tool = TOOLS.into_iter().find(|tool| std::fs::symlink_metadata(tool).is_ok());
    let tool = tool.ok_or_else(|| ReadError::new("dpip", "not installed"))?;
    trusted(tool)?;
    let text = output_of(tool, &ARGUMENTS, TIME).map_err(|reason| ReadError::new(tool, &reason))?;
    match parse(&text) {
        workers if workers.is_empty() => Err(ReadError::new(tool, "it shows no workers")),
        workers => Ok(workers),
    }
}

/// Asks if the root is this machine, or takes the saved answer.
pub fn read(root: &Root) -> Result<Vec<DpvsWorker>, ReadError> {
    root.answer("dpip/cpu", ask)
}

/// Only root may have written the tool, as root runs it.
fn trusted(tool: &str) -> Result<(), ReadError> {
    let about = |reason: &str| ReadError::new(tool, reason);
    let file = std::fs::metadata(tool).map_err(|error| about(&error.to_string()))?;
    let own = file.uid() == 0 && file.mode() & 0o022 == 0 && file.is_file();
    own.then_some(()).ok_or_else(|| about("not run, as others than root may write to it"))
}

/// What a program prints; it is ended when the time is over.
fn output_of(tool: &str, arguments: &[&str], time: Duration) -> Result<String, String> {
    let mut command = Command::new(tool);
    command.args(arguments).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let Some(stdout) = child.stdout.take() else { return Err("it has no output".to_owned()) };
    let (sender, receiver) = mpsc::channel();
    let reader = move || {
        let mut bytes = Vec::new();
        let read = stdout.take(OUTPUT).read_to_end(&mut bytes);
        // Nobody waits any more if the time is over.
        let _ = sender.send(read.map(|_| bytes));
    };
    // Ends when the program does, which is at the latest after the time limit.
    let thread = std::thread::Builder::new().name("nearpath-dpip".to_owned()).spawn(reader);
    if let Err(error) = thread {
        end(&mut child);
        return Err(error.to_string());
    }
    let result = receiver.recv_timeout(time);
    end(&mut child);
    match result {
        Ok(Ok(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Ends a program that has ended or not, and collects its status.
fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// Parses the output of the tool.
pub fn parse(text: &str) -> Vec<DpvsWorker> {
    let mut workers: Vec<DpvsWorker> = Vec::new();
    let mut role = PollingRole::Worker;
    let mut headings: Vec<&str> = Vec::new();
    for line in text.lines() {
        if let Some(section) = line.trim().strip_prefix("<<") {
            role = match section.trim_end_matches('>').trim() {
                // Spelled so in DPVS.
                "Controll Plane" | "Control Plane" => PollingRole::Main,
                "Data Plane" => PollingRole::Forwarding,
                "Isolate RX Lcores" => PollingRole::IsolatedRx,
                _ => PollingRole::Worker,
            };
            continue;
        }
        if let Some((lcore, node)) = cpu_line(line) {
            if workers.len() >= MAX {
                break;
            }
            workers.push(DpvsWorker { lcore, node, role, ..DpvsWorker::default() });
            headings.clear();
            continue;
        }
        let Some(worker) = workers.last_mut() else { continue };
        if let Some(queues) = line.trim().strip_prefix("queues ") {
            worker.queues = queues.trim().chars().filter(|c| !c.is_control()).take(200).collect();
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let numbers: Option<Vec<u64>> = words.iter().map(|word| word.parse().ok()).collect();
        match numbers {
            Some(numbers) => count(&mut worker.counts, &headings, &numbers),
            None => headings = words,
        }
    }
    workers
}

/// `2: cpu1: socket 0`.
fn cpu_line(line: &str) -> Option<(u32, Option<NodeId>)> {
    let (_, rest) = line.trim().split_once(": cpu")?;
    let (lcore, socket) = rest.split_once(": socket ")?;
    Some((lcore.parse().ok()?, socket.trim().parse().ok().map(NodeId)))
}

fn count(counts: &mut WorkerCounts, headings: &[&str], numbers: &[u64]) {
    for (heading, number) in headings.iter().zip(numbers) {
        match *heading {
            "pktburst" => counts.polls = Some(*number),
            "zpktburst" => counts.empty_polls = Some(*number),
            "fpktburst" => counts.full_bursts = Some(*number),
            "ipackets" => counts.packets = Some(*number),
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Instant;

    const SHOWN: &str = "\
<< Controll Plane >>
1: cpu0: socket 0
    queues none
    lcore_loop          pktburst            zpktburst           fpktburst
    99                  0                   0                   0
<< Data Plane >>
2: cpu1: socket 0
    queues rx0:0 tx0:0
    lcore_loop          pktburst            zpktburst           fpktburst
    1000                2000                1500                3
    z2hpktburst         h2fpktburst         dropped
    490                 10                  0
    ipackets            ibytes              opackets            obytes
    8000                9                   7                   6
<< Isolate RX Lcores >>
9: cpu8: socket -1
    queues rx1:0
";

    #[test]
    fn roles_and_counts_are_read() {
        let workers = parse(SHOWN);
        let roles: Vec<_> = workers.iter().map(|worker| (worker.lcore, worker.role)).collect();
        let [main, forwarding, isolated] =
            [PollingRole::Main, PollingRole::Forwarding, PollingRole::IsolatedRx];
        assert_eq!(roles, [(0, main), (1, forwarding), (8, isolated)]);
        let of = &workers[1].counts;
        assert_eq!((of.polls, of.empty_polls, of.full_bursts), (Some(2000), Some(1500), Some(3)));
        assert_eq!((of.packets, workers[1].queues.as_str()), (Some(8000), "rx0:0 tx0:0"));
        assert_eq!((workers[0].node, workers[2].node), (Some(NodeId(0)), None));
    }

    #[test]
    fn a_tool_that_hangs_or_never_ends_is_ended() {
        let began = Instant::now();
        let time = Duration::from_millis(200);
        assert!(output_of("/bin/sleep", &["60"], time).unwrap_err().contains("in time"));
        // Endless output is cut.
        let text = output_of("/usr/bin/yes", &[], Duration::from_secs(5));
        assert!(text.is_ok_and(|text| text.len() as u64 == OUTPUT));
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        assert!(output_of("/nonexistent/dpip", &[], time).is_err());
        // Nothing of ours is in the environment of the tool.
        assert_eq!(output_of("/usr/bin/env", &[], Duration::from_secs(5)).as_deref(), Ok(""));
    }

    #[test]
    fn a_tool_of_others_is_not_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dpip");
        std::fs::write(&path, "").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, mode).unwrap();
        assert!(trusted(path.to_str().unwrap()).is_err());
        assert!(trusted("/bin/sh").is_ok() && trusted("/").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,300}", lines in "([0-9: a-z<>]{0,30}\n){0,20}") {
            let _ = parse(&text);
            prop_assert!(parse(&lines).len() <= MAX);
        }
    }
}
