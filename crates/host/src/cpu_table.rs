//! Tables with a column per CPU: `/proc/interrupts` and `/proc/softirqs`.
//!
//! Input: a header that lists the CPUs (`CPU0 CPU2 …`, with gaps for offline CPUs), then lines `label: count
//! count … text`. Output: the lines, one at a time, with the nonzero counts. On a host with 1,024 CPUs and 600
//! interrupts the text is 7 MB, nearly all of it blanks and zeros; hence a byte scan with a fast path for
//! zeros.

use nearpath_model::{CpuId, MAX_CPUS};

/// Malformed text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

/// A table being read, line by line.
#[derive(Debug)]
pub(crate) struct CpuTable<'a> {
    cpus: Vec<CpuId>,
    rest: &'a [u8],
}

/// A line of the table, without the counts per CPU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The text before the colon.
    pub label: &'a [u8],
    /// The number of numbers after it.
    pub numbers: usize,
    /// The sum of the numbers.
    pub sum: u64,
    /// The text after the numbers, trimmed.
    pub text: &'a [u8],
}

/// A zero in a column printed with `%10u `, as padded by the kernel.
const ZERO: &[u8] = b"          0";

impl<'a> CpuTable<'a> {
    /// Parses the header.
    ///
    /// # Errors
    /// The first line lists no CPU, or something else.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = split_line(bytes);
        let cpus: Vec<CpuId> = header
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(|word| word.strip_prefix(b"CPU").and_then(number).and_then(cpu_id))
            .collect::<Option<_>>()
            .ok_or_else(|| Malformed("the first line is not a list of CPUs".into()))?;
        if cpus.is_empty() {
            return Err(Malformed("the first line lists no CPU".into()));
        }
        Ok(Self { cpus, rest })
    }

    /// The CPUs with a column.
    pub(crate) fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Reads the next line that has a label, and stores its nonzero counts in `counts`.
    pub(crate) fn next_line(&mut self, counts: &mut Vec<(CpuId, u64)>) -> Option<Line<'a>> {
        counts.clear();
        loop {
            let end = self.rest.iter().position(|&b| b == b':' || b == b'\n')?;
            let (label, rest) = self.rest.split_at_checked(end)?;
            let (separator, rest) = rest.split_first()?;
            self.rest = rest;
            let label = label.trim_ascii();
            if *separator == b':' && !label.is_empty() {
                return Some(self.numbers(label, counts));
            }
        }
    }

    fn numbers(&mut self, label: &'a [u8], counts: &mut Vec<(CpuId, u64)>) -> Line<'a> {
        let (mut numbers, mut sum) = (0usize, 0u64);
        while let Some((value, rest)) = next_number(self.rest) {
            if value != 0 {
                sum = sum.saturating_add(value);
                counts.extend(self.cpus.get(numbers).map(|&cpu| (cpu, value)));
            }
            numbers += 1;
            self.rest = rest;
        }
        let (text, rest) = split_line(self.rest);
        self.rest = rest;
        Line { label, numbers, sum, text: text.trim_ascii() }
    }
}

/// The next number on the line, and the rest of the line.
fn next_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    if let Some(rest) = bytes.strip_prefix(ZERO)
        && rest.first().is_none_or(u8::is_ascii_whitespace)
    {
        return Some((0, rest));
    }
    let blanks = bytes.iter().take_while(|&&b| b == b' ' || b == b'\t').count();
    let bytes = bytes.get(blanks..)?;
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    let (digits, rest) = bytes.split_at_checked(digits)?;
    // `1f02000.pinctrl` is the name of a chip, not a count.
    rest.first().is_none_or(u8::is_ascii_whitespace).then_some(())?;
    Some((number(digits)?, rest))
}

/// A decimal number; `None` if it is not one or does not fit.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// The CPU with that number, if it is valid.
pub(crate) fn cpu_id(number: u64) -> Option<CpuId> {
    u32::try_from(number).ok().filter(|&n| n < MAX_CPUS).map(CpuId)
}

/// The first line without its line end, and the rest.
pub(crate) fn split_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|&b| b == b'\n').unwrap_or(bytes.len());
    let (line, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
    (line, rest.get(1..).unwrap_or_default())
}

/// Text set by the kernel or a driver (names, descriptions), made safe to print: invalid UTF-8 and control
/// characters are replaced.
pub(crate) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_every_padding_are_counted() {
        let text = b"      CPU0 CPU2 CPU7\n  1:          0          5          0  chip\nE: 0\n\n x\n 2: 0 0";
        let mut table = CpuTable::new(text).unwrap();
        assert_eq!(table.cpus(), [CpuId(0), CpuId(2), CpuId(7)]);
        let mut counts = Vec::new();
        let line = table.next_line(&mut counts).unwrap();
        assert_eq!(line, Line { label: b"1", numbers: 3, sum: 5, text: b"chip" });
        assert_eq!(counts, [(CpuId(2), 5)]);
        let line = table.next_line(&mut counts).unwrap();
        assert_eq!(line, Line { label: b"E", numbers: 1, sum: 0, text: b"" });
        // The line without a colon is skipped.
        let line = table.next_line(&mut counts).unwrap();
        assert_eq!(line, Line { label: b"2", numbers: 2, sum: 0, text: b"" });
        assert_eq!(table.next_line(&mut counts), None);
    }

    #[test]
    fn numbers_end_at_the_first_word() {
        let mut table =
            CpuTable::new(b"CPU0\n 1: 7 00 1f02000.pinctrl\n2: 99999999999999999999").unwrap();
        let mut counts = Vec::new();
        let line = table.next_line(&mut counts).unwrap();
        assert_eq!((line.numbers, line.text), (2, &b"1f02000.pinctrl"[..]));
        let line = table.next_line(&mut counts).unwrap();
        assert_eq!((line.numbers, line.text), (0, &b"99999999999999999999"[..]));
    }

    #[test]
    fn a_header_must_list_cpus() {
        for bad in ["", "\n", "CPU", "CPUx", "CPU0 IRQ", "CPU65536", "CPU99999999999999999999"] {
            assert!(CpuTable::new(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
