//! Areas that a PMU writes samples to by itself (`aux_area` of perf_event_open(2)), one for each CPU: the kernel says in the
//! event's ring which part of an area is complete (`PERF_RECORD_AUX`).

use super::perf::{Rate, Ring, attributes, open};
use super::pmu::Event;
use super::record::{Area, Record};
use nearpath_model::CpuSet;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;

/// Pages of an area: a second of samples.
const PAGES: usize = 64;
/// The kernel reports what is complete each so many bytes at the latest.
const REPORTED_EACH: u32 = 16 << 10;

/// What was written since the last time to one CPU's area.
pub struct Part<'a> {
    pub cpu: u32,
    /// Where it begins, counted from the start of the measurement.
    pub begins: u64,
    pub bytes: &'a [u8],
    pub flags: u64,
}

/// Areas of all CPUs that a PMU has, until it is dropped.
#[derive(Debug)]
pub struct AuxAreas {
    areas: Vec<MappedArea>,
}

impl AuxAreas {
    /// Starts to sample each `period` operations.
    ///
    /// # Errors
    /// The kernel refused: the first reason.
    pub fn open(event: &Event, cpus: &CpuSet, period: u64) -> io::Result<Self> {
        let areas = cpus.iter().map(|cpu| {
            let mut attributes = attributes(event, Some(Rate::Period(period)), 0);
            attributes.aux_watermark = REPORTED_EACH;
            let number = libc::c_int::try_from(cpu.0).map_err(io::Error::other)?;
            MappedArea::map(Ring::map(open(&mut attributes, number, None)?)?, cpu.0)
        });
        Ok(Self { areas: areas.collect::<io::Result<_>>()? })
    }

    /// Takes what was written since the last time.
    pub fn take(&mut self, mut each: impl FnMut(Part<'_>)) {
        for area in &mut self.areas {
            area.take(&mut each);
        }
    }
}

/// The mapped area of a CPU.
#[derive(Debug)]
struct MappedArea {
    ring: Ring,
    start: *mut libc::c_void,
    size: usize,
    cpu: u32,
}

// SAFETY: the mapping belongs to the area alone, and is valid in each thread.
unsafe impl Send for MappedArea {}

impl MappedArea {
    fn map(mut ring: Ring, cpu: u32) -> io::Result<Self> {
        let size = PAGES * rustix::param::page_size();
        let offset = ring.announce_area(size);
        let (read, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { mmap(std::ptr::null_mut(), size, read, shared, ring.event(), offset)? };
        Ok(Self { ring, start, size, cpu })
    }

    fn take(&mut self, each: &mut impl FnMut(Part<'_>)) {
        let mut areas = Vec::new();
        self.ring.take(&mut |record| {
            if let Record::Area(area) = record {
                areas.push(area);
            }
        });
        for Area { offset, size, flags } in areas {
            let bytes = self.copy(offset, size);
            each(Part { cpu: self.cpu, begins: offset, bytes: &bytes, flags });
            self.ring.release_area(offset.wrapping_add(size));
        }
        // The PMU stops at a full area.
        self.ring.enable();
    }

    fn copy(&self, offset: u64, size: u64) -> Vec<u8> {
        let count = usize::try_from(size).unwrap_or(0).min(self.size);
        let begin = usize::try_from(offset % self.size as u64).unwrap_or(0);
        let first = count.min(self.size - begin);
        let mut bytes = vec![0u8; count];
        // SAFETY: both parts are within the area, and nothing is written there until it has been released.
        unsafe {
            let area = self.start.cast::<u8>();
            std::ptr::copy_nonoverlapping(area.add(begin), bytes.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(area, bytes.as_mut_ptr().add(first), count - first);
        }
        bytes
    }
}

impl Drop for MappedArea {
    fn drop(&mut self) {
        // SAFETY: mapped with this size; nothing uses it any more.
        let _ = unsafe { munmap(self.start, self.size) };
    }
}
