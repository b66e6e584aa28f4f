//! The formats of topology files: a number, a cpulist, a mask, a size.

use crate::{ReadError, Root};
use nearpath_model::CpuSet;
use std::cell::Cell;

/// The number after a prefix: 12 of `cpu12`. `None` for other names (`cpufreq`, `cpu+1`).
pub(super) fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// A cpulist.
pub(super) fn cpulist(root: &Root, path: &str) -> Result<CpuSet, ReadError> {
    parsed(path, CpuSet::from_list(&root.text(path)?))
}

fn parsed<E: std::fmt::Display>(path: &str, set: Result<CpuSet, E>) -> Result<CpuSet, ReadError> {
    set.map_err(|e| ReadError { what: path.to_owned(), reason: e.to_string(), absent: false })
}

/// An id in the topology directory.
///
/// # Errors
/// Why it is unknown: missing, not a number, or one of the values that mean unknown: -1
/// (drivers/base/topology.c) and 65535, an APIC id of 16 bits (arch/x86 `BAD_APICID`).
pub(super) fn id(root: &Root, path: &str) -> Result<u32, String> {
    let text = root.text(path).map_err(|e| e.reason)?;
    match text.parse::<i64>() {
        Ok(65_535) => Err("is 65535, the kernel's value for unknown".to_owned()),
        Ok(id) => match u32::try_from(id) {
            Ok(u32::MAX) | Err(_) => Err(format!("the kernel reports {id}")),
            Ok(id) => Ok(id),
        },
        Err(_) => Err(format!("is not a number: {:?}", text.chars().take(40).collect::<String>())),
    }
}

/// A size as printed by the kernel, in bytes: `8192K` (drivers/base/cacheinfo.c). Zero means unknown.
pub(super) fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.bytes().last()? {
        b'K' => (text.strip_suffix('K')?, 1 << 10),
        b'M' => (text.strip_suffix('M')?, 1 << 20),
        b'G' => (text.strip_suffix('G')?, 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

/// A CPU set that kernels show in several files: as a list or a mask, under an old name or a new one. Remembers
/// which file this host has.
pub(super) struct SetFiles {
    /// Names in order of preference; those ending in `list` contain lists, others masks.
    names: &'static [&'static str],
    last: Cell<usize>,
}

impl SetFiles {
    pub(super) fn new(names: &'static [&'static str]) -> Self {
        Self { names, last: Cell::new(0) }
    }

    /// The set in the directory, from the first readable file.
    ///
    /// # Errors
    /// The error of the last file.
    pub(super) fn read(&self, root: &Root, dir: &str) -> Result<CpuSet, ReadError> {
        let last = self.last.get();
        let others = (0..self.names.len()).filter(|i| *i != last);
        let mut error = None;
        for i in std::iter::once(last).chain(others) {
            let Some(name) = self.names.get(i) else { continue };
            let path = format!("{dir}/{name}");
            let set = root.text(&path).and_then(|text| match name.ends_with("list") {
                true => parsed(&path, CpuSet::from_list(&text)),
                false => parsed(&path, CpuSet::from_mask(&text)),
            });
            match set {
                Ok(set) => {
                    self.last.set(i);
                    return Ok(set);
                }
                Err(e) => error = Some(e),
            }
        }
        Err(error.unwrap_or_else(|| ReadError {
            what: dir.to_owned(),
            reason: "no such file".to_owned(),
            absent: true,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_numbers() {
        assert_eq!(numbered("cpu12", "cpu"), Some(12));
        for name in ["cpufreq", "cpu", "cpu+1", "cpu-1", "node1", "cpu99999999999"] {
            assert_eq!(numbered(name, "cpu"), None, "{name}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size("8192K"), Some(8 << 20));
        assert_eq!(size("32M"), Some(32 << 20));
        assert_eq!(size("512"), Some(512));
        for unknown in ["0K", "", "K", "-1K", "99999999999999999999K", "18446744073709551615G"] {
            assert_eq!(size(unknown), None, "{unknown}");
        }
    }
}
