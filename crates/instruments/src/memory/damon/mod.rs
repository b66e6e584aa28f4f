//! DAMON (<https://docs.kernel.org/mm/damon/design.html>): how much memory was accessed, where a kdamond already runs.
//!
//! Starting one takes writes, which a measurement does not make. One that runs counts, for each region of its targets,
//! the checks that found an access, and reports them at the end of each aggregation interval: that is listened to.

mod owners;
mod regions;

use super::blocks::Blocks;
use crate::InstrumentError;
use crate::kernel::Kernel;
use nearpath_host::Root;
use nearpath_model::{AccessEstimates, AccessTarget, AccessedBytes, Kdamond};
use owners::{Owner, owners};
use regions::{Finished, Listener, PROBES, Region};
use std::collections::BTreeMap;
use std::path::Path;

/// What the output calls it.
pub const WHAT: &str = "accesses by region (DAMON)";

/// Listens to the running kdamonds.
pub struct Damon {
    owners: Vec<Owner>,
    listener: Listener,
}

impl Damon {
    /// Starts to listen.
    ///
    /// # Errors
    /// Why there is nothing to listen to, or why it cannot be done.
    pub fn start(root: &Root, btf_file: Option<&Path>) -> Result<Self, String> {
        let owners = owners(root)?;
        let listen = || -> Result<Listener, InstrumentError> {
            Listener::load(&Kernel::to_load_into(PROBES, btf_file)?)
        };
        let listener = listen().map_err(|error| error.to_string())?;
        Ok(Self { owners, listener })
    }

    /// The last complete interval of each target; `Err` if none has ended.
    ///
    /// # Errors
    /// Why there are no estimates.
    pub fn read(&self, root: &Root) -> Result<AccessEstimates, String> {
        let finished = self.listener.finished();
        if finished.is_empty() {
            return Err(self.why_none());
        }
        let estimates = estimates(&self.owners, finished, &Blocks::read(root), |pid| {
            root.text(&format!("/proc/{pid}/comm")).ok()
        });
        Ok(AccessEstimates { lost: self.listener.lost(), ..estimates })
    }

    fn why_none(&self) -> String {
        if self.listener.has_unnumbered() {
            return "before Linux 5.16 DAMON does not say which target a region is of".to_owned();
        }
        let longest = self.owners.iter().filter_map(|owner| owner.aggregation_us).max();
        let of = longest.map_or_else(String::new, |us| {
            format!(" (of {})", nearpath_model::units::seconds(us as f64 / 1e6))
        });
        format!("no aggregation interval{of} of DAMON has ended: measure for longer (--for)")
    }
}

/// The kdamonds with their targets, from the regions of their last intervals.
fn estimates(
    owners: &[Owner],
    finished: Vec<Finished>,
    blocks: &Blocks,
    comm: impl Fn(u32) -> Option<String>,
) -> AccessEstimates {
    let mut kdamonds: BTreeMap<u32, Kdamond> = owners
        .iter()
        .filter_map(|owner| {
            let pid = owner.kdamond?;
            let kdamond = Kdamond {
                pid,
                owner: Some(owner.name.clone()),
                operations: owner.operations.clone(),
                sample_us: owner.sample_us,
                aggregation_us: owner.aggregation_us,
                targets: Vec::new(),
            };
            Some((pid, kdamond))
        })
        .collect();
    for finished in finished {
        let owner = owners.iter().find(|owner| owner.kdamond == Some(finished.kdamond));
        let target = target(owner, &finished, blocks, &comm);
        let kdamond = kdamonds
            .entry(finished.kdamond)
            .or_insert_with(|| Kdamond { pid: finished.kdamond, ..Kdamond::default() });
        kdamond.targets.push(target);
    }
    for kdamond in kdamonds.values_mut() {
        kdamond.targets.sort_by_key(|target| target.target);
    }
    AccessEstimates { kdamonds: kdamonds.into_values().collect(), lost: 0 }
}

fn target(
    owner: Option<&Owner>,
    finished: &Finished,
    blocks: &Blocks,
    comm: impl Fn(u32) -> Option<String>,
) -> AccessTarget {
    let number = usize::try_from(finished.target).ok();
    let pid = number.and_then(|number| owner?.pids.get(number).copied().flatten());
    let is_physical = owner.is_some_and(|owner| owner.operations.as_deref() == Some("paddr"));
    let unit = owner.map_or(1, |owner| owner.unit);
    let checks = owner.and_then(Owner::checks);
    let aggregation_us = owner.and_then(|owner| owner.aggregation_us);
    let mut all = Sum::new(checks);
    let mut nodes: BTreeMap<_, Sum> = BTreeMap::new();
    for region in &finished.regions {
        let (start, end) = (region.start.saturating_mul(unit), region.end.saturating_mul(unit));
        all.add(region, end.saturating_sub(start));
        if is_physical {
            for (node, bytes) in blocks.split(start, end) {
                nodes.entry(node).or_insert_with(|| Sum::new(checks)).add(region, bytes);
            }
        }
    }
    AccessTarget {
        target: finished.target,
        pid,
        comm: pid.and_then(comm),
        aggregations: finished.intervals,
        regions: finished.regions.len() as u64,
        all: all.bytes(aggregation_us),
        nodes: nodes.into_iter().map(|(node, sum)| (node, sum.bytes(aggregation_us))).collect(),
    }
}

/// Bytes of regions.
struct Sum {
    /// Checks of a region in an interval.
    checks: Option<u64>,
    accessed: u64,
    frequent: u64,
    idle: u64,
    /// Idle bytes times their age in intervals.
    age: f64,
}

impl Sum {
    fn new(checks: Option<u64>) -> Self {
        Self { checks, accessed: 0, frequent: 0, idle: 0, age: 0.0 }
    }

    fn add(&mut self, region: &Region, bytes: u64) {
        if region.accesses == 0 {
            self.idle = self.idle.saturating_add(bytes);
            self.age += bytes as f64 * f64::from(region.age);
            return;
        }
        self.accessed = self.accessed.saturating_add(bytes);
        if self.checks.is_some_and(|checks| 2 * u64::from(region.accesses) >= checks) {
            self.frequent = self.frequent.saturating_add(bytes);
        }
    }

    fn bytes(&self, aggregation_us: Option<u64>) -> AccessedBytes {
        let intervals = (self.idle > 0).then(|| self.age / self.idle as f64);
        AccessedBytes {
            accessed_bytes: self.accessed,
            frequent_bytes: self.checks.map(|_| self.frequent),
            idle_bytes: self.idle,
            idle_s: intervals.zip(aggregation_us).map(|(n, us)| n * us as f64 / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::NodeId;

    fn region(start: u64, end: u64, accesses: u32, age: u32) -> Region {
        Region { start, end, accesses, age }
    }

    /// Blocks of 128 MiB: two on node 0, one on node 1.
    fn blocks() -> Blocks {
        let dir = tempfile::tempdir().unwrap();
        for block in ["node0/memory0", "node0/memory1", "node1/memory2"] {
            let path = format!("sys/devices/system/node/{block}");
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        std::fs::create_dir_all(dir.path().join("sys/devices/system/memory")).unwrap();
        let size = dir.path().join("sys/devices/system/memory/block_size_bytes");
        std::fs::write(size, "8000000\n").unwrap();
        Blocks::read(&Root::tree(dir.path()).unwrap())
    }

    const BLOCK: u64 = 128 << 20;

    #[test]
    fn physical_memory_is_counted_by_node_and_by_how_often_it_is_accessed() {
        let owner = Owner {
            name: "kdamonds/0".to_owned(),
            kdamond: Some(77),
            operations: Some("paddr".to_owned()),
            sample_us: Some(5_000),
            aggregation_us: Some(100_000),
            unit: 1,
            pids: vec![None],
        };
        let regions = vec![
            region(0, BLOCK, 0, 40),
            region(BLOCK, 2 * BLOCK, 9, 1),
            // 20 checks: half of them. Half of it is in no block.
            region(2 * BLOCK, 4 * BLOCK, 10, 3),
        ];
        let finished = Finished { kdamond: 77, target: 0, intervals: 5, regions };
        let estimates =
            estimates(std::slice::from_ref(&owner), vec![finished.clone()], &blocks(), |_| None);
        let [kdamond] = &*estimates.kdamonds else { panic!("{estimates:?}") };
        let [target] = &*kdamond.targets else { panic!("{kdamond:?}") };
        assert_eq!((target.pid, target.aggregations, target.regions), (None, 5, 3));
        let bytes = |accessed, frequent, idle, idle_s| AccessedBytes {
            accessed_bytes: accessed,
            frequent_bytes: Some(frequent),
            idle_bytes: idle,
            idle_s,
        };
        assert_eq!(target.all, bytes(3 * BLOCK, 2 * BLOCK, BLOCK, Some(4.0)));
        assert_eq!(target.nodes[&NodeId(0)], bytes(BLOCK, 0, BLOCK, Some(4.0)));
        assert_eq!(target.nodes[&NodeId(1)], bytes(BLOCK, BLOCK, 0, None));

        // Addresses in units of 4 KiB (addr_unit, 6.18).
        let unit = Owner { unit: 4096, ..owner.clone() };
        let mut small = finished.clone();
        for region in &mut small.regions {
            (region.start, region.end) = (region.start / 4096, region.end / 4096);
        }
        let scaled = super::estimates(&[unit], vec![small], &blocks(), |_| None);
        assert_eq!(scaled.kdamonds[0].targets[0], *target);

        // Nothing is known of it: neither nodes nor how often.
        let unknown = super::estimates(&[], vec![finished], &blocks(), |_| None);
        let kdamond = &unknown.kdamonds[0];
        assert_eq!((kdamond.pid, &kdamond.owner), (77, &None));
        assert_eq!(kdamond.targets[0].all.frequent_bytes, None);
        assert!(kdamond.targets[0].nodes.is_empty());
    }

    #[test]
    fn a_process_is_named_and_has_no_nodes() {
        let owner = Owner {
            name: "kdamonds/1".to_owned(),
            kdamond: Some(9),
            operations: Some("vaddr".to_owned()),
            sample_us: None,
            aggregation_us: None,
            unit: 1,
            pids: vec![Some(1), Some(812)],
        };
        let regions = vec![region(0x7f00_0000_0000, 0x7f00_0010_0000, 3, 0)];
        let finished = Finished { kdamond: 9, target: 1, intervals: 1, regions };
        let estimates = estimates(&[owner], vec![finished], &blocks(), |pid| {
            (pid == 812).then(|| "redis-server".to_owned())
        });
        let target = &estimates.kdamonds[0].targets[0];
        assert_eq!((target.pid, target.comm.as_deref()), (Some(812), Some("redis-server")));
        assert_eq!((target.all.accessed_bytes, target.nodes.len()), (1 << 20, 0));
    }
}
