//! Listening sockets: how full the queue of each is that holds connections which wait for accept(2).

use nearpath_host::TcpSocket;
use nearpath_model::tcp::{TcpLimit, TcpListener, TcpVerdict};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// All of them, by address, port and inode.
#[derive(Default)]
pub(super) struct Listeners(BTreeMap<(IpAddr, u16, u64), Listening>);

/// A listening socket.
struct Listening {
    backlog: u32,
    limit: u32,
    highest: u32,
    full: u64,
    readings: u64,
    first_drops: Option<u32>,
    drops: Option<u32>,
}

impl Listeners {
    /// Adds a reading of one: the queue is full if it holds more than its limit (`sk_acceptq_is_full`,
    /// include/net/sock.h).
    pub fn add(&mut self, socket: &TcpSocket) {
        let key = (socket.local.ip(), socket.local.port(), u64::from(socket.inode));
        let drops = socket.memory.map(|memory| memory.drops);
        let entry = self.0.entry(key).or_insert(Listening {
            backlog: 0,
            limit: 0,
            highest: 0,
            full: 0,
            readings: 0,
            first_drops: drops,
            drops,
        });
        entry.backlog = socket.receive_queue;
        entry.limit = socket.send_queue;
        entry.highest = entry.highest.max(entry.backlog);
        entry.full += u64::from(entry.backlog > entry.limit);
        entry.readings += 1;
        entry.drops = drops;
    }

    /// The sockets, each with its inode.
    pub fn get(&self) -> Vec<(u64, TcpListener)> {
        self.0.iter().map(|(key, listening)| (key.2, listening.listener(key.0, key.1))).collect()
    }
}

impl Listening {
    fn listener(&self, src: IpAddr, sport: u16) -> TcpListener {
        let full_share = self.full as f64 / self.readings.max(1) as f64;
        let drops = self.drops.zip(self.first_drops);
        let verdict = (full_share > 0.0).then(|| TcpVerdict {
            limit: TcpLimit::Backlog,
            share: full_share,
            evidence: vec![format!(
                "{} of {} connections wait for accept()",
                self.highest, self.limit
            )],
        });
        TcpListener {
            src,
            sport,
            pid: None,
            comm: None,
            backlog: self.backlog,
            backlog_max_seen: self.highest,
            backlog_limit: self.limit,
            full_share,
            drops: drops.map(|(now, first)| now.wrapping_sub(first).into()),
            verdict,
        }
    }
}
