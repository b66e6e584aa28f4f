//! Wire format: numbered packets over UDP, and lines of JSON over TCP with requests and counts. Input:
//! untrusted bytes. Output: a value or nothing.
//!
//! ```text
//! packet: 0 session   4 trial   8 sequence   16 filler up to the size       (big-endian)
//! ```

use super::kernel::Kernel;
use super::plan::{MAX_FLOWS, PACKET_MAX, PACKET_MIN};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};

/// Number of bytes read from a packet.
pub(super) const HEADER: usize = 16;
/// Maximum length of a line; one with the counters of a large host has some 100 KiB.
const LINE: u64 = 1 << 20;

/// The header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// A random number of the session.
    pub session: u32,
    /// The trial in the session, so that stragglers of another trial do not count.
    pub trial: u32,
    /// The number of the packet in its flow and trial.
    pub sequence: u64,
}

impl Header {
    /// Parses the header; `None` if the packet is too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let [s0, s1, s2, s3, t0, t1, t2, t3, sequence @ ..] = bytes.first_chunk::<HEADER>()?;
        Some(Self {
            session: u32::from_be_bytes([*s0, *s1, *s2, *s3]),
            trial: u32::from_be_bytes([*t0, *t1, *t2, *t3]),
            sequence: u64::from_be_bytes(*sequence),
        })
    }

    /// Writes the header; a shorter packet is left unchanged.
    pub fn write(&self, bytes: &mut [u8]) {
        let Some(header) = bytes.first_chunk_mut::<HEADER>() else { return };
        header[..4].copy_from_slice(&self.session.to_be_bytes());
        header[4..8].copy_from_slice(&self.trial.to_be_bytes());
        header[8..].copy_from_slice(&self.sequence.to_be_bytes());
    }
}

/// Requests of the prober.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Receive from these ports of the prober, packets of this many bytes.
    Prepare {
        /// The source ports of the flows.
        ports: Vec<u16>,
        /// Bytes of a packet.
        size: u32,
    },
    /// Count this trial.
    Begin {
        /// Its number.
        trial: u32,
    },
    /// Everything was sent: return the counts.
    End {
        /// Packets sent by each flow.
        sent: Vec<u64>,
    },
}

/// Answers of the sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Packets with this session are being received.
    Ready {
        /// A random number.
        session: u32,
        /// The boot id of the sink's host; both sides may be on one host.
        boot: String,
    },
    /// Packets are being counted.
    Begun,
    /// The counts.
    Counted(Box<Counted>),
    /// The request failed.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Counts of the sink in a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Packets, without duplicates.
    pub received: u64,
    /// Packets that arrived after a later one of their flow.
    pub reordered: u64,
    /// Duplicates.
    pub duplicated: u64,
    /// Packets dropped because the sockets' buffers were full.
    pub socket_drops: Option<u64>,
    /// CPU time of the receiving threads.
    pub threads_ns: u64,
    /// Kernel counters meanwhile.
    pub kernel: Kernel,
}

/// Parses a request; `None` if it is malformed, or exceeds the limits.
pub fn parse_request(line: &[u8]) -> Option<Request> {
    let request: Request = serde_json::from_slice(line).ok()?;
    let sound = match &request {
        Request::Prepare { ports, size } => {
            (1..=usize::from(MAX_FLOWS)).contains(&ports.len())
                && !ports.contains(&0)
                && (PACKET_MIN..=PACKET_MAX).contains(size)
        }
        Request::Begin { .. } => true,
        Request::End { sent } => sent.len() <= usize::from(MAX_FLOWS),
    };
    sound.then_some(request)
}

/// Parses an answer; `None` if it is malformed.
pub fn parse_answer(line: &[u8]) -> Option<Answer> {
    serde_json::from_slice(line).ok()
}

/// Writes a line.
pub(super) fn write_line(mut to: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads a line; `None` at the end.
pub(super) fn read_line(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = from.take(LINE).read_until(b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => Ok(Some(line)),
        _ if read == 0 => Ok(None),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "received data is not a line")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_bounded() {
        let read = |text: &str| parse_request(text.as_bytes());
        let good = r#"{"prepare":{"ports":[5,6],"size":64}}"#;
        assert_eq!(read(good), Some(Request::Prepare { ports: vec![5, 6], size: 64 }));
        let many = format!(r#"{{"prepare":{{"ports":{:?},"size":64}}}}"#, vec![1; 65]);
        for bad in [
            "",
            "null",
            &many,
            r#"{"prepare":{"ports":[],"size":64}}"#,
            r#"{"prepare":{"ports":[0],"size":64}}"#,
            r#"{"prepare":{"ports":[5],"size":3}}"#,
            r#"{"prepare":{"ports":[5],"size":70000}}"#,
            r#"{"begin":{"trial":-1}}"#,
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_line_ends_and_is_bounded() {
        let mut two = &b"{\"begin\":{\"trial\":3}}\n\"x\""[..];
        let line = read_line(&mut two).unwrap().unwrap();
        assert_eq!(parse_request(&line), Some(Request::Begin { trial: 3 }));
        assert!(read_line(&mut two).is_err(), "cut short");
        assert_eq!(read_line(&mut &b""[..]).unwrap(), None);
        let endless = vec![b'x'; LINE as usize + 5];
        assert!(read_line(&mut &endless[..]).is_err());
    }

    proptest! {
        #[test]
        fn headers_round_trip(session: u32, trial: u32, sequence: u64, mut bytes: Vec<u8>) {
            let header = Header { session, trial, sequence };
            header.write(&mut bytes);
            prop_assert_eq!(Header::parse(&bytes), (bytes.len() >= HEADER).then_some(header));
        }

        #[test]
        fn any_line_is_parsed_or_rejected(line: Vec<u8>) {
            let _ = (parse_request(&line), parse_answer(&line));
        }
    }
}
