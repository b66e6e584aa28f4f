//! The interfaces of a trial, watched while a block runs: a link that is lost, and errors and drops that become many,
//! stop it at once instead of at the end of the block.

use nearpath_host::{Root, read_nstat};
use nearpath_trial::live::Interfaces;

/// Errors or drops below this number are not many.
const MANY: u64 = 100;
/// Nor is a share below this, above that of any block without the plan.
const MANY_SHARE: f64 = 0.01;

/// The interfaces, with what they were like without the plan.
pub(super) struct Links {
    /// Those that had a link at the start.
    up: Vec<String>,
    names: Vec<String>,
    worst_shares: [f64; 2],
    began: Option<Interfaces>,
}

impl Links {
    pub(super) fn new(root: &Root, names: Vec<String>) -> Self {
        let counts = |name: &String| {
            root.text(&format!("/sys/class/net/{name}/statistics/rx_packets")).is_ok()
        };
        let names: Vec<String> = names.into_iter().filter(counts).collect();
        let up = names.iter().filter(|name| has_link(root, name)).cloned().collect();
        Self { up, names, worst_shares: [0.0; 2], began: None }
    }

    /// The first interface whose link is lost.
    pub(super) fn lost(&self, root: &Root) -> Option<&str> {
        self.up.iter().find(|name| !has_link(root, name)).map(String::as_str)
    }

    /// Watches these links, too, if they are interfaces: those that a plan changes.
    pub(super) fn watch(&mut self, root: &Root, names: impl Iterator<Item = String>) {
        for name in names {
            if !self.up.contains(&name) && has_link(root, &name) {
                self.up.push(name);
            }
        }
    }

    /// Starts a block.
    pub(super) fn begin(&mut self, root: &Root) {
        self.began = self.read(root);
    }

    /// The harm since the block began.
    pub(super) fn harm(&self, root: &Root) -> Option<String> {
        if let Some(name) = self.lost(root) {
            return Some(format!("{name}: link lost"));
        }
        let past = self.read(root)?.since(self.began?);
        let bad = [("errors", past.errors), ("drops", past.drops)];
        let shares = past.shares().into_iter().zip(self.worst_shares);
        bad.into_iter().zip(shares).find_map(|((what, count), (share, worst))| {
            let is_many = count >= MANY && share > worst + MANY_SHARE;
            is_many.then(|| {
                let [share, worst] = [share, worst].map(|share| 100.0 * share);
                format!("{what}: {share:.1}% of packets, at most {worst:.1}% without the plan")
            })
        })
    }

    /// Ends a block without the plan.
    pub(super) fn end_without(&mut self, root: &Root) {
        let past = self.read(root).zip(self.began).map(|(end, began)| end.since(began));
        let shares = past.unwrap_or_default().shares();
        self.worst_shares
            .iter_mut()
            .zip(shares)
            .for_each(|(worst, share)| *worst = worst.max(share));
    }

    /// What they count; `None` if a counter cannot be read.
    pub(super) fn read(&self, root: &Root) -> Option<Interfaces> {
        if self.names.is_empty() {
            return None;
        }
        let backlog = backlog_drops(root).unwrap_or(0);
        let mut all = Interfaces { drops: backlog, ..Interfaces::default() };
        for name in &self.names {
            let sum = |counters: &[&str]| -> Option<u64> {
                let count = |counter: &&str| -> Option<u64> {
                    let path = format!("/sys/class/net/{name}/statistics/{counter}");
                    root.text(&path).ok()?.parse().ok()
                };
                counters.iter().map(count).try_fold(0u64, |sum, one| Some(sum.wrapping_add(one?)))
            };
            all.bytes = all.bytes.wrapping_add(sum(&["rx_bytes", "tx_bytes"])?);
            all.packets = all.packets.wrapping_add(sum(&["rx_packets", "tx_packets"])?);
            all.errors = all.errors.wrapping_add(sum(&["rx_errors", "tx_errors"])?);
            all.drops =
                all.drops.wrapping_add(sum(&["rx_dropped", "tx_dropped", "rx_missed_errors"])?);
        }
        Some(all)
    }
}

/// What this namespace and its CPUs have counted, in total. A counter that cannot be read counts nothing.
#[derive(Clone, Copy)]
pub(super) struct Counted {
    /// Packets lost by interfaces, backlogs, full socket buffers and full queues of connections.
    pub(super) lost: u64,
    /// Those of them that protocols lost: packets for this host.
    pub(super) lost_here: u64,
    /// Bytes of IP packets, received and sent.
    pub(super) bytes: u64,
}

/// The counters of protocols, by their names in nstat(8).
const NOT_SENT: [&str; 2] = ["UdpSndbufErrors", "Udp6SndbufErrors"];
const BYTES: [&str; 4] = ["IpExtInOctets", "IpExtOutOctets", "Ip6InOctets", "Ip6OutOctets"];
const LOST: [&str; 8] = [
    "UdpRcvbufErrors",
    "Udp6RcvbufErrors",
    "TcpExtListenDrops",
    "TcpExtTCPBacklogDrop",
    "TcpExtTCPRcvQDrop",
    "TcpExtRcvPruned",
    "IpReasmFails",
    "TcpExtTCPReqQFullDrop",
];

impl Counted {
    pub(super) fn read(root: &Root) -> Self {
        let counters = read_nstat(root).unwrap_or_default();
        let sum = |names: &[&str]| -> u64 {
            names.iter().filter_map(|name| counters.get(*name)).fold(0, |a, b| a.wrapping_add(*b))
        };
        let (lost_here, not_sent) = (sum(&LOST), sum(&NOT_SENT));
        let names = root.list("/sys/class/net").unwrap_or_default();
        let names = names.into_iter().map(|entry| entry.name).collect();
        let links = Links { up: Vec::new(), names, worst_shares: [0.0; 2], began: None };
        let interfaces = links.read(root).unwrap_or_default();
        let counted = [lost_here, not_sent, interfaces.drops, interfaces.errors];
        let lost = counted.into_iter().fold(0, u64::wrapping_add);
        Self { lost, lost_here, bytes: sum(&BYTES) }
    }

    /// What was counted since an earlier reading.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            lost: self.lost.saturating_sub(before.lost),
            lost_here: self.lost_here.saturating_sub(before.lost_here),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// `carrier` cannot be read while an interface is down.
fn has_link(root: &Root, name: &str) -> bool {
    root.text(&format!("/sys/class/net/{name}/carrier")).is_ok_and(|carrier| carrier == "1")
}

/// Packets that the CPUs' backlogs dropped: the second column of `/proc/net/softnet_stat` (softnet_seq_show in
/// net/core/net-procfs.c).
fn backlog_drops(root: &Root) -> Option<u64> {
    let text = root.text("/proc/net/softnet_stat").ok()?;
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().map(dropped).sum()
}
