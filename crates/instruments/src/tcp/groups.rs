//! Connections by remote address, listener, process or cgroup.

use nearpath_model::tcp::{
    TcpConnection, TcpCounts, TcpGroup, TcpPer, TcpRole, TcpSamples, TcpVerdict, main_limit,
};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

/// The sums of a group.
#[derive(Default)]
struct Sum {
    connections: u64,
    rtts_ns: Vec<u64>,
    counts: Option<TcpCounts>,
    limits: BTreeMap<nearpath_model::tcp::TcpLimit, f64>,
    observed_s: f64,
    samples: Option<TcpSamples>,
}

/// Groups under way.
pub(super) struct Groups {
    per: TcpPer,
    sums: HashMap<String, Sum>,
}

impl Groups {
    /// None yet.
    pub fn new(per: TcpPer) -> Self {
        Self { per, sums: HashMap::new() }
    }

    /// Adds a connection to its group.
    pub fn add(&mut self, connection: &TcpConnection) {
        let sum = self.sums.entry(name(self.per, connection)).or_default();
        sum.connections += 1;
        sum.rtts_ns.extend(connection.rtt_ns);
        match &mut sum.counts {
            Some(counts) => counts.add(&connection.interval),
            None => sum.counts = Some(connection.interval),
        }
        for (limit, seconds) in &connection.limits {
            *sum.limits.entry(*limit).or_default() += seconds;
        }
        sum.observed_s += connection.observed_s;
        if let Some(more) = &connection.samples {
            sum.samples = Some(match &sum.samples {
                Some(sum) => sum.with(more),
                None => more.clone(),
            });
        }
    }

    /// The groups, those with the most bytes first.
    pub fn finish(self, top: Option<usize>) -> Vec<TcpGroup> {
        let per = self.per;
        let group = |(name, mut sum): (String, Sum)| {
            sum.rtts_ns.sort_unstable();
            let median = sum.rtts_ns.get(sum.rtts_ns.len() / 2);
            let rtt_ns = match (sum.rtts_ns.first(), median, sum.rtts_ns.last()) {
                (Some(least), Some(median), Some(most)) => Some((*least, *median, *most)),
                _ => None,
            };
            let verdict = main_limit(&sum.limits, sum.observed_s);
            TcpGroup {
                per,
                name,
                connections: sum.connections,
                rtt_ns,
                counts: sum.counts.unwrap_or_default(),
                samples: sum.samples,
                limits: sum.limits,
                verdict: verdict.map(|(limit, share)| TcpVerdict {
                    limit,
                    share,
                    evidence: Vec::new(),
                }),
            }
        };
        let mut groups: Vec<TcpGroup> = self.sums.into_iter().map(group).collect();
        let bytes = |group: &TcpGroup| group.counts.bytes();
        groups.sort_by(|a, b| bytes(b).cmp(&bytes(a)).then_with(|| a.name.cmp(&b.name)));
        groups.truncate(top.unwrap_or(usize::MAX));
        groups
    }
}

fn name(per: TcpPer, connection: &TcpConnection) -> String {
    match per {
        TcpPer::Remote => connection.dst.to_string(),
        TcpPer::Listener if connection.role == Some(TcpRole::Server) => {
            SocketAddr::new(connection.src, connection.sport).to_string()
        }
        TcpPer::Listener => "no listener".to_owned(),
        TcpPer::Process => match (&connection.comm, connection.pid) {
            (Some(comm), Some(pid)) => format!("{comm}/{pid}"),
            _ => "no process".to_owned(),
        },
        TcpPer::Cgroup => connection.cgroup.clone().unwrap_or_else(|| "no cgroup".to_owned()),
    }
}
