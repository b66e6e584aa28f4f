//! A host that has every metric, served in nearpath's exposition to whoever asks: each answer has counted more.

use nearpath_monitor::export::Scraped;
use nearpath_monitor::exposition::{Exposition, Format};
use nearpath_monitor::metrics::Kind;
use nearpath_monitor::{Id, METRICS, Store};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The server; it ends with it.
pub struct Served {
    pub address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub fn start(scraped: Scraped) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let format = match scraped {
            Scraped::Native => Format::Protobuf,
            Scraped::Text => Format::Text,
        };
        let thread = std::thread::spawn(move || {
            let mut store = Store::default();
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                grow(&mut store);
                let body = Exposition::new(store.snapshot()).encoded(format);
                // Who hangs up asks again.
                let _ = answer(stream.unwrap(), format, &body);
            }
        });
        Self { address, ends, thread: Some(thread) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, format: Format, body: &[u8]) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut some = [0; 1024];
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let n = stream.read(&mut some)?;
        if n == 0 {
            return Ok(());
        }
        request.extend_from_slice(&some[..n]);
    }
    let (kind, length) = (format.content_type(), body.len());
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// Values of a label, as the collectors write them.
fn values(id: Id, label: &str) -> &'static [&'static str] {
    match (id, label) {
        (Id::LocalityPackets, "direction") => &["rx", "tx"],
        (_, "direction") => &["receive", "transmit"],
        (_, "vm") => &["quick", "slow"],
        (_, "span") => &["whole", "handler_to_vhost"],
        (_, "severity") => &["critical"],
        (_, "state") => &["applied", "drifted"],
        (_, "distance") => &["same_cpu", "other_node"],
        (_, "le") => unreachable!("no label of ours"),
        _ => &["a"],
    }
}

fn grow(store: &mut Store) {
    for metric in METRICS {
        let mut rows: Vec<Vec<&str>> = vec![Vec::new()];
        for label in metric.labels {
            let longer = |row: &Vec<&'static str>| {
                let row = row.clone();
                values(metric.id, label.name).iter().map(move |value| [&row[..], &[value]].concat())
            };
            rows = rows.iter().flat_map(longer).collect();
        }
        for row in rows {
            match metric.kind {
                Kind::Counter => store.add(metric.id, &row, 3.0),
                // A queue whose interrupt is on another node; a finding that holds.
                Kind::Gauge if metric.id == Id::QueueIrqLocal => store.set(metric.id, &row, 0.0),
                Kind::Gauge | Kind::Info => store.set(metric.id, &row, 1.0),
                Kind::Histogram => {
                    let is_slow = row.contains(&"slow") && row.contains(&"whole");
                    let ns = if is_slow { 5_000_000 } else { 20_000 };
                    store.observe(metric.id, &row, &[(ns, 100)], ns * 100);
                }
            }
        }
    }
}
