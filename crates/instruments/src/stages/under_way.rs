//! What the programs know of what is under way: packets, tasks, sockets, and what each CPU is at. While
//! nothing is attached all of it goes stale, and an address may come to be another packet's; so it is
//! forgotten before they are attached again.

use super::load::Maps;
use super::reading;
use crate::InstrumentError;
use crate::kernel::Mapped;
use crate::layout::Layout;

/// The maps that hold it.
pub struct UnderWay {
    cpus: Mapped,
    others: [Mapped; 8],
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
            Mapped::new(&maps.readers)?,
            Mapped::new(&maps.gaps)?,
        ];
        Ok(Self { cpus, others })
    }

    /// Forgets all of it. Nothing is attached to a tracepoint meanwhile, and without those the programs at
    /// functions know of no packet.
    pub fn forget(&self, layout: &Layout) {
        for map in &self.others {
            map.clear();
        }
        self.cpus.clear();
        reading::prepare_cpus(&self.cpus, layout);
    }
}
