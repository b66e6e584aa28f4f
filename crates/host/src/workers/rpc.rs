//! JSON-RPC 1.0 as Open vSwitch's programs speak it on their sockets (lib/jsonrpc.c): objects one after another, without
//! anything between them. Replies are limited in time and size.

use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Maximum size in bytes of a reply.
const REPLY: usize = 4 << 20;
/// Maximum length of an error in characters.
const ERROR: usize = 200;

/// Calls a method and returns its result.
///
/// # Errors
/// The peer refuses, or does not answer as it should until then; the text says why.
pub fn call(
    stream: &mut UnixStream,
    method: &str,
    params: &Value,
    until: Instant,
) -> Result<Value, String> {
    let request = json!({"id": 0, "method": method, "params": params}).to_string();
    limit(stream, until)?;
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    let mut reply = Vec::new();
    let mut chunk = [0; 65_536];
    loop {
        limit(stream, until)?;
        let length = stream.read(&mut chunk).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => "no reply in time".to_owned(),
            _ => error.to_string(),
        })?;
        reply.extend_from_slice(chunk.get(..length).unwrap_or_default());
        if length == 0 {
            return Err("connection closed".to_owned());
        }
        if reply.len() > REPLY {
            return Err("the reply is too large".to_owned());
        }
        // Each reply is an object; what does not end with its brace is not whole yet.
        if !reply.trim_ascii_end().ends_with(b"}") {
            continue;
        }
        // The server may ask whether this end is alive ("echo"); only replies have no method.
        for value in serde_json::Deserializer::from_slice(&reply).into_iter::<Value>() {
            match value {
                Ok(value) if value.get("method").is_some() => (),
                Ok(value) => return answer(value),
                Err(error) if error.is_eof() => break,
                Err(_) => return Err("the reply is not JSON".to_owned()),
            }
        }
    }
}

fn limit(stream: &UnixStream, until: Instant) -> Result<(), String> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err("time limit exceeded".to_owned());
    }
    // A timeout of zero would be none.
    let left = left.max(Duration::from_millis(1));
    let set = stream.set_read_timeout(Some(left)).and(stream.set_write_timeout(Some(left)));
    set.map_err(|error| error.to_string())
}

fn answer(mut reply: Value) -> Result<Value, String> {
    let failed = reply.get("error").filter(|error| !error.is_null()).map(|error| match error {
        Value::String(text) => shortened(text),
        other => shortened(&other.to_string()),
    });
    match (failed, reply.get_mut("result")) {
        (Some(error), _) => Err(error),
        (None, Some(result)) => Ok(result.take()),
        (None, None) => Err("the reply has no result".to_owned()),
    }
}

fn shortened(text: &str) -> String {
    text.trim().chars().take(ERROR).collect()
}
