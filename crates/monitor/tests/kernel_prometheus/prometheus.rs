//! A Prometheus that runs beside a test, and its API.

use nearpath_testing::wait_for;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The program of an environment variable, or of the PATH; else the test is skipped.
pub fn program(variable: &str, name: &str) -> Option<String> {
    let named = std::env::var(variable).ok().filter(|name| !name.is_empty());
    if named.is_none() && !nearpath_testing::require_program(name) {
        return None;
    }
    Some(named.unwrap_or_else(|| name.to_owned()))
}

/// A server with its data; both end with it.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    _data: TempDir,
}

impl Prometheus {
    /// Scrapes the target each second, twice.
    #[allow(dead_code, reason = "of one of the tests that share this")]
    pub fn start(program: &str, target: SocketAddr) -> Self {
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n\
             - {{job_name: one, static_configs: [{{targets: ['{target}']}}]}}\n\
             - {{job_name: two, static_configs: [{{targets: ['{target}']}}]}}\n"
        );
        Self::with(program, &config, &[])
    }

    /// With a configuration, and more options than those of its files and its address.
    pub fn with(program: &str, config: &str, options: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let address = free_address();
        let is_agent = options.contains(&"--agent");
        let storage = if is_agent { "agent" } else { "tsdb" };
        let child = Command::new(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.{storage}.path={}", data.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--enable-feature=native-histograms")
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, address, _data: data };
        wait_for("Prometheus", || get(address, "/-/ready", "").filter(|(head, _)| is_ok(head)));
        server
    }

    /// Where it listens.
    #[allow(dead_code, reason = "of one of the tests that share this")]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The answer to an instant query, as it is.
    #[allow(dead_code, reason = "of one of the tests that share this")]
    pub fn answer(&self, expression: &str) -> Vec<u8> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        get(self.address, &format!("/api/v1/query?query={encoded}"), "").unwrap().1
    }

    /// The results of an instant query: a number each, by the value of a label.
    pub fn query(&self, expression: &str, label: &str) -> Vec<(String, f64)> {
        self.ask(expression, label, "")
    }

    /// The same at a time, in seconds since 1970, by the job.
    #[allow(dead_code, reason = "of one of the tests that share this")]
    pub fn query_at(&self, expression: &str, time_s: f64) -> BTreeMap<String, f64> {
        self.ask(expression, "job", &format!("&time={time_s}")).into_iter().collect()
    }

    fn ask(&self, expression: &str, label: &str, more: &str) -> Vec<(String, f64)> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/api/v1/query?query={encoded}{more}");
        let (head, body) = get(self.address, &path, "").unwrap();
        let body = String::from_utf8(body).unwrap();
        assert!(is_ok(&head), "{expression}: {body}");
        let document: Value = serde_json::from_str(&body).unwrap();
        let results = document["data"]["result"].as_array().unwrap();
        let result = |result: &Value| {
            let name = result["metric"][label].as_str().unwrap_or_default().to_owned();
            // A histogram has no value.
            let value = result["value"][1].as_str().and_then(|value| value.parse().ok());
            (name, value.unwrap_or(f64::NAN))
        };
        results.iter().map(result).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Free now; nothing else here listens on ports that the kernel chooses.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn is_ok(head: &str) -> bool {
    head.starts_with("HTTP/1.1 200 ")
}

/// The head and the content of a page.
pub fn get(address: SocketAddr, path: &str, accept: &str) -> Option<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut body = answer.split_off(end + 4);
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        body = unchunked(&body)?;
    }
    Some((head, body))
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        rest = rest.get(end + 2..)?;
        if length == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..length)?);
        rest = rest.get(length + 2..)?;
    }
}
