//! Parser of `/proc/interrupts`.
//!
//! Input: the text. Output: the numbered interrupts and those of the architecture (`LOC`, `RES`, `CAL`). A line
//! is (kernel/irq/proc.c, `show_interrupts`):
//!
//! ```text
//!            CPU0       CPU2
//!  38:          0       2198 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0     x86
//!  59:      81203          0  PCI-MSI 524288-edge      eth0-TxRx-0                   x86, to 6.4
//!  11:       1021       1044     GICv3  27 Level     arch_timer                      arm64
//!  10:          9          0  SiFive PLIC  10 Edge      ttyS0                        riscv
//!  57:         12          0   xen-dyn    -event     eth0-q0-tx                      xen
//! CAL:      29030      24073   Function call interrupts
//! ERR:          0
//! ```
//! that is: counts, the chip, the hardware number with the handler's name (`-edge`), the trigger if the
//! architecture shows it, and the names of the actions separated by commas.

use crate::cpu_table::{CpuTable, Malformed, number, printable};
use nearpath_model::{ArchIrq, CpuSet, Irq, IrqNumber};
use std::collections::HashMap;

/// Maximum number of lines read: a kernel has at most some ten thousand interrupts, and the text may be
/// untrusted.
const MAX_LINES: usize = 65_536;

/// Contents of `/proc/interrupts`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The numbered interrupts, ascending; affinities and nodes are in other files and `None` here.
    pub irqs: Vec<Irq>,
    /// The interrupts of the architecture, in the order of the file.
    pub arch: Vec<ArchIrq>,
    /// The CPUs with a column: those that are online.
    pub cpus: CpuSet,
    /// Labels of lines whose numbers do not match the CPUs of the header, for example if a CPU went online or
    /// offline while the file was written: the counts cannot be assigned, so they are omitted.
    pub uneven: Vec<String>,
    /// Whether there were more lines than the maximum.
    pub cut: bool,
}

/// Parses `/proc/interrupts`.
///
/// # Errors
/// The header lists no CPUs.
pub fn parse_interrupts(bytes: &[u8]) -> Result<Interrupts, Malformed> {
    let mut table = CpuTable::new(bytes)?;
    let cpus = table.cpus().len();
    let mut found =
        Interrupts { cpus: table.cpus().iter().copied().collect(), ..Default::default() };
    let mut counts = Vec::new();
    let mut of_arch: HashMap<String, usize> = HashMap::new();
    while let Some(line) = table.next_line(&mut counts) {
        if found.irqs.len() + found.arch.len() >= MAX_LINES {
            found.cut = true;
            break;
        }
        let irq = number(line.label).and_then(|n| u32::try_from(n).ok());
        // `ERR` and `MIS` are machine-wide; they are the ones without a description.
        let total = irq.is_none() && line.numbers == 1 && line.text.is_empty();
        if line.numbers != cpus && !total {
            found.uneven.push(printable(line.label));
        }
        if line.numbers != cpus || total {
            counts.clear();
        }
        if let Some(irq) = irq {
            let (chip, name) = split_text(line.text);
            found.irqs.push(Irq {
                irq: IrqNumber(irq),
                name,
                chip,
                counts: counts.drain(..).collect(),
                affinity: None,
                effective_affinity: None,
                node: None,
            });
        } else {
            let one = ArchIrq {
                name: printable(line.label),
                description: (!line.text.is_empty()).then(|| printable(line.text)),
                counts: counts.drain(..).collect(),
                total: total.then_some(line.sum),
            };
            let at = *of_arch.entry(one.name.clone()).or_insert(found.arch.len());
            match found.arch.get_mut(at) {
                Some(same) => add(same, one),
                None => found.arch.push(one),
            }
        }
    }
    found.irqs.sort_by_key(|irq| irq.irq);
    found.irqs.dedup_by_key(|irq| irq.irq);
    Ok(found)
}

/// Adds the counts of another line of the same name. POWER has two lines `LOC`, for timers of events and for others
/// (`arch_show_interrupts` of arch/powerpc/kernel/irq.c).
fn add(to: &mut ArchIrq, one: ArchIrq) {
    for (cpu, count) in one.counts {
        let sum = to.counts.entry(cpu).or_default();
        *sum = sum.saturating_add(count);
    }
    to.total = match (to.total, one.total) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    };
}

/// Splits the text after the counts into the chip's columns and the names of the actions.
fn split_text(text: &[u8]) -> (Option<String>, String) {
    let end = match chip_end(text) {
        Some(end) => end,
        // There is no hardware number, as in `PCI-MSI-edge      eth0`: the names follow at least two blanks.
        None => text.windows(2).rposition(|pair| pair == b"  ").unwrap_or(text.len()),
    };
    let (chip, names) = text.split_at_checked(end).unwrap_or((text, &[]));
    let chip = chip
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(printable)
        .collect::<Vec<_>>()
        .join(" ");
    ((!chip.is_empty()).then_some(chip), printable(names.trim_ascii()))
}

/// The end of the chip's columns: after the hardware number or the handler's name that follows the chip, and
/// after the trigger. A chip's name has up to three words (`SiFive PLIC`).
fn chip_end(text: &[u8]) -> Option<usize> {
    let mut words = Tokens { text, at: 0 };
    words.next()?;
    let mut end = (0..3).find_map(|_| words.next().filter(|(word, _)| is_hwirq(word)))?.1;
    let mut words = Tokens { text, at: end };
    if let Some((b"Level" | b"Edge", after)) = words.next() {
        end = after;
        // If the architecture shows the trigger, the handler's name follows in its own column.
        if let Some((word, after)) = words.next()
            && word.starts_with(b"-")
        {
            end = after;
        }
    }
    Some(end)
}

/// `27`, `1-edge` or `-event`.
fn is_hwirq(word: &[u8]) -> bool {
    let digits = word.iter().take_while(|b| b.is_ascii_digit()).count();
    match word.get(digits..) {
        Some([]) => digits > 0,
        Some([b'-', name, ..]) => !name.is_ascii_digit(),
        _ => false,
    }
}

/// The words of a text, each with its end offset.
struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = (&'a [u8], usize);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.text.get(self.at..)?;
        let start = self.at + rest.iter().position(|b| !b.is_ascii_whitespace())?;
        let word = self.text.get(start..)?;
        let length = word.iter().position(u8::is_ascii_whitespace).unwrap_or(word.len());
        self.at = start + length;
        Some((self.text.get(start..self.at)?, self.at))
    }
}

#[cfg(test)]
mod tests;
