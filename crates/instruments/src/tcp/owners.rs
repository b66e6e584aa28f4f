//! The processes that have sockets open, remembered between results: looking for them reads the links of all descriptors
//! of the host, of which there may be a hundred thousand.

use crate::limited::own_time;
use nearpath_host::{ConnectionOwner, Root, connection_owners};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// What is known.
#[derive(Default)]
pub(super) struct Owners {
    known: HashMap<u64, ConnectionOwner>,
    /// Sockets that no process had open when it was last looked for them.
    absent: HashSet<u64>,
    /// When new ones are looked for again.
    next: Option<Instant>,
    /// Why some may be missing.
    reason: Option<String>,
}

impl Owners {
    /// Looks for the processes of these sockets that are not known: not more often than takes this share of a CPU.
    pub fn look(&mut self, root: &Root, wanted: &HashSet<u64>, limit: Option<f64>) {
        self.look_with(wanted, limit, |missing| connection_owners(root, missing));
    }

    fn look_with(
        &mut self,
        wanted: &HashSet<u64>,
        limit: Option<f64>,
        find: impl FnOnce(&HashSet<u64>) -> (HashMap<u64, ConnectionOwner>, Option<String>),
    ) {
        self.known.retain(|inode, _| wanted.contains(inode));
        self.absent.retain(|inode| wanted.contains(inode));
        let is_known = |inode: &u64| self.known.contains_key(inode);
        let has_new = wanted.iter().any(|inode| !is_known(inode) && !self.absent.contains(inode));
        if !has_new || self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let missing: HashSet<u64> =
            wanted.iter().copied().filter(|inode| !is_known(inode)).collect();
        let began = own_time();
        let (found, reason) = find(&missing);
        let cost = own_time().saturating_sub(began);
        self.next =
            limit.map(|share| Instant::now() + cost.div_f64(share.max(1e-3)).min(LONGEST_PAUSE));
        self.absent = missing.into_iter().filter(|inode| !found.contains_key(inode)).collect();
        self.known.extend(found);
        self.reason = reason;
    }

    /// Those of the last look, by inode.
    pub fn get(&self) -> &HashMap<u64, ConnectionOwner> {
        &self.known
    }

    /// Why some may be missing.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

/// However much a look costs.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_sockets_are_looked_for() {
        let mut owners = Owners::default();
        let mut looks = Vec::new();
        for (wanted, limit) in [
            (vec![1, 2], None),
            (vec![1, 2], None),
            (vec![1, 2, 3], Some(1e-3)),
            // Too early.
            (vec![4], Some(1e-3)),
        ] {
            owners.look_with(&wanted.into_iter().collect(), limit, |missing| {
                let mut asked: Vec<u64> = missing.iter().copied().collect();
                asked.sort_unstable();
                looks.push(asked);
                // It takes CPU time.
                let began = own_time();
                while own_time().saturating_sub(began) < Duration::from_millis(5) {}
                let owner = ConnectionOwner { pid: 7, comm: "nginx".to_owned(), cgroup: None };
                (
                    missing
                        .iter()
                        .filter(|inode| **inode != 2)
                        .map(|i| (*i, owner.clone()))
                        .collect(),
                    None,
                )
            });
        }
        assert_eq!(looks, [vec![1, 2], vec![2, 3]]);
        assert!(owners.get().is_empty(), "those that are not wanted any more are forgotten");
    }
}
