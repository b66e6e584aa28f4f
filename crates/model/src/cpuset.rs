//! A set of CPUs: one type, read from a cpulist (`0-3,8`) or a hexadecimal mask
//! (`ff,00000000`), shown as a cpulist and written to the kernel as either.

use crate::CpuId;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// More CPUs than any Linux kernel can be configured for (`CONFIG_NR_CPUS` is at most 8192 on
/// x86, `arch/x86/Kconfig`): a bound for numbers from untrusted input.
pub const MAX_CPUS: u32 = 65_536;

/// A set of CPUs, as a bitmap.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    /// No trailing zero words, so that equality is set equality.
    words: Vec<u64>,
}

/// Text that is neither a cpulist nor a mask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {expected}: {text:?}")]
pub struct ParseCpuSetError {
    expected: &'static str,
    text: String,
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses a cpulist such as `0-3,8`, the format of `smp_affinity_list`. Empty text is the empty set. The
    /// kernel's `first-last:used/group` form is accepted (lib/bitmap-str.c).
    ///
    /// # Errors
    /// Text that is not a cpulist, a CPU number of [`MAX_CPUS`] or more, or ranges that overlap so often that
    /// they name more CPUs than that (megabytes of `0-65535,` would take very long).
    pub fn from_list(text: &str) -> Result<Self, ParseCpuSetError> {
        let error =
            || ParseCpuSetError { expected: "cpulist", text: text.chars().take(80).collect() };
        let number = |s: &str| match s.trim().parse::<u32>() {
            Ok(n) if n < MAX_CPUS => Ok(n),
            _ => Err(error()),
        };
        let mut set = Self::new();
        let mut named = 0u32;
        for part in text.trim().split(',').map(str::trim) {
            if part.is_empty() {
                continue;
            }
            let (range, stride) = match part.split_once(':') {
                Some((range, stride)) => (range, Some(stride)),
                None => (part, None),
            };
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(range)?, number(range)?),
            };
            let (used, group) = match stride {
                Some(stride) => {
                    let (used, group) = stride.split_once('/').ok_or_else(error)?;
                    (number(used)?, number(group)?)
                }
                None => (1, 1),
            };
            if last < first || group == 0 || used > group {
                return Err(error());
            }
            named += last - first + 1;
            if named > MAX_CPUS {
                return Err(error());
            }
            for cpu in (first..=last).filter(|cpu| (cpu - first) % group < used) {
                set.insert(CpuId(cpu));
            }
        }
        Ok(set)
    }

    /// Parses a hexadecimal mask in groups of 32 bits, highest first, the format of `rps_cpus` and
    /// `smp_affinity`.
    ///
    /// # Errors
    /// Text that is not a mask, or a CPU number of [`MAX_CPUS`] or more.
    pub fn from_mask(text: &str) -> Result<Self, ParseCpuSetError> {
        let error =
            || ParseCpuSetError { expected: "CPU mask", text: text.chars().take(80).collect() };
        let mut set = Self::new();
        let text = text.trim();
        if text.is_empty() {
            return Err(error());
        }
        // Groups of 32 bits from the right; a single group may be longer (old kernels, /proc).
        let mut base = 0u32;
        for group in text.trim_start_matches("0x").rsplit(',') {
            if group.is_empty() {
                return Err(error());
            }
            for (i, digit) in group.bytes().rev().enumerate() {
                let value = (digit as char).to_digit(16).ok_or_else(error)?;
                for bit in (0..4).filter(|bit| value & (1 << bit) != 0) {
                    let cpu =
                        base.saturating_add(u32::try_from(i).unwrap_or(u32::MAX / 8) * 4 + bit);
                    if cpu >= MAX_CPUS {
                        return Err(error());
                    }
                    set.insert(CpuId(cpu));
                }
            }
            base = base.saturating_add(32);
        }
        Ok(set)
    }

    /// Adds a CPU; numbers of [`MAX_CPUS`] or more are ignored, as no kernel has them.
    pub fn insert(&mut self, cpu: CpuId) {
        if cpu.0 >= MAX_CPUS {
            return;
        }
        let word = cpu.0 as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu.0 % 64);
    }

    /// Removes a CPU.
    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.words.get_mut(cpu.0 as usize / 64) {
            *word &= !(1 << (cpu.0 % 64));
        }
        self.trim();
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.0 as usize / 64).is_some_and(|word| word & (1 << (cpu.0 % 64)) != 0)
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            (0..64u32)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| CpuId(u32::try_from(i).unwrap_or(u32::MAX / 64) * 64 + bit))
        })
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// The cpulist for a line of limited width: a long one as its first ranges and the number of CPUs,
    /// `0,2,4,6,… (64)`.
    pub fn brief(&self) -> String {
        const COLUMNS: usize = 20;
        let whole = self.to_string();
        if whole.len() <= COLUMNS {
            return whole;
        }
        let ranges: Vec<&str> = whole.split(',').take(4).collect();
        format!("{},… ({})", ranges.join(","), self.len())
    }

    /// The first, the last, and the distance between CPUs, if it is the same and more than 1 between all of at
    /// least three.
    pub fn stride(&self) -> Option<(CpuId, CpuId, u32)> {
        let cpus: Vec<u32> = self.iter().map(|cpu| cpu.0).collect();
        let (&[first, second, ..], &[.., last]) = (cpus.as_slice(), cpus.as_slice()) else {
            return None;
        };
        let step = second - first;
        let regular = cpus.windows(2).all(|pair| matches!(pair, [a, b] if b - a == step));
        (cpus.len() > 2 && step > 1 && regular).then_some((CpuId(first), CpuId(last), step))
    }

    /// The CPUs that are in both.
    pub fn intersection(&self, other: &Self) -> Self {
        let words = self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect();
        Self::trimmed(words)
    }

    /// The CPUs of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        let other = other.words.iter().copied().chain(std::iter::repeat(0));
        Self::trimmed(self.words.iter().zip(other).map(|(a, b)| a & !b).collect())
    }

    /// The CPUs that are in either.
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// Whether every CPU of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// The mask as the kernel writes it: groups of 32 bits, highest first, `00000000` when empty.
    pub fn to_mask(&self) -> String {
        let mut groups: Vec<String> = self
            .words
            .iter()
            .flat_map(|word| [word & 0xffff_ffff, word >> 32])
            .map(|group| format!("{group:08x}"))
            .collect();
        while groups.len() > 1 && groups.last().is_some_and(|group| group == "00000000") {
            groups.pop();
        }
        groups.reverse();
        if groups.is_empty() { "00000000".to_owned() } else { groups.join(",") }
    }

    fn trimmed(words: Vec<u64>) -> Self {
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::new();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().map(|cpu| cpu.0).peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.peek() == Some(&(last + 1)) {
                last += 1;
                cpus.next();
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_list(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuSet {
        CpuSet::from_list(text).unwrap()
    }

    #[test]
    fn lists_are_parsed_and_formatted() {
        for text in ["", "0", "0-3", "0-3,8", "1,3,5,7", "0-5,48-53", "1023-1025,2000"] {
            assert_eq!(list(text).to_string(), text);
        }
        assert_eq!(list("0-10:2/5").to_string(), "0-1,5-6,10");
        assert_eq!(list(" 0-1 , 3\n").to_string(), "0-1,3");
        assert_eq!(list("0-3,2-5").to_string(), "0-5");
        assert_eq!(list("0-65535").len(), 65_536);
        for bad in ["a", "3-1", "0-", "70000", "0-99999999999", "1:2", "0-3:0/0", "0-65535,0"] {
            assert!(CpuSet::from_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn masks_are_parsed_and_formatted() {
        for (mask, cpus) in [
            ("00000000", ""),
            ("0000000f", "0-3"),
            ("00000001,80000000", "31-32"),
            ("00000001,00000000,00000000", "64"),
        ] {
            assert_eq!(CpuSet::from_mask(mask).unwrap().to_string(), cpus);
            assert_eq!(list(cpus).to_mask(), mask);
        }
        assert_eq!(CpuSet::from_mask("3\n").unwrap().to_string(), "0-1");
        assert_eq!(CpuSet::from_mask("ffffffffff").unwrap().to_string(), "0-39");
        for bad in ["", "x", "1,,1", "-1"] {
            assert!(CpuSet::from_mask(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn set_algebra() {
        let (a, b) = (list("0-3,64"), list("2-5"));
        assert_eq!(a.intersection(&b).to_string(), "2-3");
        assert_eq!(a.difference(&b).to_string(), "0-1,64");
        assert_eq!(a.union(&b).to_string(), "0-5,64");
        assert!(list("2").is_subset(&b) && !a.is_subset(&b));
        let mut c = list("64");
        c.remove(CpuId(64));
        assert_eq!(c, CpuSet::new());
        assert_eq!(a.len(), 5);
    }

    #[test]
    fn a_long_list_is_cut() {
        let brief = |list: &str| CpuSet::from_list(list).unwrap().brief();
        assert_eq!(brief("0-3,8"), "0-3,8");
        assert_eq!(brief("0-126:1/2"), "0,2,4,6,… (64)");
    }

    #[test]
    fn a_stride_is_of_three_or_more() {
        let stride = |list: &str| CpuSet::from_list(list).unwrap().stride();
        assert_eq!(stride("0-126:1/2"), Some((CpuId(0), CpuId(126), 2)));
        assert_eq!(stride("1,5,9"), Some((CpuId(1), CpuId(9), 4)));
        for list in ["", "3", "0,2", "0-3", "0,2,5"] {
            assert_eq!(stride(list), None, "{list}");
        }
    }
}
