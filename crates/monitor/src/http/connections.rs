//! The connections that are served at once, and which of them ends when there is another one.
//!
//! A client that has shown a password keeps its connection. Of the others the oldest ends, of the address that has most of
//! them: clients that send nothing, or little by little, keep nobody out. Passwords are checked one at a time, in the
//! order of the connections, so that guessing takes one CPU at most.

use std::cmp::Reverse;
use std::net::{IpAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Connections that are served at once.
pub const CONNECTIONS_MAX: usize = 8;

/// How far a connection is; those of the first kind end first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No request yet, or an answered one.
    Waiting,
    /// It waits until its password is checked.
    Queued,
    /// It gets a page that everybody may see.
    Open,
    /// Its password is being checked.
    Checking,
    /// It has shown a password.
    Allowed,
    /// It has been ended, and its thread is about to notice.
    Ending,
}

/// All connections.
#[derive(Debug, Default)]
pub struct Connections {
    all: Mutex<All>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct All {
    last: u64,
    /// The oldest first.
    list: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    address: IpAddr,
    stream: Arc<TcpStream>,
    stage: Stage,
}

impl All {
    /// Sets how far a connection is, unless it has been ended.
    fn set(&mut self, id: u64, stage: Stage) {
        let one = self.list.iter_mut().find(|one| one.id == id);
        if let Some(one) = one.filter(|one| one.stage != Stage::Ending) {
            one.stage = stage;
        }
    }

    /// The oldest connection that is so far.
    fn oldest(&self, stage: Stage) -> Option<u64> {
        self.list.iter().find(|one| one.stage == stage).map(|one| one.id)
    }

    /// The connection that makes room for another one, if any may.
    fn first_to_end(&mut self) -> Option<&mut Connection> {
        let ends = |one: &&mut Connection| one.stage < Stage::Checking;
        let addresses: Vec<IpAddr> = self.list.iter().map(|one| one.address).collect();
        let count = |address| addresses.iter().filter(|other| **other == address).count();
        let order = |one: &&mut Connection| (one.stage, Reverse(count(one.address)), one.id);
        self.list.iter_mut().filter(ends).min_by_key(order)
    }
}

impl Connections {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. If there are too many, `end` is called with the one that ends for it, and must wake its
    /// thread; `None` if none may end.
    pub fn add(
        &self,
        address: IpAddr,
        stream: &Arc<TcpStream>,
        end: impl Fn(&TcpStream),
    ) -> Option<Place<'_>> {
        let mut all = self.all();
        while all.list.len() >= CONNECTIONS_MAX {
            if all.oldest(Stage::Ending).is_none() {
                let one = all.first_to_end()?;
                one.stage = Stage::Ending;
                end(&one.stream);
                self.changed.notify_all();
            }
            all = self.changed.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
        all.last += 1;
        let (id, stream, stage) = (all.last, Arc::clone(stream), Stage::Waiting);
        all.list.push(Connection { id, address, stream, stage });
        Some(Place { connections: self, id })
    }
}

/// A place among the connections, until it is dropped.
#[derive(Debug)]
pub struct Place<'a> {
    connections: &'a Connections,
    id: u64,
}

impl Place<'_> {
    /// How far it is now, unless it has been ended.
    pub fn set(&self, stage: Stage) {
        self.connections.all().set(self.id, stage);
        self.connections.changed.notify_all();
    }

    /// Checks a password when those of older connections have been; `None` if that takes too long, or it has been ended.
    pub fn check(&self, until: Instant, check: impl FnOnce() -> bool) -> Option<bool> {
        let changed = &self.connections.changed;
        let mut all = self.connections.all();
        all.set(self.id, Stage::Queued);
        while all.oldest(Stage::Checking).is_some() || all.oldest(Stage::Queued) != Some(self.id) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || all.oldest(Stage::Ending) == Some(self.id) {
                all.set(self.id, Stage::Waiting);
                changed.notify_all();
                return None;
            }
            all = changed.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        all.set(self.id, Stage::Checking);
        drop(all);
        let is_right = check();
        self.set(Stage::Waiting);
        Some(is_right)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.connections.all().list.retain(|one| one.id != self.id);
        self.connections.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn passwords_are_checked_one_at_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let connections = Connections::default();
        let add = || connections.add(IpAddr::from([10, 0, 0, 1]), &stream, |_| ()).unwrap();
        let (first, second) = (add(), add());
        let now = Instant::now();
        let is_right = first.check(now, || {
            assert_eq!(second.check(now, || panic!("both at once")), None);
            true
        });
        assert_eq!((is_right, second.check(now, || false)), (Some(true), Some(false)));
    }

    #[test]
    fn who_ends_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let connections = Connections::default();
        let never = |_: &TcpStream| panic!("there is room");
        let add = |last: u8| connections.add(IpAddr::from([10, 0, 0, last]), &stream, never);
        let places: Vec<_> =
            [1, 1, 2, 2, 2, 3, 3, 4].into_iter().map(|n| add(n).unwrap()).collect();
        let first = || connections.all().first_to_end().map(|one| one.id);
        let mut order = Vec::new();
        places[0].set(Stage::Allowed);
        places[4].set(Stage::Open);
        while let Some(id) = first() {
            order.push(id);
            // One that has shown a password is never among them.
            places[id as usize - 1].set(Stage::Allowed);
        }
        // Those of the address with most of them, the oldest first; at last the one that gets a page.
        assert_eq!(order, [3, 4, 2, 6, 7, 8, 5]);
        let refused = connections.add(IpAddr::from([10, 0, 0, 9]), &stream, never);
        assert!(refused.is_none());
        drop(places);
        assert!(connections.all().list.is_empty());
    }
}
