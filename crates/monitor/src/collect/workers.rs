//! Threads that poll, and what their ports dropped.

use crate::metrics::Id;
use crate::store::Store;
use nearpath_model::Workers as Polling;
use std::collections::BTreeMap;

/// What ports had dropped at the last reading.
#[derive(Debug, Default)]
pub struct Workers {
    missed: BTreeMap<(u32, String), u64>,
}

impl Workers {
    /// Adds a reading.
    pub fn add(&mut self, store: &mut Store, now: &Polling) {
        store.clear(Id::WorkerBusy);
        let mut missed = BTreeMap::new();
        for process in &now.processes {
            for worker in &process.workers {
                if let Some(percent) = worker.busy_percent {
                    let labels = [process.name.as_str(), &worker.lcore.to_string()];
                    store.set(Id::WorkerBusy, &labels, percent / 100.0);
                }
            }
            for port in &process.ports {
                let Some(count) = port.imissed else { continue };
                let key = (process.pid, port.name.clone());
                // What was dropped before the first reading is not of now; a smaller count was reset.
                let more = match self.missed.get(&key) {
                    Some(&before) if count >= before => count - before,
                    Some(_) => count,
                    None => 0,
                };
                store.count(Id::Imissed, &[&port.name], more);
                missed.insert(key, count);
            }
        }
        self.missed = missed;
    }
}
