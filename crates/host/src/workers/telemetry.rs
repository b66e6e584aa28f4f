//! A DPDK process by its telemetry socket (lib/telemetry/telemetry.c): SOCK_SEQPACKET, a greeting, then one packet for
//! each request, a JSON object with the request as its key.
//!
//! The process may be anybody's: each packet has a limit, and the whole conversation a time limit. A reply that the
//! process cut at its own limit (16 KiB) is no JSON, and so unknown.

use crate::ReadError;
use nearpath_model::{CpuSet, NodeId, PollingPool};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time limit of a conversation.
const TIME: Duration = Duration::from_secs(2);
/// Time limit of one reply.
const REPLY: Duration = Duration::from_millis(500);
/// Maximum size in bytes of a packet.
const PACKET: usize = 256 << 10;
/// Maximum number of ports, lcores and heaps asked about.
const MAX: usize = 128;
/// Maximum number of words and characters of EAL's options.
const MAX_WORDS: usize = 256;
const MAX_CHARACTERS: usize = 4096;

/// What a process reports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TelemetryFacts {
    /// Its process id by the kernel (SO_PEERCRED).
    pub pid: u32,
    /// `DPDK 24.11.0`.
    pub version: Option<String>,
    /// EAL's options.
    pub params: Vec<String>,
    /// Lcores, from DPDK 23.03 on.
    pub lcores: Vec<TelemetryLcore>,
    /// Ports.
    pub ports: Vec<TelemetryPort>,
    /// Bytes of the heaps by node.
    pub heaps: BTreeMap<NodeId, u64>,
    /// Pools, from DPDK 22.03 on.
    #[serde(default)]
    pub pools: Vec<PollingPool>,
    /// Requests without a usable answer, with the reason.
    pub failed: Vec<(String, String)>,
}

/// An lcore of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TelemetryLcore {
    /// Its id.
    pub id: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Its node as DPDK has it.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// Busy and total cycles, if the application counts them.
    pub cycles: Option<(u64, u64)>,
}

/// A port of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TelemetryPort {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Receive queues.
    pub rx_queues: Option<u32>,
    /// Transmit queues.
    pub tx_queues: Option<u32>,
    /// `ipackets`, `imissed`, `rx_nombuf`.
    pub counters: [Option<u64>; 3],
    /// Packets by receive queue.
    #[serde(default)]
    pub queue_packets: Vec<u64>,
}

/// Asks the process behind a socket.
///
/// # Errors
/// It does not answer as DPDK does, in time and size.
pub fn ask(path: &str) -> Result<TelemetryFacts, ReadError> {
    let (mut client, mut facts) = Client::connect(path)?;
    let mut failed = Vec::new();
    let mut get = |request: String| match client.request(&request) {
        Ok(value) => Some(value),
        Err(reason) => {
            failed.push((request, reason));
            None
        }
    };
    let words = get("/eal/params".to_owned());
    facts.params = words.as_ref().map(strings).unwrap_or_default();
    for id in get("/ethdev/list".to_owned()).as_ref().map(numbers).unwrap_or_default() {
        let Some(info) = get(format!("/ethdev/info,{id}")) else { continue };
        let queues = |key: &str| -> Option<u32> { info.get(key)?.as_u64()?.try_into().ok() };
        // Not of a port that was never configured, as Open vSwitch leaves those that it does not use: drivers without
        // queues read counters where there are none (`vmxnet3_dev_stats_get` of 24.11), and the process crashes.
        let has_queues = [queues("nb_rx_queues"), queues("nb_tx_queues")] != [Some(0), Some(0)];
        let stats = has_queues.then(|| get(format!("/ethdev/stats,{id}"))).flatten();
        let stats = stats.unwrap_or_default();
        let counter = |key: &str| stats.get(key)?.as_u64();
        let rx_queues = queues("nb_rx_queues");
        let count = usize::try_from(rx_queues.unwrap_or(0)).unwrap_or(usize::MAX);
        // The statistics have 16 queues (RTE_ETHDEV_QUEUE_STAT_CNTRS), the extended ones all.
        let queue_packets = if count > QUEUES_IN_STATS {
            let xstats = get(format!("/ethdev/xstats,{id}")).unwrap_or_default();
            packets_in_xstats(&xstats, count)
        } else {
            packets_in_stats(&stats, count)
        };
        facts.ports.push(TelemetryPort {
            id,
            name: name_in(&info, "name"),
            rx_queues,
            tx_queues: queues("nb_tx_queues"),
            counters: [counter("ipackets"), counter("imissed"), counter("rx_nombuf")],
            queue_packets,
        });
    }
    // Absent before DPDK 23.03: null.
    for id in get("/eal/lcore/list".to_owned()).as_ref().map(numbers).unwrap_or_default() {
        let Some(info) = get(format!("/eal/lcore/info,{id}")) else { continue };
        let cycles = |key: &str| info.get(key)?.as_u64();
        let cpus = info.get("cpuset").map(numbers).unwrap_or_default();
        facts.lcores.push(TelemetryLcore {
            id,
            cpus: cpus.into_iter().map(nearpath_model::CpuId).collect(),
            node: node_in(&info, "socket"),
            cycles: cycles("busy_cycles").zip(cycles("total_cycles")),
        });
    }
    for id in get("/eal/heap_list".to_owned()).as_ref().map(numbers).unwrap_or_default() {
        let Some(info) = get(format!("/eal/heap_info,{id}")) else { continue };
        let name = info.get("Name").and_then(Value::as_str).unwrap_or_default();
        let node = name.strip_prefix("socket_").and_then(|node| node.parse().ok());
        let size = info.get("Heap_size").and_then(Value::as_u64);
        if let (Some(node), Some(size)) = (node, size) {
            facts.heaps.insert(NodeId(node), size);
        }
    }
    // Absent before DPDK 22.03.
    let names = get("/mempool/list".to_owned()).as_ref().map(strings).unwrap_or_default();
    for name in names.iter().filter(|name| is_name(name)).take(MAX) {
        let info = get(format!("/mempool/info,{name}"));
        facts.pools.extend(info.as_ref().and_then(pool));
    }
    failed.truncate(MAX);
    facts.failed = failed;
    Ok(facts)
}

/// Queues in `/ethdev/stats`.
const QUEUES_IN_STATS: usize = 16;
/// Maximum number of queues of a port: `RTE_MAX_QUEUES_PER_PORT`.
const MAX_QUEUES: usize = 1024;

fn name_in(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().chars().take(64).collect()
}

/// A node, which DPDK reports as -1 if it is any.
fn node_in(value: &Value, key: &str) -> Option<NodeId> {
    value.get(key)?.as_u64()?.try_into().ok().map(NodeId)
}

/// Whether a name may be part of a request: no comma, which ends it.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 64 && name.bytes().all(|b| b.is_ascii_graphic() && b != b',')
}

/// The pool in the answer to `/mempool/info`.
fn pool(info: &Value) -> Option<PollingPool> {
    let count = |key: &str| info.get(key)?.as_u64();
    let bytes = ["header_size", "elt_size", "trailer_size"].map(count);
    let bytes = bytes.into_iter().try_fold(0u64, |sum, bytes| sum.checked_add(bytes?));
    Some(PollingPool {
        name: Some(name_in(info, "name")).filter(|name| !name.is_empty())?,
        node: node_in(info, "socket_id"),
        elements: count("size"),
        element_bytes: bytes,
    })
}

/// `q_ipackets` of as many queues.
fn packets_in_stats(stats: &Value, queues: usize) -> Vec<u64> {
    let list = stats.get("q_ipackets").and_then(Value::as_array);
    let list = list.map(Vec::as_slice).unwrap_or_default();
    list.iter().take(queues).filter_map(Value::as_u64).collect()
}

/// `rx_q17_packets` of as many queues; none unless all are there.
fn packets_in_xstats(xstats: &Value, queues: usize) -> Vec<u64> {
    let of = |queue: usize| xstats.get(format!("rx_q{queue}_packets"))?.as_u64();
    (0..queues.min(MAX_QUEUES)).map(of).collect::<Option<_>>().unwrap_or_default()
}

struct Client {
    socket: OwnedFd,
    until: Instant,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(path: &str) -> Result<(Self, TelemetryFacts), ReadError> {
        let error = |errno| ReadError::from_errno(path, errno);
        let flags = SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(error)?;
        let until = Instant::now() + TIME;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(REPLY)).map_err(error)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(REPLY)).map_err(error)?;
        let address = SocketAddrUnix::new(path).map_err(error)?;
        // Nobody listens: the process has ended.
        let refused = |errno| ReadError {
            absent: matches!(errno, rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT),
            ..error(errno)
        };
        connect(&socket, &address).map_err(refused)?;
        let peer = sockopt::socket_peercred(&socket).map_err(error)?;
        let mut client = Self { socket, until, buffer: vec![0; PACKET] };
        let greeting = client.receive().map_err(|reason| ReadError::new(path, &reason))?;
        let version = greeting.get("version").and_then(Value::as_str);
        if version.is_none() {
            return Err(ReadError::new(path, "no greeting of DPDK"));
        }
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or_default();
        let version = version.map(|version| version.chars().take(64).collect());
        Ok((client, TelemetryFacts { pid, version, ..TelemetryFacts::default() }))
    }

    /// The value that belongs to a request.
    fn request(&mut self, request: &str) -> Result<Value, String> {
        if Instant::now() >= self.until {
            return Err("time limit exceeded".to_owned());
        }
        send(&self.socket, request.as_bytes(), SendFlags::NOSIGNAL).map_err(|e| e.to_string())?;
        let mut reply = self.receive()?;
        let key = request.split(',').next().unwrap_or_default();
        reply
            .get_mut(key)
            .map(Value::take)
            .ok_or_else(|| "the reply is to another request".to_owned())
    }

    fn receive(&mut self) -> Result<Value, String> {
        let left = self.until.saturating_duration_since(Instant::now()).min(REPLY);
        if left.is_zero() {
            return Err("time limit exceeded".to_owned());
        }
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(left))
            .map_err(|errno| errno.to_string())?;
        let (length, whole) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC)
            .map_err(|errno| match errno {
                rustix::io::Errno::AGAIN => "no reply in time".to_owned(),
                other => other.to_string(),
            })?;
        if whole == 0 {
            return Err("connection closed".to_owned());
        }
        if whole > length {
            return Err(format!("a reply of {whole} bytes is too large"));
        }
        let packet = self.buffer.get(..length).unwrap_or_default();
        serde_json::from_slice(packet.trim_ascii_end()).map_err(|_| "not JSON, or cut".to_owned())
    }
}

fn numbers(value: &Value) -> Vec<u32> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|v| v.as_u64()?.try_into().ok()).take(MAX).collect()
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let words = list.iter().filter_map(Value::as_str).take(MAX_WORDS);
    words.map(|word| word.chars().take(MAX_CHARACTERS).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{accept, bind, listen};
    use std::thread;

    /// A process that behaves as told; the result of asking it, and how long that took.
    fn asked(
        serve: impl FnOnce(OwnedFd) + Send + 'static,
    ) -> (Result<TelemetryFacts, ReadError>, Duration) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dpdk_telemetry.v2");
        let kind = SocketType::SEQPACKET;
        let server = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        bind(&server, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&server, 1).unwrap();
        let thread = thread::spawn(move || serve(accept(&server).unwrap()));
        let start = Instant::now();
        let result = ask(path.to_str().unwrap());
        let took = start.elapsed();
        thread.join().unwrap();
        (result, took)
    }

    fn say(fd: &OwnedFd, packet: &[u8]) -> bool {
        send(fd, packet, SendFlags::NOSIGNAL).is_ok()
    }

    fn heard(fd: &OwnedFd) -> Option<String> {
        let mut buffer = [0; 256];
        let (length, _) = recv(fd, &mut buffer[..], RecvFlags::empty()).ok()?;
        (length > 0).then(|| String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    const GREETING: &[u8] = br#"{"version":"DPDK 22.11.11","pid":1,"max_output_len":16384}"#;

    #[test]
    fn a_process_that_never_ends_its_answers_does_no_harm() {
        // Sends without being asked, until the reader has gone.
        let (result, took) = asked(|fd| {
            say(&fd, GREETING);
            while say(&fd, br#"{"/x":[1,2,3]}"#) {}
        });
        let facts = result.unwrap();
        assert!(
            facts.failed.iter().all(|(_, reason)| reason.contains("another request")),
            "{facts:?}"
        );
        assert!(facts.ports.is_empty() && took < TIME * 2, "{took:?}");
    }

    #[test]
    fn a_huge_answer_is_not_read() {
        let (result, _) = asked(|fd| {
            let _ = sockopt::set_socket_send_buffer_size(&fd, 4 << 20);
            say(&fd, GREETING);
            while heard(&fd).is_some() {
                let sent = (1..=20).rev().any(|size| say(&fd, &vec![b'['; PACKET + (size << 15)]));
                if !sent {
                    say(&fd, &vec![b'['; PACKET - 4096]);
                }
            }
        });
        let facts = result.unwrap();
        assert!(facts.params.is_empty() && !facts.failed.is_empty());
        for (request, reason) in &facts.failed {
            assert!(
                reason.contains("too large") || reason.contains("not JSON"),
                "{request}: {reason}"
            );
        }
    }

    #[test]
    fn what_is_not_json_or_another_type_is_unknown() {
        let answers: [&[u8]; 6] =
            [b"", b"\0", b"{", b"null", br#"{"/eal/params":{"a":[[[[]]]]}}"#, b"[1e999,-1]"];
        for answer in answers {
            let (result, _) = asked(move |fd| {
                say(&fd, GREETING);
                while heard(&fd).is_some() && say(&fd, answer) {}
            });
            let facts = result.unwrap();
            assert!(facts.params.is_empty() && facts.ports.is_empty(), "{facts:?}");
        }
        let (result, _) = asked(|fd| assert!(say(&fd, b"hello")));
        assert!(result.unwrap_err().to_string().contains("not JSON"));
        let (result, _) = asked(drop);
        assert!(result.is_err());
    }

    #[test]
    fn a_socket_that_a_process_left_behind_is_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dpdk_telemetry.v2");
        assert!(ask(path.to_str().unwrap()).unwrap_err().absent);
        let kind = SocketType::SEQPACKET;
        let server = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        bind(&server, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(server);
        assert!(ask(path.to_str().unwrap()).unwrap_err().absent);
    }

    #[test]
    fn a_process_that_hangs_is_left_in_time() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (result, took) = asked(move |fd| {
            // Until the reader has closed its end.
            while heard(&fd).is_some() {}
            drop(done);
        });
        assert!(result.unwrap_err().to_string().contains("no reply in time"));
        assert!(took < TIME * 2, "{took:?}");
        assert!(wait.recv().is_err());
        // It greets, and then answers nothing.
        let (result, took) = asked(|fd| {
            say(&fd, GREETING);
            while heard(&fd).is_some() {}
        });
        assert!(!result.unwrap().failed.is_empty());
        assert!(took < TIME * 2, "{took:?}");
    }

    #[test]
    fn a_port_without_queues_is_not_asked_for_counters() {
        let (result, _) = asked(|fd| {
            say(&fd, GREETING);
            while let Some(request) = heard(&fd) {
                let key = request.split(',').next().unwrap().to_owned();
                let value = match request.as_str() {
                    "/eal/params" | "/eal/lcore/list" | "/eal/heap_list" => "[]",
                    "/ethdev/list" => "[1]",
                    "/ethdev/info,1" => r#"{"name":"a","nb_rx_queues":0,"nb_tx_queues":0}"#,
                    // As a driver without queues crashes.
                    request if request.starts_with("/ethdev/stats") => return,
                    _ => "null",
                };
                say(&fd, format!("{{{}:{value}}}", Value::from(key)).as_bytes());
            }
        });
        let facts = result.unwrap();
        assert_eq!(facts.failed, []);
        assert_eq!((facts.ports[0].rx_queues, facts.ports[0].counters), (Some(0), [None; 3]));
    }

    #[test]
    fn answers_of_dpdk_are_read() {
        let (result, _) = asked(|fd| {
            say(&fd, GREETING);
            while let Some(request) = heard(&fd) {
                let key = request.split(',').next().unwrap().to_owned();
                let value = match request.as_str() {
                    "/eal/params" => r#"["dpdk-testpmd","--lcores","0@0,1@1"]"#,
                    "/ethdev/list" | "/eal/heap_list" => "[0]",
                    "/ethdev/info,0" => {
                        r#"{"name":"0000:5e:00.0","nb_rx_queues":4,"nb_tx_queues":2,"numa_node":0}"#
                    }
                    "/ethdev/stats,0" => {
                        r#"{"ipackets":31020256,"imissed":7,"rx_nombuf":0,"q_ipackets":[5,6,7,8,0,0]}"#
                    }
                    "/eal/lcore/list" => "[1]",
                    "/eal/lcore/info,1" => {
                        r#"{"lcore_id":1,"cpuset":[3,4],"busy_cycles":25,"total_cycles":100}"#
                    }
                    "/mempool/list" => r#"["mb_pool_0","a,b"]"#,
                    "/mempool/info,mb_pool_0" => {
                        r#"{"name":"mb_pool_0","size":4096,"socket_id":1,"header_size":64,"elt_size":2304,"trailer_size":0}"#
                    }
                    "/eal/heap_info,0" => r#"{"Name":"socket_1","Heap_size":268435456}"#,
                    _ => "null",
                };
                say(&fd, format!("{{{}:{value}}}", Value::from(key)).as_bytes());
            }
        });
        let facts = result.unwrap();
        assert_eq!(facts.pid, std::process::id());
        assert_eq!(facts.version.as_deref(), Some("DPDK 22.11.11"));
        assert_eq!(facts.params.len(), 3);
        let port = &facts.ports[0];
        assert_eq!(
            (port.name.as_str(), port.rx_queues, port.tx_queues),
            ("0000:5e:00.0", Some(4), Some(2))
        );
        assert_eq!(port.counters, [Some(31_020_256), Some(7), Some(0)]);
        assert_eq!(port.queue_packets, [5, 6, 7, 8]);
        let [pool] = facts.pools.as_slice() else { panic!("{facts:?}") };
        assert_eq!((pool.node, pool.elements), (Some(NodeId(1)), Some(4096)));
        assert_eq!(pool.element_bytes, Some(2368));
        assert_eq!(
            (facts.lcores[0].cpus.to_string(), facts.lcores[0].cycles),
            ("3-4".to_owned(), Some((25, 100)))
        );
        assert_eq!(facts.heaps, BTreeMap::from([(NodeId(1), 256 << 20)]));
        assert!(facts.failed.is_empty());
    }
}
