//! Packets into virtual machines.

use super::cost;
use crate::collect::{name_of, vms as collected};
use crate::recording::batch::{Batch, Cell};
use crate::recording::table::Table;
use nearpath_model::vm::VmMeasurement;

/// What was measured since an earlier reading.
pub fn vms(now: &VmMeasurement, earlier: Option<&VmMeasurement>) -> Batch {
    let nothing = VmMeasurement::default();
    let before = earlier.unwrap_or(&nothing);
    let mut batch = Batch::now(now.duration_s - before.duration_s);
    for (vm, interval) in collected::between(now, before) {
        for (kind, (buckets, max_ns)) in interval.spans {
            let span = name_of(&kind);
            let packets = buckets.values().fold(0u64, |sum, n| sum.saturating_add(*n));
            let names = || [Cell::from(&vm), Cell::from(&span)];
            let [name, of] = names();
            let row = [name, interval.pid.into(), of, packets.into(), max_ns.into()];
            batch.push(Table::Vms, row);
            for (upper_ns, packets) in buckets {
                let [name, of] = names();
                batch.push(Table::VmBuckets, [name, of, upper_ns.into(), packets.into()]);
            }
        }
    }
    cost(&mut batch, "vms", now.into(), before.into());
    batch
}
