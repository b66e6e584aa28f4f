//! Wire format of probes and answers. Input: bytes from the network, which are untrusted. Output: a message or
//! nothing.
//!
//! ```text
//! 0  magic "npL1"      4  kind (1 probe, 2 answer)   5  flags   6  reserved, 0
//! 8  size of the whole message    12  flow
//! 16 session    24 sequence
//! 32 arrived    40 read     48 sent      (the reflector's wall clock; 0 in a probe)
//! 56 filler up to the size
//! ```
//! Numbers are big-endian. An answer is its probe with the reflector's times filled in, so it has the same
//! length.

/// Length of a message without filler: the minimum.
pub const SIZE_MIN: usize = 56;
/// Maximum length: a UDP payload over IPv4 (RFC 768: 65,535 less both headers).
pub const SIZE_MAX: usize = 65_507;

const MAGIC: [u8; 4] = *b"npL1";
/// `arrived` is the kernel's timestamp, not a time read in user space.
const STAMPED: u8 = 1;
/// The prober requests the reflector's times.
const TIMES: u8 = 2;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the prober.
    Probe,
    /// From the reflector.
    Answer,
}

/// A message without filler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Whether it is a probe or an answer.
    pub kind: Kind,
    /// Length of the whole message in bytes, [`SIZE_MIN`] to [`SIZE_MAX`].
    pub size: u32,
    /// Number of the connection or flow within the session.
    pub flow: u32,
    /// A random number of the run: answers with another one are ignored.
    pub session: u64,
    /// Number of the probe within its flow.
    pub sequence: u64,
    /// Whether the reflector's times are requested.
    pub times: bool,
    /// The reflector's times; all zero in a probe.
    pub turn: Turn,
}

/// The reflector's processing of the probe, on its own wall clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// When its kernel received the probe.
    pub arrived_ns: u64,
    /// Whether that is the kernel's timestamp; otherwise it is equal to `read`.
    pub stamped: bool,
    /// When the reflector had read it.
    pub read_ns: u64,
    /// When it started to send the answer.
    pub sent_ns: u64,
}

impl Message {
    /// Parses the first [`SIZE_MIN`] bytes of a message. `None` if they are not a message; the caller checks
    /// that the total length matches.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; SIZE_MIN] = bytes.first_chunk()?;
        let [m0, m1, m2, m3, kind, flags, reserved @ ..] = header;
        let kind = match kind {
            1 => Kind::Probe,
            2 => Kind::Answer,
            _ => return None,
        };
        let known = [*m0, *m1, *m2, *m3] == MAGIC && flags & !(STAMPED | TIMES) == 0;
        if !known || reserved.first_chunk() != Some(&[0, 0]) {
            return None;
        }
        let message = Self {
            kind,
            size: u32_at(header, 8),
            flow: u32_at(header, 12),
            session: u64_at(header, 16),
            sequence: u64_at(header, 24),
            times: flags & TIMES != 0,
            turn: Turn {
                stamped: flags & STAMPED != 0,
                arrived_ns: u64_at(header, 32),
                read_ns: u64_at(header, 40),
                sent_ns: u64_at(header, 48),
            },
        };
        let sizes = SIZE_MIN..=SIZE_MAX;
        let is_probe = message.kind == Kind::Probe;
        let sound = usize::try_from(message.size).is_ok_and(|size| sizes.contains(&size))
            && !(is_probe && message.turn != Turn::default());
        sound.then_some(message)
    }

    /// Writes the message over the first [`SIZE_MIN`] bytes; a shorter buffer is left unchanged.
    pub fn write(&self, bytes: &mut [u8]) {
        let Some(header) = bytes.first_chunk_mut::<SIZE_MIN>() else { return };
        let kind = match self.kind {
            Kind::Probe => 1,
            Kind::Answer => 2,
        };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.turn.stamped, STAMPED) | flag(self.times, TIMES);
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&[kind, flags, 0, 0]);
        header[8..12].copy_from_slice(&self.size.to_be_bytes());
        header[12..16].copy_from_slice(&self.flow.to_be_bytes());
        header[16..24].copy_from_slice(&self.session.to_be_bytes());
        header[24..32].copy_from_slice(&self.sequence.to_be_bytes());
        header[32..40].copy_from_slice(&self.turn.arrived_ns.to_be_bytes());
        header[40..48].copy_from_slice(&self.turn.read_ns.to_be_bytes());
        header[48..56].copy_from_slice(&self.turn.sent_ns.to_be_bytes());
    }

    /// The answer to a probe; `None` for anything else, so that two reflectors never answer each other.
    pub fn answer(self, turn: Turn) -> Option<Self> {
        (self.kind == Kind::Probe).then_some(Self { kind: Kind::Answer, turn, ..self })
    }
}

fn u32_at(header: &[u8; SIZE_MIN], at: usize) -> u32 {
    header[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn u64_at(header: &[u8; SIZE_MIN], at: usize) -> u64 {
    header[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn probe() -> Message {
        let turn = Turn::default();
        let (kind, sequence) = (Kind::Probe, 1 << 40);
        Message { kind, size: 64, flow: 3, session: 7, sequence, times: true, turn }
    }

    #[test]
    fn messages_round_trip() {
        let mut bytes = [0; 64];
        probe().write(&mut bytes);
        assert_eq!(Message::parse(&bytes), Some(probe()));
        let turn = Turn { arrived_ns: 1, stamped: true, read_ns: 2, sent_ns: 3 };
        let answer = probe().answer(turn).unwrap();
        answer.write(&mut bytes);
        assert_eq!(Message::parse(&bytes), Some(answer));
        assert_eq!((answer.kind, answer.size), (Kind::Answer, probe().size));
        assert_eq!(answer.answer(turn), None, "answers are not answered");
    }

    #[test]
    fn invalid_messages_are_rejected() {
        let mut good = [0; SIZE_MIN];
        probe().write(&mut good);
        for length in 0..SIZE_MIN {
            assert_eq!(Message::parse(&good[..length]), None, "{length} bytes");
        }
        let spoilt = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Message::parse(&bytes)
        };
        assert_eq!(spoilt(0, b'x'), None, "magic");
        assert_eq!((spoilt(4, 0), spoilt(4, 3)), (None, None), "kind");
        assert_eq!((spoilt(5, 4), spoilt(6, 1), spoilt(7, 1)), (None, None, None), "reserved");
        assert_eq!((spoilt(11, 55), spoilt(8, 1)), (None, None), "size");
        assert_eq!(spoilt(40, 1), None, "a probe with the reflector's times");
        assert_eq!(spoilt(5, STAMPED), None, "a probe with a stamp");
    }

    proptest! {
        /// Everything accepted as a message round-trips to the same bytes.
        #[test]
        fn any_bytes_are_parsed_or_rejected(mut bytes: Vec<u8>, like_one: bool, kind in 0u8..4, size in 0u32..70_000) {
            if like_one && bytes.len() >= SIZE_MIN {
                bytes[..4].copy_from_slice(&MAGIC);
                let flags = bytes[5] & (STAMPED | TIMES);
                bytes[4..8].copy_from_slice(&[kind, flags, 0, 0]);
                bytes[8..12].copy_from_slice(&size.to_be_bytes());
            }
            if let Some(message) = Message::parse(&bytes) {
                prop_assert!((SIZE_MIN..=SIZE_MAX).contains(&(message.size as usize)));
                let mut again = bytes.clone();
                again[..SIZE_MIN].fill(0);
                message.write(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
