//! The programs' state of what is in flight: packets, tasks, sockets, and what each CPU runs. While nothing is
//! attached all of it becomes stale, and an address may be reused for another packet; so it is reset before the
//! programs are attached again.

use super::load::{Maps, types};
use super::reading;
use crate::InstrumentError;
use crate::kernel::Mapped;
use crate::layout::Layout;

/// The maps that contain it.
pub struct UnderWay {
    cpus: Mapped,
    readers: Mapped,
    others: [Mapped; 7],
}

impl UnderWay {
    /// Maps them, and passes each CPU's shard to the programs.
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

    /// Resets everything except which tasks read, so that these are observed from the first moment. No
    /// tracepoint is attached meanwhile, and without those the programs at functions know no packet.
    pub fn forget(&self, layout: &Layout) {
        for map in &self.others {
            map.clear();
        }
        self.forget_what_readers_did();
        self.cpus.clear();
        reading::prepare_cpus(&self.cpus, layout);
    }

    /// Their rings start at 0. The places where they block, by stack number, are kept.
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
