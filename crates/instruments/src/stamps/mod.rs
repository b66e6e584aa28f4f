//! Hardware timestamps of received packets (`bpf/nic_stamps.h`): the devices that provide them are found when a
//! measurement starts, and a thread reads their clocks during the measurement. The instruments `stages` and `vm` use
//! them.

mod clock;
mod uppers;

use crate::InstrumentError;
use crate::kernel::{Mapped, word_of, words_of};
use crate::stages::load::types::{clock_reading, nic_clock};
use clock::{Clock, Conversion};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_host::timestamping::{Phc, PhcReading, RxStamping, has_phc, rx_stamping};
use nearpath_host::{NetnsRef, Root, current_netns, in_netns};
use nearpath_model::{IfIndex, NicStamps, StampingNic};
use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
pub use uppers::{Upper, uppers};

/// The stage at which such a path starts.
pub const NIC_RX: &str = "nic_rx";
/// Maximum number of devices (`NICS_MAX`).
const NICS_MAX: usize = crate::constants::NICS_MAX as usize;
/// Interval at which the clocks are read,
const PERIOD: Duration = Duration::from_millis(500);
/// and at the start, while their rates are unknown, these intervals.
const FIRST: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(100), Duration::from_millis(250)];
/// How long they are observed before the first packet.
const SETTLING: Duration = Duration::from_millis(20);

/// Reads both clocks, or returns an error.
type Read = Box<dyn Fn() -> Result<PhcReading, String> + Send>;

/// A device whose clock is not available as a PTP device.
#[derive(Debug, Clone, Copy)]
pub struct GivenClock {
    /// Inode of its network namespace.
    pub netns: u32,
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub nic: &'static str,
    /// Reads its clock relative to the monotonic one.
    pub read: fn() -> PhcReading,
}

/// Timestamps of packets, as the programs have counted them (`stamps_…` in `bpf`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Converted to the monotonic clock.
    pub used: u64,
    /// Later than the stack had the packet.
    pub ahead: u64,
    /// More than a second before.
    pub old: u64,
    /// While the clock could not be read.
    pub unconverted: u64,
    /// Of a device that the packet had passed before.
    pub of_others: u64,
    /// Not a time, but a pointer of the driver.
    pub opaque: u64,
}

/// A device that timestamps, before the programs are loaded.
struct Candidate {
    nic: StampingNic,
    /// Its clock, or why it cannot be read.
    read: Result<Read, String>,
}

/// The devices that timestamp received packets.
#[derive(Default)]
pub struct Candidates(Vec<Candidate>);

/// A device while packets are observed. Its row in `nic_clocks` is its index.
struct Watched {
    nic: StampingNic,
    /// `None` if its timestamps are not used.
    clock: Option<(Read, Clock)>,
}

/// The clocks while packets are observed.
pub struct Stamps {
    watched: Arc<Mutex<Vec<Watched>>>,
    /// To read what the programs have recorded.
    clocks: Mapped,
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Candidates {
    /// Finds them, in all network namespaces that have a process or a name. `given` are added.
    pub fn find(given: &[GivenClock]) -> Self {
        let root = Root::live();
        let mut found = of_namespace(&root);
        if has_phc(&root) {
            let mut seen: BTreeSet<u64> = current_netns(&root).inode.into_iter().collect();
            for netns in other_namespaces(&root) {
                let more = in_netns(&netns, |there| {
                    let inode = current_netns(&there).inode?;
                    Some((inode, stamping_in(&there)))
                });
                if let Ok(Some((inode, devices))) = more
                    && seen.insert(inode)
                {
                    found.extend(devices.into_iter().map(|device| candidate(&root, device)));
                }
            }
        }
        found.extend(given.iter().copied().map(|given| Candidate {
            nic: StampingNic {
                clock: Some("given".to_owned()),
                ..stamping_nic(given.nic, IfIndex(given.ifindex), Some(given.netns))
            },
            read: Ok(Box::new(move || Ok((given.read)()))),
        }));
        Self(found)
    }

    /// Why no packet's path can start at the NIC; `None` if it can.
    pub fn reason(&self) -> Option<String> {
        if self.0.iter().any(|candidate| candidate.read.is_ok()) {
            return None;
        }
        let why = |candidate: &Candidate| {
            let reason = candidate.read.as_ref().err()?;
            Some(format!("{}: {reason}", candidate.nic.nic))
        };
        let reasons: Vec<String> = self.0.iter().filter_map(why).collect();
        Some(match reasons.is_empty() {
            true => "no NIC timestamps received packets (hwstamp_ctl, ethtool -T)".to_owned(),
            false => reasons.join("; "),
        })
    }

    /// The devices whose timestamps can be used: `hardware timestamp of eth0`; `None` if there are none.
    pub fn names(&self) -> Option<String> {
        let usable = self.0.iter().filter(|candidate| candidate.read.is_ok());
        let names: Vec<&str> = usable.map(|candidate| candidate.nic.nic.as_str()).collect();
        (!names.is_empty()).then(|| format!("hardware timestamp of {}", names.join(", ")))
    }

    /// Whether the timestamps of any device can be used.
    pub fn any_usable(&self) -> bool {
        self.reason().is_none()
    }

    /// Reads the clocks from now on, for these two maps of the programs; `None` if no device timestamps. Packets of
    /// `uppers` have the timestamps of the NICs below these.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn watch(
        self,
        nics: &impl MapCore,
        nic_clocks: &impl MapCore,
        uppers: &[Upper],
    ) -> Result<Option<Stamps>, InstrumentError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let rows = Mapped::new(nic_clocks)?;
        let mut watched: Vec<Watched> =
            self.0.into_iter().enumerate().map(|(row, c)| first_reading(row, c)).collect();
        if watched.iter().any(|one| one.clock.is_some()) {
            std::thread::sleep(SETTLING);
        }
        for (row, one) in watched.iter_mut().enumerate().take(NICS_MAX) {
            one.read_again(&rows, row);
            if let Some((_, clock)) = &mut one.clock {
                clock.settle();
                one.nic.uncertainty_ns = Some(clock.uncertainty_ns());
            }
            enter(nics, (one.nic.netns, one.nic.ifindex), row)?;
            let above = uppers.iter().filter(|upper| upper.is_above(&one.nic));
            for upper in above {
                enter(nics, (upper.netns, upper.ifindex), row)?;
            }
        }
        let is_used = watched.iter().any(|one| one.clock.is_some());
        let watched = Arc::new(Mutex::new(watched));
        let mut stamps = Stamps {
            watched: Arc::clone(&watched),
            clocks: Mapped::new(nic_clocks)?,
            stop: None,
            thread: None,
        };
        if is_used {
            let (stop, stopped) = channel();
            let work = move || {
                let mut periods = FIRST.into_iter();
                let mut next = || periods.next().unwrap_or(PERIOD);
                while stopped.recv_timeout(next()) == Err(RecvTimeoutError::Timeout) {
                    for (row, one) in lock(&watched).iter_mut().enumerate() {
                        one.read_again(&rows, row);
                    }
                }
            };
            let thread = std::thread::Builder::new().name("nic-clocks".to_owned()).spawn(work);
            stamps.thread = Some(thread.map_err(|error| InstrumentError::Refused {
                step: "starting a thread".to_owned(),
                reason: error.to_string(),
            })?);
            stamps.stop = Some(stop);
        }
        Ok(Some(stamps))
    }
}

impl Watched {
    /// Reads its clock, which the programs use for conversion; if that fails, they do not convert.
    fn read_again(&mut self, rows: &Mapped, row: usize) {
        let Some((read, clock)) = &mut self.clock else { return };
        match read().and_then(|reading| clock.add(reading)) {
            Ok(()) => {
                set(rows, row, clock.conversion());
                self.nic.left_out = None;
            }
            Err(reason) => {
                rows.set(row * words_of::<nic_clock>() + word_of!(nic_clock, is_known), 0);
                self.nic.left_out = Some(reason);
            }
        }
        self.nic.uncertainty_ns = Some(clock.uncertainty_ns());
        self.nic.drift_ppb = Some(clock.drift_ppb());
        self.nic.clock_steps = clock.steps();
    }
}

impl Stamps {
    /// The use of timestamps so far, of which the programs have counted these.
    pub fn result(&self, counted: &Counted) -> NicStamps {
        let is_used = word_of!(nic_clock, is_used);
        let device = |(row, one): (usize, &Watched)| StampingNic {
            used: self.clocks.get(row * words_of::<nic_clock>() + is_used) != 0,
            ..one.nic.clone()
        };
        NicStamps {
            devices: lock(&self.watched).iter().enumerate().map(device).collect(),
            used: counted.used,
            ahead: counted.ahead,
            too_old: counted.old,
            unconverted: counted.unconverted,
            other_device: counted.of_others,
            not_plain: counted.opaque,
        }
    }

    /// Whether the timestamps of a device are used.
    pub fn is_on(&self) -> bool {
        self.thread.is_some()
    }
}

impl Drop for Stamps {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Passes the row of a device to the programs.
fn enter(
    nics: &impl MapCore,
    (netns, ifindex): (Option<u32>, IfIndex),
    row: usize,
) -> Result<(), InstrumentError> {
    let key = [netns.unwrap_or(0), ifindex.0].map(u32::to_ne_bytes).concat();
    let row = u32::try_from(row).unwrap_or(u32::MAX).to_ne_bytes();
    nics.update(&key, &row, MapFlags::ANY).map_err(|error| InstrumentError::Refused {
        step: "adding the clocks of NICs".to_owned(),
        reason: error.to_string(),
    })
}

/// Valid even after a panic elsewhere: a reading is stored at once.
fn lock(watched: &Mutex<Vec<Watched>>) -> MutexGuard<'_, Vec<Watched>> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first reading of a device's clock; without it the device is not used.
fn first_reading(row: usize, candidate: Candidate) -> Watched {
    let Candidate { mut nic, read } = candidate;
    let read = match row < NICS_MAX {
        true => read,
        false => Err(format!("more than {NICS_MAX} devices provide timestamps")),
    };
    let first = read.and_then(|read| read().map(|reading| (read, Clock::new(reading))));
    match first {
        Ok(clock) => Watched { nic, clock: Some(clock) },
        Err(reason) => {
            nic.left_out = Some(reason);
            Watched { nic, clock: None }
        }
    }
}

/// Writes the unused reading, then switches to it.
fn set(rows: &Mapped, row: usize, conversion: Conversion) {
    let first = row * words_of::<nic_clock>();
    let latest = first + word_of!(nic_clock, latest);
    let next = (rows.get(latest) & 1) ^ 1;
    let which = usize::from(next == 1) * words_of::<clock_reading>();
    let reading = first + word_of!(nic_clock, readings) + which;
    let Conversion { phc_ns, monotonic_ns, rate } = conversion;
    rows.set(reading + word_of!(clock_reading, phc_ns), phc_ns.cast_unsigned());
    rows.set(reading + word_of!(clock_reading, monotonic_ns), monotonic_ns.cast_unsigned());
    rows.set(reading + word_of!(clock_reading, rate), rate.cast_unsigned());
    fence(Ordering::Release);
    rows.set(latest, next);
    rows.set(first + word_of!(nic_clock, is_known), 1);
}

/// The devices of a root's namespace, with its inode.
fn stamping_in(root: &Root) -> Vec<(Option<u32>, RxStamping)> {
    let netns = current_netns(root).inode.and_then(|inode| u32::try_from(inode).ok());
    rx_stamping(root).unwrap_or_default().into_iter().map(|device| (netns, device)).collect()
}

fn of_namespace(root: &Root) -> Vec<Candidate> {
    stamping_in(root).into_iter().map(|device| candidate(root, device)).collect()
}

fn candidate(root: &Root, (netns, device): (Option<u32>, RxStamping)) -> Candidate {
    let mut nic = StampingNic {
        rx_filter: device.rx_filter,
        clock: device.phc.map(|number| format!("ptp{number}")),
        ..stamping_nic(&device.nic, device.ifindex, netns)
    };
    let phc = match device.phc {
        Some(number) => Phc::open(root, number).map_err(|error| error.to_string()),
        None => Err("its driver reports no clock".to_owned()),
    };
    nic.method = phc.as_ref().ok().map(|phc| phc.method().name().to_owned());
    let read = phc.map(|phc| -> Read { Box::new(move || phc.read().map_err(|e| e.to_string())) });
    Candidate { nic, read }
}

/// A device without further details.
fn stamping_nic(nic: &str, ifindex: IfIndex, netns: Option<u32>) -> StampingNic {
    StampingNic {
        nic: nic.to_owned(),
        ifindex,
        netns,
        rx_filter: String::new(),
        clock: None,
        method: None,
        uncertainty_ns: None,
        drift_ppb: None,
        clock_steps: 0,
        used: false,
        left_out: None,
    }
}

/// Namespaces with a name, and those of processes, once per process; duplicates are found after entering.
fn other_namespaces(root: &Root) -> Vec<NetnsRef> {
    let named = root.list("/run/netns").unwrap_or_default();
    let mut found: Vec<NetnsRef> =
        named.into_iter().map(|entry| NetnsRef::Name(entry.name)).collect();
    let mut seen: BTreeSet<String> = root.link("/proc/self/ns/net").ok().into_iter().collect();
    for entry in root.list("/proc").unwrap_or_default() {
        let Ok(pid) = entry.name.parse::<u32>() else { continue };
        if let Ok(link) = root.link(&format!("/proc/{pid}/ns/net"))
            && seen.insert(link)
        {
            found.push(NetnsRef::Pid(pid));
        }
    }
    found
}
