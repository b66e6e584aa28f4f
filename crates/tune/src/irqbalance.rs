//! The interrupts banned from a running irqbalance, read and set through its socket, as irqbalance-ui does.
//!
//! `setup` lists them, and `settings ban irqs` replaces the list. It is lost when irqbalance exits, so it is a
//! setting of the process, identified by its start time. (irqbalance 1.2 and later; a request is limited to 500
//! bytes.)

use crate::TuneError;
use crate::find_thread;
use crate::setting::Setting;
use nearpath_host::Root;
use nearpath_model::{IrqNumber, Irqbalance};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long it may take to answer: it does so between two scans of the interrupts.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a request in bytes: it reads no more.
const REQUEST: usize = 499;
/// Maximum size of an answer in bytes: one line per interrupt.
const ANSWER: usize = 1 << 20;
const BAN: &str = "settings ban irqs ";

/// The running irqbalance; `None` if there is none, or if it is not visible.
///
/// Anybody may call a process so: it also executes a file of that name, as root.
pub(crate) fn find_irqbalance(root: &Root) -> Option<Irqbalance> {
    let pids = root.list("/proc").ok()?;
    let is_it = |pid: &u32| {
        root.text(&format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "irqbalance")
            && root.link(&format!("/proc/{pid}/exe")).is_ok_and(|exe| is_program(&exe))
            && root.text(&format!("/proc/{pid}/status")).is_ok_and(|status| is_root(&status))
    };
    let pid = pids.iter().filter_map(|entry| entry.name.parse().ok()).find(is_it)?;
    let start_ticks = find_thread(root, pid, pid)?.start_ticks;
    Some(Irqbalance { pid, start_ticks })
}

/// Whether the link to an executable leads to irqbalance, also if a newer one was installed since.
fn is_program(exe: &str) -> bool {
    exe.trim_end_matches(" (deleted)").rsplit('/').next() == Some("irqbalance")
}

/// Whether the effective user of a `status` is root.
fn is_root(status: &str) -> bool {
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.and_then(|uids| uids.split_ascii_whitespace().nth(1)) == Some("0")
}

/// The banned interrupts, as ascending numbers separated by spaces.
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

    /// Connects to the socket: in /run, else to the abstract one, if it was started by hand. Anybody may listen on
    /// the abstract one, so the listener must be the process itself.
    fn connect(&self, deadline: Instant) -> io::Result<UnixStream> {
        let name = format!("irqbalance{}.sock", self.irqbalance.pid);
        let stream = connect(&SocketAddrUnix::new(format!("/run/irqbalance/{name}"))?, deadline)
            .or_else(|_| connect(&SocketAddrUnix::new_abstract_name(name.as_bytes())?, deadline))?;
        let listener = socket_peercred(&stream)?;
        let pid = u32::try_from(listener.pid.as_raw_nonzero().get()).unwrap_or(0);
        if (pid, listener.uid.as_raw()) != (self.irqbalance.pid, 0) {
            let (uid, own) = (listener.uid.as_raw(), self.irqbalance.pid);
            return Err(io::Error::other(format!(
                "process {pid} of user {uid} listens, not irqbalance ({own})"
            )));
        }
        Ok(stream)
    }

    /// Sends one request and reads the answer until the connection is closed. irqbalance checks the peer credentials.
    fn ask(&self, request: &str) -> io::Result<Vec<u8>> {
        self.answer(request).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::other(format!("no answer in {}s", PATIENCE.as_secs()))
            }
            _ => error,
        })
    }

    fn answer(&self, request: &str) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut stream = self.connect(deadline)?;
        let mut bytes = request.as_bytes().to_vec();
        bytes.push(0);
        stream.write_all(&bytes)?;
        read_all(&stream, deadline)
    }

    fn refusal(&self, doing: &str, error: impl ToString) -> TuneError {
        TuneError::kernel(
            format!("{doing} irqbalance (process {}) over its socket", self.irqbalance.pid),
            error,
        )
    }
}

/// Connects; a listener that does not accept is not waited for longer than the deadline.
fn connect(address: &SocketAddrUnix, deadline: Instant) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(left(deadline)?))?;
    rustix::net::connect(&socket, address)?;
    Ok(UnixStream::from(socket))
}

/// What is left of the time; an error if nothing is.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(left) }
}

/// An answer up to its end, however slowly it comes: all of it within the deadline.
fn read_all(mut stream: &UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend(part.iter().take(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER {
            return Err(io::Error::other("its answer is too long"));
        }
    }
}

impl Setting for Bans<'_> {
    fn name(&self) -> String {
        self.irqbalance.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        let Some(irqs) = numbers(value) else {
            return Err(TuneError::Refused(format!(
                "{}: must be a list of numbers",
                self.irqbalance
            )));
        };
        if fits(&irqs) {
            return Ok(());
        }
        Err(TuneError::Refused(format!(
            "{}: too many for one request to irqbalance ({} interrupts)",
            self.irqbalance,
            irqs.len()
        )))
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        if !self.is_there() {
            return Ok(None);
        }
        let answer = self.ask("setup").map_err(|error| self.refusal("querying", error))?;
        let banned = banned(&answer)
            .ok_or_else(|| self.refusal("querying", "unexpected answer; requires root"))?;
        Ok(Some(text(&banned)))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        let list = if value.trim().is_empty() { "NONE" } else { value };
        self.ask(&format!("{BAN}{list}"))
            .map(drop)
            .map_err(|error| self.refusal("configuring", error))
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

/// The numbers of a text. 0 ends the list for irqbalance, and is never a NIC interrupt.
pub(crate) fn numbers(text: &str) -> Option<BTreeSet<IrqNumber>> {
    let number = |word: &str| {
        let plain = word.bytes().all(|b| b.is_ascii_digit());
        word.parse().ok().filter(|&number| plain && number > 0 && number <= MAX_IRQ).map(IrqNumber)
    };
    text.split_ascii_whitespace().map(number).collect()
}

/// irqbalance stores them as signed numbers.
const MAX_IRQ: u32 = i32::MAX as u32;

/// Whether they fit in one request.
pub(crate) fn fits(irqs: &BTreeSet<IrqNumber>) -> bool {
    BAN.len() + text(irqs).len() < REQUEST
}

/// The banned interrupts in an answer to `setup`: `SLEEP 10 IRQ 24 LOAD 0 DIFF 0 CLASS 0 BANNED …`; `None` for
/// anything else, such as the empty answer to unprivileged clients.
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
    fn an_answer_that_drips_ends_with_the_deadline() {
        let (client, mut server) = UnixStream::pair().unwrap();
        let dripping = std::thread::spawn(move || {
            while server.write_all(b"S").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let began = Instant::now();
        let error = read_all(&client, began + Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(began.elapsed() >= Duration::from_millis(200));
        drop(client);
        dripping.join().unwrap();
    }

    #[test]
    fn only_what_executes_it_as_root_is_irqbalance() {
        assert!(is_program("/usr/sbin/irqbalance") && is_program("/x/irqbalance (deleted)"));
        assert!(!is_program("/usr/bin/python3.11") && !is_program("/tmp/irqbalance2"));
        assert!(is_root("Name:\tirqbalance\nUid:\t0\t0\t0\t0\n"));
        assert!(!is_root("Name:\tUid:\nUid:\t0\t1000\t0\t0\n") && !is_root(""));
    }

    /// Who listens where irqbalance would, in its name.
    #[test]
    fn another_process_is_not_believed() {
        use std::os::linux::net::SocketAddrExt;
        let pid = u32::MAX - std::process::id();
        let name = format!("irqbalance{pid}.sock");
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
        let irqbalance = Irqbalance { pid, start_ticks: 0 };
        let its = Bans { root: &Root::live(), irqbalance: &irqbalance };
        let error = its.answer("setup").unwrap_err().to_string();
        assert!(error.contains("listens, not irqbalance"), "{error}");
    }

    #[test]
    fn answers_are_parsed() {
        let answer =
            b"SLEEP 10 IRQ 24 LOAD 0 DIFF 0 CLASS 0 IRQ 5 LOAD 1 DIFF 1 CLASS 5 BANNED 0\0";
        assert_eq!(banned(answer), Some(set(&[5, 24])));
        assert_eq!(banned(b"SLEEP 10 BANNED 00000000"), Some(set(&[])));
        for other in [&b""[..], b"no", b"SLEEP 10 IRQ", b"SLEEP 10 IRQ x", b"\xff"] {
            assert_eq!(banned(other), None);
        }
    }

    #[test]
    fn targets_round_trip() {
        let one = Irqbalance { pid: 7, start_ticks: 99 };
        assert_eq!(Irqbalance::parse(&one.to_string()), Some(one));
        for text in
            ["", "irqbalance", "irqbalance pid 7 start x banned", "irqbalance pid 7 start 9"]
        {
            assert_eq!(Irqbalance::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_numbers_that_fit_are_accepted() {
        let irqbalance = Irqbalance { pid: 1, start_ticks: 0 };
        let its = Bans { root: &Root::live(), irqbalance: &irqbalance };
        assert!(its.check("").is_ok() && its.check("5 24").is_ok() && its.same("24 5", "5 24"));
        for text in ["0", "-1", "x", "5;6", "99999999999"] {
            assert!(its.check(text).is_err(), "{text}");
        }
        let many = (1000..1200).map(|irq| irq.to_string()).collect::<Vec<_>>().join(" ");
        assert!(its.check(&many).unwrap_err().to_string().contains("too many for one request"));
    }
}
