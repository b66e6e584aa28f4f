//! The programs' maps as memory: mapped once, then accessed without system calls.

use crate::InstrumentError;
use libbpf_rs::MapCore;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ptr::NonNull;

/// An array map (`BPF_F_MMAPABLE`) as a slice of its values.
///
/// The kernel writes to it at any time, so values are copied one 64-bit word at a time.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u64>,
    words: usize,
    bytes: usize,
}

// SAFETY: the mapping is not tied to a thread, and every access is one word.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps all of a map.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn new(map: &impl MapCore) -> Result<Self, InstrumentError> {
        let words =
            map.max_entries() as usize * (map.value_size() as usize).next_multiple_of(8) / 8;
        let bytes = (words * 8).next_multiple_of(rustix::param::page_size());
        // SAFETY: a new mapping at an address chosen by the kernel; `bytes` covers the array, whose size the
        // kernel rounds up to whole pages.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )
        };
        let start = start.ok().and_then(|address| NonNull::new(address.cast::<u64>())).ok_or_else(
            || InstrumentError::Refused {
                step: format!("mapping the BPF map {}", map.name().to_string_lossy()),
                reason: std::io::Error::last_os_error().to_string(),
            },
        )?;
        Ok(Self { start, words, bytes })
    }

    /// Size in 64-bit words.
    pub fn len(&self) -> usize {
        self.words
    }

    /// A word; 0 beyond the end.
    pub fn get(&self, word: usize) -> u64 {
        if word >= self.words {
            return 0;
        }
        // SAFETY: within the mapping, aligned; volatile because the kernel writes concurrently.
        unsafe { self.start.add(word).read_volatile() }
    }

    /// Sets everything to zero, while nothing else writes to it.
    pub fn clear(&self) {
        // SAFETY: the whole mapping, which consists of words; zero is a valid value of every map.
        unsafe { self.start.as_ptr().write_bytes(0, self.words) }
    }

    /// Writes a word; ignored beyond the end.
    pub fn set(&self, word: usize, value: u64) {
        if word < self.words {
            // SAFETY: as in `get`.
            unsafe { self.start.add(word).write_volatile(value) }
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping created in `new`, which nothing borrows any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Two adjacent 32-bit fields as one word.
pub fn pack(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// Size of a program structure in 64-bit words, from the skeleton.
pub const fn words_of<T>() -> usize {
    assert!(
        size_of::<T>().is_multiple_of(8),
        "an array has its values at multiples of eight bytes"
    );
    size_of::<T>() / 8
}

/// Word offset of a 64-bit field (or an array of them) of such a structure.
macro_rules! word_of {
    ($structure:ty, $field:ident) => {
        const {
            assert!(std::mem::offset_of!($structure, $field).is_multiple_of(8));
            std::mem::offset_of!($structure, $field) / 8
        }
    };
}

/// Word offset of two adjacent 32-bit fields (see [`pack`]).
macro_rules! pair_at {
    ($structure:ty, $first:ident, $second:ident) => {
        const {
            let first = std::mem::offset_of!($structure, $first);
            assert!(
                first.is_multiple_of(8) && std::mem::offset_of!($structure, $second) == first + 4
            );
            first / 8
        }
    };
}

pub(crate) use {pair_at, word_of};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_packed_in_their_order() {
        let bytes = pack(1, 2).to_ne_bytes();
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()), 1);
        assert_eq!(u32::from_ne_bytes(bytes[4..].try_into().unwrap()), 2);
    }
}
