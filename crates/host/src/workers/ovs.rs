//! Open vSwitch's PMD threads, by JSON-RPC on the control socket of ovs-vswitchd (`/run/openvswitch/*.ctl`), as
//! `ovs-appctl` does it (lib/unixctl.c, lib/jsonrpc.c).
//!
//! ```text
//! pmd thread numa_id 0 core_id 3:
//!   isolated : false
//!   port: p0                queue-id:  0 (enabled)   pmd usage:  0 %
//! ```

use super::rpc;
use crate::ReadError;
use nearpath_model::{NodeId, WorkerCounts};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time limit of a conversation.
const TIME: Duration = Duration::from_secs(2);
/// Maximum number of PMD threads and of queues that are read.
const MAX: usize = 65_536;

/// What Open vSwitch reports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OvsFacts {
    /// Its version.
    pub version: Option<String>,
    /// PMD threads.
    pub pmds: Vec<OvsPmd>,
}

/// A PMD thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OvsPmd {
    /// Its core, the number of a CPU.
    pub core: u32,
    /// Its node as Open vSwitch has it.
    pub node: Option<NodeId>,
    /// Takes only the queues of a `pmd-rxq-affinity`.
    pub isolated: bool,
    /// Queues by interface.
    pub queues: BTreeMap<String, Vec<u32>>,
    /// Share of cycles spent on packets, in percent.
    pub busy_percent: Option<f64>,
    /// Totals; an iteration polls all queues of the thread.
    #[serde(default)]
    pub counts: WorkerCounts,
}

/// Asks the process behind a control socket.
///
/// # Errors
/// It does not answer as Open vSwitch does, in time and size.
pub fn ask(path: &str) -> Result<OvsFacts, ReadError> {
    let error = |reason: &str| ReadError::new(path, reason);
    let until = Instant::now() + TIME;
    let mut stream = UnixStream::connect(path).map_err(|e| error(&e.to_string()))?;
    let mut call = |method: &str| text(&mut stream, method, until).map_err(|e| error(&e));
    let text = match call("dpif-netdev/pmd-rxq-show") {
        // Of no datapath in user space: all packets pass the kernel. Or of several.
        Err(_) if call("dpctl/dump-dps").is_ok_and(|text| !has_user_space(&text)) => String::new(),
        text => text?,
    };
    let mut pmds = parse_queues(&text);
    let stats = call("dpif-netdev/pmd-stats-show").unwrap_or_default();
    let busy = parse_busy(&stats);
    let mut counts = parse_counts(&stats);
    // Absent before 2.10. Of the thread's own clock are the cycles, of this command its iterations.
    for (core, iterations) in parse_counts(&call("dpif-netdev/pmd-perf-show").unwrap_or_default()) {
        let of = counts.entry(core).or_default();
        (of.polls, of.empty_polls) = (iterations.polls, iterations.empty_polls);
    }
    for pmd in &mut pmds {
        pmd.busy_percent = busy.get(&pmd.core).copied();
        pmd.counts = counts.remove(&pmd.core).unwrap_or_default();
    }
    let version = call("version").ok();
    let version = version.and_then(|text| Some(text.lines().next()?.chars().take(80).collect()));
    Ok(OvsFacts { version, pmds })
}

/// Whether a datapath of `dump-dps`, `system@ovs-system` or `netdev@ovs-netdev`, is another than the kernel's.
fn has_user_space(text: &str) -> bool {
    let mut datapaths = text.lines().map(str::trim).filter(|line| !line.is_empty());
    datapaths.any(|datapath| !datapath.starts_with("system@"))
}

/// Calls a method of ovs-vswitchd, whose results are text.
fn text(stream: &mut UnixStream, method: &str, until: Instant) -> Result<String, String> {
    match rpc::call(stream, method, &json!([]), until)? {
        Value::String(text) => Ok(text),
        _ => Err("the reply has no result".to_owned()),
    }
}

/// Parses `pmd-rxq-show`.
pub fn parse_queues(text: &str) -> Vec<OvsPmd> {
    let mut pmds: Vec<OvsPmd> = Vec::new();
    let mut queues = 0;
    for line in text.lines() {
        if let Some((core, node)) = pmd_line(line) {
            if pmds.len() >= MAX {
                break;
            }
            pmds.push(OvsPmd { core, node, ..OvsPmd::default() });
        }
        let Some(pmd) = pmds.last_mut() else { continue };
        let line = line.trim();
        if let Some(value) = line.strip_prefix("isolated :") {
            pmd.isolated = value.trim() == "true";
        }
        let Some((port, rest)) =
            line.strip_prefix("port:").and_then(|line| line.split_once("queue-id:"))
        else {
            continue;
        };
        let id = rest.split_whitespace().next().and_then(|id| id.parse().ok());
        if let Some(id) = id.filter(|_| queues < MAX) {
            queues += 1;
            let name = port.trim().chars().take(64).collect();
            pmd.queues.entry(name).or_default().push(id);
        }
    }
    pmds
}

/// Parses `pmd-stats-show`: the busy share by core.
pub fn parse_busy(text: &str) -> BTreeMap<u32, f64> {
    let mut busy = BTreeMap::new();
    let mut core = None;
    for line in text.lines() {
        if line.contains("thread") {
            core = pmd_line(line).map(|(core, _)| core);
        }
        // "processing cycles: 1234 (5.67%)"
        let share = line.trim().strip_prefix("processing cycles:").and_then(|rest| {
            let (_, percent) = rest.split_once('(')?;
            percent.split('%').next()?.trim().parse::<f64>().ok()
        });
        if let (Some(core), Some(share)) = (core, share.filter(|s| (0.0..=100.0).contains(s))) {
            busy.insert(core, share);
        }
    }
    busy
}

/// Parses `pmd-stats-show` and `pmd-perf-show`: totals by core.
///
/// ```text
///   packets received: 7                                 Iterations:                38282  (7.45 us/it)
///   idle cycles: 2795885118 (99.00%)                    - idle iterations:         38282  (100.0 % of used cycles)
///   processing cycles: 7 (1.00%)                        Rx packets:                    7
/// ```
pub fn parse_counts(text: &str) -> BTreeMap<u32, WorkerCounts> {
    let mut counts: BTreeMap<u32, WorkerCounts> = BTreeMap::new();
    let mut core = None;
    for line in text.lines() {
        if line.contains("thread") {
            core = pmd_line(line).map(|(core, _)| core);
        }
        let Some((what, rest)) = line.trim().trim_start_matches("- ").split_once(':') else {
            continue;
        };
        let number = rest.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        let (Some(core), Some(number)) = (core, number) else { continue };
        if counts.len() >= MAX && !counts.contains_key(&core) {
            break;
        }
        let of = counts.entry(core).or_default();
        match what {
            "packets received" => of.packets = Some(number),
            "Iterations" => of.polls = Some(number),
            "idle iterations" => of.empty_polls = Some(number),
            "processing cycles" => {
                of.busy_cycles = Some(number);
                of.total_cycles = of.total_cycles.and_then(|idle| idle.checked_add(number));
            }
            // Comes before the cycles of processing.
            "idle cycles" => of.total_cycles = Some(number),
            _ => (),
        }
    }
    counts
}

/// The core and the node in `pmd thread numa_id 0 core_id 3:`.
fn pmd_line(line: &str) -> Option<(u32, Option<NodeId>)> {
    let rest = line.trim().strip_prefix("pmd thread numa_id ")?;
    let (node, core) = rest.split_once(" core_id ")?;
    let core = core.trim_end_matches(':').parse().ok()?;
    Some((core, node.parse().ok().map(NodeId)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    const SHOWN: &str = "\
pmd thread numa_id 0 core_id 0:
  isolated : false
  port: p0                queue-id:  0 (enabled)   pmd usage:  0 %
  port: p0                queue-id:  2 (enabled)   pmd usage: NOT AVAIL
  overhead:  0 %
pmd thread numa_id 1 core_id 4:
  isolated : true
  port: p 1               queue-id:  1 (enabled)   pmd usage: 12 %
  overhead: NOT AVAIL
";

    #[test]
    fn queues_and_busy_shares_are_read() {
        let pmds = parse_queues(SHOWN);
        assert_eq!(pmds.len(), 2);
        assert_eq!(pmds[0].queues, BTreeMap::from([("p0".to_owned(), vec![0, 2])]));
        assert_eq!((pmds[1].core, pmds[1].node, pmds[1].isolated), (4, Some(NodeId(1)), true));
        let text = "pmd thread numa_id 0 core_id 0:\n  idle cycles: 90 (90.00%)\n  processing cycles: 10 (10.00%)\n\
                    main thread:\n  processing cycles: 5 (50.00%)\n";
        assert_eq!(parse_busy(text), BTreeMap::from([(0, 10.0)]));
        let of = |text: &str| parse_counts(text).remove(&0).unwrap_or_default();
        assert_eq!((of(text).busy_cycles, of(text).total_cycles), (Some(10), Some(100)));
        let text = "Time: 03:32\npmd thread numa_id 0 core_id 0:\n\n  Iterations:   38282  (75.45 us/it)\n\
                    \x20 - idle iterations:  38200  (100.0 % of used cycles)\n  Rx packets:   7\n";
        assert_eq!((of(text).polls, of(text).empty_polls), (Some(38_282), Some(38_200)));
        assert!(parse_counts("  Iterations: 7\n").is_empty(), "of no thread");
        assert!(parse_queues("").is_empty() && parse_busy("processing cycles: x (y%)").is_empty());
    }

    #[test]
    fn without_a_datapath_in_user_space_there_are_no_threads() {
        assert!(!has_user_space("") && !has_user_space("system@ovs-system\n"));
        assert!(has_user_space("system@ovs-system\nnetdev@ovs-netdev\n"));
        assert!(has_user_space("dummy@ovs-dummy"));
    }

    #[test]
    fn hostile_processes_do_no_harm() {
        let asked = |serve: fn(UnixStream)| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.ctl");
            let server = UnixListener::bind(&path).unwrap();
            let thread = thread::spawn(move || serve(server.accept().unwrap().0));
            let start = Instant::now();
            let result = ask(path.to_str().unwrap());
            assert!(start.elapsed() < TIME * 3, "{:?}", start.elapsed());
            thread.join().unwrap();
            result
        };
        let endless = asked(|mut stream| while stream.write_all(&[b'['; 4096]).is_ok() {});
        assert!(endless.is_err());
        let endless = asked(|mut stream| {
            let _ = stream.write_all(b"{\"result\":\"");
            while stream.write_all(&[b'a'; 65_536]).is_ok() {}
        });
        assert!(endless.unwrap_err().to_string().contains("too large"));
        let hanging = asked(|mut stream| while matches!(stream.read(&mut [0; 512]), Ok(1..)) {});
        assert!(hanging.unwrap_err().to_string().contains("time"));
        assert!(asked(|mut stream| drop(stream.write_all(b"hello"))).is_err());
        assert!(asked(drop).is_err());
    }
}
