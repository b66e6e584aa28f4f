//! The interrupts that a running irqbalance leaves alone: asked and told by its socket, as
//! irqbalance-ui does.
//!
//! `setup` has it list them, and `settings ban irqs` gives it another list in the place of the one it
//! has. It forgets them as it ends, so the list is a setting of the process, named by when it started.
//! (irqbalance 1.2 and later; it takes no more than 500 bytes at once.)

use crate::TuneError;
use crate::find_thread;
use crate::setting::Setting;
use nearpath_host::Root;
use nearpath_model::{IrqNumber, Irqbalance};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// How long it may take to answer: it does so between two looks at the interrupts.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request, at most: it reads no more.
const REQUEST: usize = 499;
/// Bytes of an answer, at most: a line for each interrupt.
const ANSWER: u64 = 1 << 20;
const BAN: &str = "settings ban irqs ";

/// The irqbalance that runs; `None` where none does, or cannot be seen.
pub(crate) fn find_irqbalance(root: &Root) -> Option<Irqbalance> {
    let pids = root.list("/proc").ok()?;
    let is_it =
        |pid: &u32| root.text(&format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "irqbalance");
    let pid = pids.iter().filter_map(|entry| entry.name.parse().ok()).find(is_it)?;
    let start_ticks = find_thread(root, pid, pid)?.start_ticks;
    Some(Irqbalance { pid, start_ticks })
}

/// The interrupts that it leaves alone, as ascending numbers with spaces between them.
#[derive(Debug)]
pub(crate) struct Bans<'a> {
    pub root: &'a Root,
    pub irqbalance: &'a Irqbalance,
}

impl Bans<'_> {
    fn is_there(&self) -> bool {
        let pid = self.irqbalance.pid;
        find_thread(self.root, pid, pid)
            .is_some_and(|thread| thread.start_ticks == self.irqbalance.start_ticks)
    }

    /// Connects to the socket: in /run, else, as of one that was started by hand, without a file.
    fn connect(&self) -> io::Result<UnixStream> {
        let name = format!("irqbalance{}.sock", self.irqbalance.pid);
        let stream = UnixStream::connect(format!("/run/irqbalance/{name}"))
            .or_else(|_| UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name)?))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// One request, and the answer until the connection is closed. The kernel tells it who asks.
    fn ask(&self, request: &str) -> io::Result<Vec<u8>> {
        self.answer(request).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::other(format!("no answer in {} s", PATIENCE.as_secs()))
            }
            _ => error,
        })
    }

    fn answer(&self, request: &str) -> io::Result<Vec<u8>> {
        let mut stream = self.connect()?;
        let mut bytes = request.as_bytes().to_vec();
        bytes.push(0);
        stream.write_all(&bytes)?;
        let mut answer = Vec::new();
        stream.take(ANSWER).read_to_end(&mut answer)?;
        Ok(answer)
    }

    fn refusal(&self, doing: &str, error: impl ToString) -> TuneError {
        TuneError::kernel(
            format!("{doing} irqbalance (process {}) by its socket", self.irqbalance.pid),
            error,
        )
    }
}

impl Setting for Bans<'_> {
    fn name(&self) -> String {
        self.irqbalance.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        let Some(irqs) = numbers(value) else {
            return Err(TuneError::Refused(format!("{}: must be numbers", self.irqbalance)));
        };
        if fits(&irqs) {
            return Ok(());
        }
        Err(TuneError::Refused(format!(
            "{}: more than irqbalance takes at once ({} interrupts)",
            self.irqbalance,
            irqs.len()
        )))
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        if !self.is_there() {
            return Ok(None);
        }
        let answer = self.ask("setup").map_err(|error| self.refusal("asking", error))?;
        let banned = banned(&answer)
            .ok_or_else(|| self.refusal("asking", "its answer is not understood; it takes root"))?;
        Ok(Some(text(&banned)))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        let list = if value.trim().is_empty() { "NONE" } else { value };
        self.ask(&format!("{BAN}{list}")).map(drop).map_err(|error| self.refusal("telling", error))
    }

    fn same(&self, a: &str, b: &str) -> bool {
        match (numbers(a), numbers(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        }
    }
}

/// Numbers as text.
pub(crate) fn text(irqs: &BTreeSet<IrqNumber>) -> String {
    irqs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// The numbers of a text; 0 is the end of its list to irqbalance, and no interrupt of a NIC.
pub(crate) fn numbers(text: &str) -> Option<BTreeSet<IrqNumber>> {
    let number = |word: &str| {
        let plain = word.bytes().all(|b| b.is_ascii_digit());
        word.parse().ok().filter(|&number| plain && number > 0 && number <= MAX_IRQ).map(IrqNumber)
    };
    text.split_ascii_whitespace().map(number).collect()
}

/// irqbalance has them as a signed number.
const MAX_IRQ: u32 = i32::MAX as u32;

/// Whether irqbalance takes so many at once.
pub(crate) fn fits(irqs: &BTreeSet<IrqNumber>) -> bool {
    BAN.len() + text(irqs).len() < REQUEST
}

/// The banned interrupts of an answer to `setup`: `SLEEP 10 IRQ 24 LOAD 0 DIFF 0 CLASS 0 BANNED …`;
/// `None` for anything else, as the silence towards who may not ask.
fn banned(answer: &[u8]) -> Option<BTreeSet<IrqNumber>> {
    let answer = std::str::from_utf8(answer).ok()?.trim_end_matches('\0');
    let mut words = answer.split_ascii_whitespace();
    if words.next() != Some("SLEEP") {
        return None;
    }
    let mut irqs = BTreeSet::new();
    while let Some(word) = words.next() {
        if word == "IRQ" {
            irqs.insert(IrqNumber(words.next()?.parse().ok()?));
        }
    }
    Some(irqs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(irqs: &[u32]) -> BTreeSet<IrqNumber> {
        irqs.iter().copied().map(IrqNumber).collect()
    }

    #[test]
    fn answers_are_understood() {
        let answer =
            b"SLEEP 10 IRQ 24 LOAD 0 DIFF 0 CLASS 0 IRQ 5 LOAD 1 DIFF 1 CLASS 5 BANNED 0\0";
        assert_eq!(banned(answer), Some(set(&[5, 24])));
        assert_eq!(banned(b"SLEEP 10 BANNED 00000000"), Some(set(&[])));
        for other in [&b""[..], b"no", b"SLEEP 10 IRQ", b"SLEEP 10 IRQ x", b"\xff"] {
            assert_eq!(banned(other), None);
        }
    }

    #[test]
    fn its_text_is_read_back() {
        let one = Irqbalance { pid: 7, start_ticks: 99 };
        assert_eq!(Irqbalance::parse(&one.to_string()), Some(one));
        for text in
            ["", "irqbalance", "irqbalance pid 7 start x banned", "irqbalance pid 7 start 9"]
        {
            assert_eq!(Irqbalance::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_numbers_and_no_more_than_fit_are_told() {
        let irqbalance = Irqbalance { pid: 1, start_ticks: 0 };
        let its = Bans { root: &Root::live(), irqbalance: &irqbalance };
        assert!(its.check("").is_ok() && its.check("5 24").is_ok() && its.same("24 5", "5 24"));
        for text in ["0", "-1", "x", "5;6", "99999999999"] {
            assert!(its.check(text).is_err(), "{text}");
        }
        let many = (1000..1200).map(|irq| irq.to_string()).collect::<Vec<_>>().join(" ");
        assert!(its.check(&many).unwrap_err().to_string().contains("more than irqbalance takes"));
    }
}
