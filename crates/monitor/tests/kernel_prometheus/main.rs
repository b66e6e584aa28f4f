//! The daemon under load on this kernel, scraped by a real Prometheus (3.0 or later: that of the PATH, or the one that
//! NEARPATH_PROMETHEUS names).

mod prometheus;

use nearpath_model::histogram::{ZERO_INDEX, interpolated_ns};
use nearpath_monitor::runner::{Config, Outside, Source, run};
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_bpf, require_netns};
use prometheus::{Prometheus, get, program};
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    Histogram, MetricFamily,
};
use prost::Message;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PROTOBUF: &str =
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

fn config(listen: SocketAddr) -> Config {
    Config {
        listen,
        insecure: false,
        web_config: None,
        interval: Duration::from_millis(500),
        findings: Duration::from_secs(2),
        limit: None,
        sources: Source::ALL.into_iter().filter(|source| *source != Source::Memory).collect(),
        record: None,
        report: None,
        btf_file: None,
        version: "test".to_owned(),
    }
}

/// Runs `test` beside a daemon, which ends with it.
fn with_daemon(listen: SocketAddr, test: impl FnOnce(SocketAddr)) {
    let (ends, (tell, told)) = (AtomicBool::new(false), channel());
    let tell = std::sync::Mutex::new(tell);
    std::thread::scope(|scope| {
        let daemon = scope.spawn(|| {
            let wait = |time: Duration| {
                std::thread::sleep(time.min(Duration::from_millis(500)));
                ends.load(Ordering::Relaxed)
            };
            let say = |text: &str| {
                let address = text.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
                if let Some((address, _)) = address {
                    tell.lock().unwrap().send(address.parse().unwrap()).unwrap();
                }
            };
            run(&config(listen), Outside { wait: &wait, say: &say })
        });
        let address = told.recv_timeout(Duration::from_secs(60)).unwrap();
        let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(address)));
        ends.store(true, Ordering::Relaxed);
        daemon.join().unwrap().unwrap();
        if let Err(panic) = tested {
            std::panic::resume_unwind(panic);
        }
    });
}

/// As `wait_for`, on a machine where loading the programs takes long.
fn patiently<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(120);
    while Instant::now() < end {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("waited too long for {what}");
}

/// Packets back and forth between two namespaces.
fn load(pair: &VethPair, rounds: u32) {
    let bind = |side: Side| {
        pair.run(side, |side| UdpSocket::bind((side.ipv4(), 0))).expect("a socket in a namespace")
    };
    let (client, server) = (bind(Side::Client), bind(Side::Server));
    client.connect(server.local_addr().unwrap()).unwrap();
    server.connect(client.local_addr().unwrap()).unwrap();
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            for _ in 0..rounds {
                let n = server.recv(&mut buffer).unwrap();
                server.send(&buffer[..n]).unwrap();
            }
        });
        let mut buffer = [0; 64];
        for _ in 0..rounds {
            client.send(b"ping").unwrap();
            client.recv(&mut buffer).unwrap();
        }
    });
}

/// The daemon's own histogram of received packets.
fn own(address: SocketAddr) -> Option<Histogram> {
    let (_, body) = get(address, "/metrics", PROTOBUF)?;
    let mut bytes = body.as_slice();
    while !bytes.is_empty() {
        let family = MetricFamily::decode_length_delimited(&mut bytes).unwrap();
        if family.name == "nearpath_path_latency_seconds" {
            let is = |metric: &&prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::Metric| {
                metric.label.iter().any(|label| label.value == "receive")
            };
            return family.metric.iter().find(is)?.histogram.clone();
        }
    }
    None
}

/// Its buckets by nearpath's number.
fn buckets(histogram: &Histogram) -> Vec<(usize, u64)> {
    let mut buckets = vec![(0, histogram.zero_count)];
    let (mut index, mut count, mut deltas) = (0, 0, histogram.positive_delta.iter());
    for span in &histogram.positive_span {
        index += span.offset;
        for _ in 0..span.length {
            count += deltas.next().unwrap();
            buckets.push((usize::try_from(index - ZERO_INDEX).unwrap(), count.try_into().unwrap()));
            index += 1;
        }
    }
    buckets
}

/// The only result of both scrapers.
fn both(prometheus: &Prometheus, expression: &str) -> Option<f64> {
    let results = prometheus.query(expression, "job");
    let [(_, one), (_, two)] = results.as_slice() else { return None };
    (one == two || (one.is_nan() && two.is_nan())).then_some(*one)
}

const QUANTILES: [f64; 5] = [0.1, 0.5, 0.9, 0.99, 0.999];
const RECEIVE: &str = "nearpath_path_latency_seconds{direction=\"receive\"}";

#[test]
fn a_real_prometheus_sees_what_the_daemon_has_counted() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !require_bpf() || !require_netns() {
        return;
    }
    let Some(program) = program("NEARPATH_PROMETHEUS", "prometheus") else { return };
    let pair = VethPair::new(1).unwrap();
    let mut kept = None;
    with_daemon("127.0.0.1:0".parse().unwrap(), |address| {
        let prometheus = Prometheus::start(&program, address);
        patiently("stages", || {
            load(&pair, 200);
            own(address).filter(|own| own.sample_count > 400)
        });
        // Rates are of what comes after the first scrapes.
        patiently("the first scrapes", || {
            load(&pair, 10);
            (prometheus.query(RECEIVE, "job").len() == 2).then_some(())
        });
        load(&pair, 20_000);
        // What it serves changes twice a second, as the scrapes are packets, too; each job scrapes at its own moment.
        let mut served = Vec::new();
        patiently("all packets", || {
            load(&pair, 10);
            // 20,000 each way; few of them collide.
            own(address).filter(|own| own.sample_count > 38_000)
        });
        for job in ["one", "two"] {
            let (histogram, rates, missing) = patiently("a scrape of what was served", || {
                let now = own(address)?;
                if served.last() != Some(&now) {
                    served.push(now);
                }
                // All of the same moment, when all scrapes are stored.
                let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() - 0.5;
                let ask = |expression: &str| prometheus.query_at(expression, at).remove(job);
                let count = ask(&format!("histogram_count({RECEIVE})"))?;
                let sum = ask(&format!("histogram_sum({RECEIVE})"))?;
                let is_it =
                    |own: &&Histogram| own.sample_count as f64 == count && own.sample_sum == sum;
                let scraped = served.iter().find(is_it)?.clone();
                let said = QUANTILES.map(|q| {
                    let of = |of: &str| ask(&format!("histogram_quantile({q}, {of})")).unwrap();
                    (q, of(RECEIVE), of(&format!("rate({RECEIVE}[5m])")))
                });
                // What the first scrape had is not in the rates.
                let counts = format!("min_over_time(histogram_count({RECEIVE})[5m:100ms])");
                Some((scraped, said, ask(&counts)? / count))
            });
            assert_eq!(histogram.schema, 4);
            assert!(
                missing < 0.25,
                "{job}: {missing} of the samples were there before the first scrape"
            );
            let buckets = buckets(&histogram);
            for (q, said, of_rate) in rates {
                let ours = interpolated_ns(&buckets, q).unwrap() / 1e9;
                assert!((said / ours - 1.0).abs() < 1e-6, "{job}, p{q}: {said} {ours}");
                // By rate, over the time since the first scrape: samples that are missing may be the fastest or the slowest.
                let rank = q * (1.0 - missing);
                let [least, most] = [rank, rank + missing]
                    .map(|rank| interpolated_ns(&buckets, rank).unwrap() / 1e9);
                let is_right = (least * 0.95..=most * 1.05).contains(&of_rate);
                assert!(is_right, "p{q} of the rate of {job}: {of_rate}, {least} to {most}");
            }
        }
        for (_, up) in prometheus.query("nearpath_instrument_up", "instrument") {
            assert_eq!(up, 1.0);
        }
        kept = Some((prometheus, address));
    });
    // The daemon starts again at the same address: Prometheus sees a reset, not a loss.
    let (prometheus, address) = kept.unwrap();
    with_daemon(address, |address| {
        patiently("stages after a restart", || {
            load(&pair, 200);
            own(address).filter(|own| own.sample_count > 400)
        });
        patiently("the reset", || {
            (both(&prometheus, &format!("resets({RECEIVE}[5m])"))? == 1.0).then_some(())
        });
        let increase = format!("histogram_count(increase({RECEIVE}[5m]))");
        for (job, increase) in prometheus.query(&increase, "job") {
            assert!(increase > 30_000.0, "{job}: {increase}");
        }
    });
}

#[test]
fn promtool_has_no_complaint_and_scrapers_get_the_same() {
    if !require_bpf() || !require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    with_daemon("127.0.0.1:0".parse().unwrap(), |address| {
        patiently("stages", || {
            load(&pair, 200);
            own(address).filter(|own| own.sample_count > 400)
        });
        let (head, text) = get(address, "/metrics", "text/plain").unwrap();
        assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
        let text = String::from_utf8(text).unwrap();
        // A histogram is one series for those that scrape native ones.
        let is_series = |line: &&str| !line.starts_with('#') && !line.contains("_bucket{");
        let series = text.lines().filter(is_series).count();
        assert!((50..500).contains(&series), "{series}");
        let (head, findings) = patiently("findings", || {
            get(address, "/findings", "").filter(|(head, _)| head.starts_with("HTTP/1.1 200 "))
        });
        assert!(head.contains("Content-Type: application/json"), "{head}");
        let findings: serde_json::Value = serde_json::from_slice(&findings).unwrap();
        assert!(findings["findings"].is_array() && findings["time_s"].is_u64());
        for page in ["/-/healthy", "/-/ready", "/"] {
            assert!(get(address, page, "").unwrap().0.starts_with("HTTP/1.1 200 "), "{page}");
        }
        // What reads from the network has no capabilities, what accepts connections CAP_DAC_READ_SEARCH alone, for
        // certificates of any owner, and what observes has kept them.
        let open = TcpStream::connect(address).unwrap();
        patiently("a thread without capabilities", || {
            capabilities_by_thread().get("http").is_some_and(|has| *has == 0).then_some(())
        });
        drop(open);
        let capabilities = capabilities_by_thread();
        assert_eq!(capabilities.get("accept"), Some(&(1 << 2)), "{capabilities:x?}");
        assert!(capabilities["stages"] != 0, "{capabilities:x?}");
        let Some(promtool) = program("NEARPATH_PROMTOOL", "promtool") else { return };
        let mut check = Command::new(promtool);
        let piped = check.args(["check", "metrics"]).stdin(Stdio::piped());
        let mut check = piped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let said = check.wait_with_output().unwrap();
        assert!(said.status.success(), "{}{}", s(&said.stdout), s(&said.stderr));
    });
}

/// The effective capabilities of this process's threads by name.
fn capabilities_by_thread() -> BTreeMap<String, u64> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let status = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Some((field("Name")?, u64::from_str_radix(&field("CapEff")?, 16).ok()?))
    };
    threads.filter_map(|thread| status(thread.ok()?)).collect()
}

fn s(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
