//! What the programs know of what is under way: packets, tasks, sockets, and what each CPU is at. While
//! nothing is attached all of it goes stale, and an address may come to be another packet's; so it is
//! forgotten before they are attached again.

use super::load::{Maps, types};
use super::reading;
use crate::InstrumentError;
use crate::kernel::Mapped;
use crate::layout::Layout;

/// The maps that hold it.
pub struct UnderWay {
    cpus: Mapped,
    readers: Mapped,
    others: [Mapped; 7],
}

impl UnderWay {
    /// Maps them, and tells the programs where each CPU counts.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn new(maps: &Maps<'_>, layout: &Layout) -> Result<Self, InstrumentError> {
        let cpus = Mapped::new(&maps.cpus)?;
        reading::prepare_cpus(&cpus, layout);
        let others = [
            Mapped::new(&maps.packets)?,
            Mapped::new(&maps.tasks)?,
            Mapped::new(&maps.sockets)?,
            Mapped::new(&maps.throttles)?,
            Mapped::new(&maps.upcalls)?,
            Mapped::new(&maps.segments)?,
            Mapped::new(&maps.gaps)?,
        ];
        Ok(Self { cpus, readers: Mapped::new(&maps.readers)?, others })
    }

    /// Forgets all of it but which tasks read, so that what they do is seen from the first moment on. Nothing is attached to a tracepoint meanwhile, and without those the programs at
    /// functions know of no packet.
    pub fn forget(&self, layout: &Layout) {
        for map in &self.others {
            map.clear();
        }
        self.forget_what_readers_did();
        self.cpus.clear();
        reading::prepare_cpus(&self.cpus, layout);
    }

    /// Their rings begin at 0. Where they block, by the numbers of stacks, stays as it is.
    fn forget_what_readers_did(&self) {
        const WORDS: usize = size_of::<types::reader>() / 8;
        const KEPT: usize = std::mem::offset_of!(types::reader, sites) / 8;
        for slot in (0..self.readers.len()).step_by(WORDS) {
            // The pid is the first half of the first word.
            let pid = self.readers.get(slot).to_ne_bytes();
            let [a, b, c, d, ..] = pid;
            self.readers.set(slot, u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]));
            (slot + 1..slot + KEPT).for_each(|word| self.readers.set(word, 0));
        }
    }
}
