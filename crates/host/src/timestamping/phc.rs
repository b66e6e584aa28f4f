//! A NIC's clock (PTP hardware clock, `/dev/ptp0`), read relative to the kernel's monotonic clock.
//!
//! Layouts and requests are those of include/uapi/linux/ptp_clock.h. The clock is only read.

use crate::{ReadError, Root};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const NS_PER_S: i64 = 1_000_000_000;
/// `PTP_MAX_SAMPLES`.
const MAX_SAMPLES: usize = 25;
/// Number of readings requested; the one with the shortest bracket is used.
const SAMPLES: u32 = 9;
/// How often the two system clocks are read, one bracketing the other.
const PAIRS: usize = 8;
/// Maximum retries of a reading during which the system time was set.
const TRIES: usize = 3;

/// `struct ptp_clock_time`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Time {
    sec: i64,
    nsec: u32,
    reserved: u32,
}

impl Time {
    fn ns(self) -> i64 {
        self.sec.saturating_mul(NS_PER_S).saturating_add(i64::from(self.nsec))
    }
}

/// `struct ptp_sys_offset_precise`.
#[repr(C)]
#[derive(Default)]
struct Precise {
    device: Time,
    sys_realtime: Time,
    sys_monoraw: Time,
    reserved: [u32; 4],
}

/// `struct ptp_sys_offset_extended`. Kernels that do not know `clockid` require it to be 0, CLOCK_REALTIME.
#[repr(C)]
struct Extended {
    n_samples: u32,
    clockid: i32,
    reserved: [u32; 2],
    ts: [[Time; 3]; MAX_SAMPLES],
}

/// `struct ptp_sys_offset`.
#[repr(C)]
struct Offset {
    n_samples: u32,
    reserved: [u32; 3],
    ts: [Time; 2 * MAX_SAMPLES + 1],
}

const _: () = assert!(size_of::<Precise>() == 64);
const _: () = assert!(size_of::<Extended>() == 1216);
const _: () = assert!(size_of::<Offset>() == 832);

/// `_IOC(direction, '=', number, size)` of include/uapi/asm-generic/ioctl.h.
const fn request(direction: u32, number: u32, size: usize) -> u32 {
    (direction << 30) | ((size as u32) << 16) | ((b'=' as u32) << 8) | number
}

const WRITE: u32 = 1;
const READ: u32 = 2;
const PTP_SYS_OFFSET: u32 = request(WRITE, 5, size_of::<Offset>());
const PTP_SYS_OFFSET_PRECISE: u32 = request(READ | WRITE, 8, size_of::<Precise>());
const PTP_SYS_OFFSET_EXTENDED: u32 = request(READ | WRITE, 9, size_of::<Extended>());

/// Methods to read both clocks, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhcMethod {
    /// The hardware reads both at once (`PTP_SYS_OFFSET_PRECISE`).
    Precise,
    /// The driver reads the system clock just before and after it reads its own (`PTP_SYS_OFFSET_EXTENDED`).
    Extended,
    /// The kernel does the same around the driver (`PTP_SYS_OFFSET`).
    Offset,
}

impl PhcMethod {
    /// As in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Precise => "precise",
            Self::Extended => "extended",
            Self::Offset => "offset",
        }
    }
}

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhcReading {
    /// The NIC's clock, in nanoseconds since its epoch.
    pub phc_ns: i64,
    /// The kernel's monotonic clock, in nanoseconds.
    pub monotonic_ns: i64,
    /// Half of the shortest bracket: the maximum error.
    pub uncertainty_ns: u64,
}

/// The clock of a NIC, opened for reading.
#[derive(Debug)]
pub struct Phc {
    file: File,
    path: String,
    method: PhcMethod,
    /// Whether the kernel returns the monotonic clock directly.
    gives_monotonic: bool,
}

impl Phc {
    /// Opens the clock with this number, and determines how it can be read.
    ///
    /// # Errors
    /// The root is not the running machine; there is no such clock, it cannot be opened, or the driver supports
    /// no method to read it.
    pub fn open(root: &Root, number: u32) -> Result<Self, ReadError> {
        let path = format!("/dev/ptp{number}");
        if !root.is_live() {
            return Err(ReadError::new(&path, "a snapshot has no running clock"));
        }
        let file = File::open(&path).map_err(|error| failed(&path, &error))?;
        let mut phc = Self { file, path, method: PhcMethod::Extended, gives_monotonic: true };
        let ways = [
            (PhcMethod::Precise, false),
            (PhcMethod::Extended, true),
            (PhcMethod::Extended, false),
            (PhcMethod::Offset, false),
        ];
        let mut refusal = None;
        for (method, gives_monotonic) in ways {
            (phc.method, phc.gives_monotonic) = (method, gives_monotonic);
            match phc.read() {
                Ok(_) => return Ok(phc),
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.unwrap_or_else(|| ReadError::new(&phc.path, "cannot be read")))
    }

    /// The method used.
    pub fn method(&self) -> PhcMethod {
        self.method
    }

    /// Its name: `ptp0`.
    pub fn name(&self) -> &str {
        self.path.trim_start_matches("/dev/")
    }

    /// Reads both clocks.
    ///
    /// # Errors
    /// The driver refuses, or the system time is set all the time.
    pub fn read(&self) -> Result<PhcReading, ReadError> {
        for _ in 0..TRIES {
            let before = realtime_to_monotonic();
            let (phc_ns, system_ns, half) =
                self.brackets().map_err(|error| failed(&self.path, &error))?;
            if self.gives_monotonic {
                return Ok(PhcReading { phc_ns, monotonic_ns: system_ns, uncertainty_ns: half });
            }
            let Some(reading) =
                on_monotonic((phc_ns, system_ns, half), before, realtime_to_monotonic())
            else {
                continue;
            };
            return Ok(reading);
        }
        Err(ReadError::new(&self.path, "the system time was set while the clock was read"))
    }

    /// The NIC's clock, the system clock at the same moment, and the maximum error.
    fn brackets(&self) -> io::Result<(i64, i64, u64)> {
        match self.method {
            PhcMethod::Precise => {
                let mut both = Precise::default();
                self.ask(PTP_SYS_OFFSET_PRECISE, &mut both)?;
                Ok((both.device.ns(), both.sys_realtime.ns(), 0))
            }
            PhcMethod::Extended => {
                let clockid = if self.gives_monotonic { libc::CLOCK_MONOTONIC } else { 0 };
                let ts = [[Time::default(); 3]; MAX_SAMPLES];
                let mut samples = Extended { n_samples: SAMPLES, clockid, reserved: [0; 2], ts };
                self.ask(PTP_SYS_OFFSET_EXTENDED, &mut samples)?;
                let taken = samples.ts.iter().take(SAMPLES as usize);
                shortest(taken.map(|[before, phc, after]| (before.ns(), phc.ns(), after.ns())))
            }
            PhcMethod::Offset => {
                let ts = [Time::default(); 2 * MAX_SAMPLES + 1];
                let mut samples = Offset { n_samples: SAMPLES, reserved: [0; 3], ts };
                self.ask(PTP_SYS_OFFSET, &mut samples)?;
                let taken = samples.ts.windows(3).step_by(2).take(SAMPLES as usize);
                shortest(taken.filter_map(|times| match times {
                    [before, phc, after] => Some((before.ns(), phc.ns(), after.ns())),
                    _ => None,
                }))
            }
        }
        .and_then(|found| {
            // Some drivers return nothing while their clock is powered down.
            if found.0 == 0 { Err(io::Error::from_raw_os_error(libc::ENODATA)) } else { Ok(found) }
        })
    }

    fn ask<T>(&self, request: u32, answer: &mut T) -> io::Result<()> {
        // SAFETY: the kernel reads and writes one structure of the size encoded in the request, which is that
        // of `T`.
        let result =
            unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, std::ptr::from_mut(answer)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn failed(path: &str, error: &io::Error) -> ReadError {
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::NODATA) => ReadError::new(path, "the clock is not running"),
        Some(errno) => ReadError::from_errno(path, errno),
        None => ReadError::new(path, &error.to_string()),
    }
}

/// The shortest of the brackets `(before, within, after)`: the time within, the middle of the other clock, and
/// half of the bracket. A bracket that ends before it starts is ignored.
fn shortest(brackets: impl Iterator<Item = (i64, i64, i64)>) -> io::Result<(i64, i64, u64)> {
    let length = |&(before, _, after): &(i64, i64, i64)| {
        after.checked_sub(before).and_then(|length| u64::try_from(length).ok())
    };
    let best = brackets.filter_map(|bracket| Some((length(&bracket)?, bracket))).min();
    let (length, (before, within, _)) =
        best.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA))?;
    let half = length.div_ceil(2);
    let middle = before.saturating_add(i64::try_from(length / 2).unwrap_or(i64::MAX));
    Ok((within, middle, half))
}

/// The offset from system time to monotonic clock, and its maximum error. Both run at the same rate; setting
/// the system time changes the offset.
fn realtime_to_monotonic() -> (i64, u64) {
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec.saturating_mul(NS_PER_S).saturating_add(time.tv_nsec)
    };
    let pair = |_| (ns(ClockId::Monotonic), ns(ClockId::Realtime), ns(ClockId::Monotonic));
    let (realtime, monotonic, half) = shortest((0..PAIRS).map(pair)).unwrap_or((0, 0, u64::MAX));
    (monotonic.saturating_sub(realtime), half)
}

/// Converts a reading from system time to the monotonic clock; `None` if the system time was set in the
/// meantime.
fn on_monotonic(
    (phc_ns, realtime_ns, half): (i64, i64, u64),
    before: (i64, u64),
    after: (i64, u64),
) -> Option<PhcReading> {
    let blur = before.1.saturating_add(after.1);
    if before.0.abs_diff(after.0) > blur {
        return None;
    }
    let (offset, off_by) = if before.1 <= after.1 { before } else { after };
    Some(PhcReading {
        phc_ns,
        monotonic_ns: realtime_ns.saturating_add(offset),
        uncertainty_ns: half.saturating_add(off_by),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_the_kernel() {
        // As printed by `strace`.
        assert_eq!(PTP_SYS_OFFSET, 0x4340_3d05);
        assert_eq!(PTP_SYS_OFFSET_PRECISE, 0xc040_3d08);
        assert_eq!(PTP_SYS_OFFSET_EXTENDED, 0xc4c0_3d09);
    }

    #[test]
    fn the_shortest_bracket_counts() {
        let brackets = [(100, 5_000, 300), (1_000, 6_000, 1_041), (2_000, 7_000, 2_500)];
        assert_eq!(shortest(brackets.into_iter()).unwrap(), (6_000, 1_020, 21));
        // A clock that was set back in between gives no bracket.
        assert_eq!(shortest([(100, 1, 90), (100, 2, 300)].into_iter()).unwrap(), (2, 200, 100));
        assert!(shortest([(100, 1, 90)].into_iter()).is_err());
        assert!(shortest([(i64::MIN, 1, i64::MAX)].into_iter()).is_err());
        assert!(shortest(std::iter::empty()).is_err());
    }

    #[test]
    fn setting_the_system_time_invalidates_a_reading() {
        let reading = on_monotonic((7, 1_000, 5), (-400, 30), (-410, 20)).unwrap();
        assert_eq!(
            (reading.phc_ns, reading.monotonic_ns, reading.uncertainty_ns),
            (7, 590, 25),
            "the better of the two offsets"
        );
        assert_eq!(on_monotonic((7, 1_000, 5), (-400, 30), (-500, 20)), None);
    }

    #[test]
    fn the_offset_of_the_system_clocks_is_stable() {
        let (offset, off_by) = realtime_to_monotonic();
        let (again, also) = realtime_to_monotonic();
        assert!(off_by < 1_000_000 && offset.abs_diff(again) <= off_by + also);
    }

    #[test]
    fn a_missing_clock_is_reported() {
        let error = Phc::open(&Root::live(), 999_999).unwrap_err();
        assert_eq!((error.what.as_str(), error.absent), ("/dev/ptp999999", true));
    }
}
