//! The difference between two readings of one measurement of TCP.

use super::{TcpConnection, TcpCost, TcpLimit, TcpListener, TcpMeasurement};
use std::collections::{BTreeMap, HashMap};

impl TcpMeasurement {
    /// What happened since an earlier reading: counts, times and verdicts of the interval alone. Connections
    /// that had already ended are left out. Groups are of the whole measurement.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before: HashMap<_, _> = earlier.connections.iter().map(|c| (c.cookie, c)).collect();
        let connection = |now: &TcpConnection| match before.get(&now.cookie) {
            Some(old) if old.closed => None,
            old => Some(now.since(old.copied())),
        };
        let old = |name: &String| earlier.counters.get(name).copied().unwrap_or(0);
        let rise = |(name, now): (&String, &u64)| {
            let rise = now.saturating_sub(old(name));
            (rise > 0).then(|| (name.clone(), rise))
        };
        Self {
            duration_s: self.duration_s - earlier.duration_s,
            connections: self.connections.iter().filter_map(connection).collect(),
            listeners: self.listeners.iter().map(|now| now.since(earlier)).collect(),
            counters: self.counters.iter().filter_map(rise).collect(),
            events_lost: self.events_lost.saturating_sub(earlier.events_lost),
            cost: self.cost.since(&earlier.cost, self.duration_s - earlier.duration_s),
            ..self.clone()
        }
    }
}

impl TcpCost {
    fn since(&self, earlier: &Self, seconds: f64) -> Self {
        let spent = |cost: &Self| cost.ns_per_socket.unwrap_or(0.0) * cost.sockets as f64;
        let sockets = self.sockets.saturating_sub(earlier.sockets);
        let ns = (spent(self) - spent(earlier)).max(0.0);
        Self {
            dumps: self.dumps.saturating_sub(earlier.dumps),
            sockets,
            ns_per_socket: (sockets > 0).then(|| ns / sockets as f64),
            cpu_percent: if seconds > 0.0 { ns / 1e7 / seconds } else { 0.0 },
            programs: self.programs,
            sampling: self.sampling,
        }
    }
}

impl TcpConnection {
    /// The same for the time since an earlier reading; all of it if there was none.
    fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(old) = earlier else { return self.clone() };
        let observed_s = (self.observed_s - old.observed_s).max(0.0);
        let share = |now: Option<f64>, before: Option<f64>| {
            let seconds = now? * self.observed_s - before.unwrap_or(0.0) * old.observed_s;
            (observed_s > 0.0).then(|| (seconds / observed_s).clamp(0.0, 1.0))
        };
        let limit = |(limit, now): (&TcpLimit, &f64)| {
            let seconds = now - old.limits.get(limit).unwrap_or(&0.0);
            (seconds > 1e-6).then_some((*limit, seconds))
        };
        let mut interval = Self {
            observed_s,
            interval: self.interval.since(&old.interval),
            samples: self.samples.as_ref().map(|now| match &old.samples {
                Some(before) => now.since(before),
                None => now.clone(),
            }),
            busy_share: share(self.busy_share, old.busy_share),
            rwnd_limited_share: share(self.rwnd_limited_share, old.rwnd_limited_share),
            sndbuf_limited_share: share(self.sndbuf_limited_share, old.sndbuf_limited_share),
            app_limited_share: share(self.app_limited_share, old.app_limited_share),
            limits: self.limits.iter().filter_map(limit).collect::<BTreeMap<_, _>>(),
            ..self.clone()
        };
        interval.classify();
        interval
    }
}

impl TcpListener {
    fn since(&self, earlier: &TcpMeasurement) -> Self {
        let is_same =
            |old: &&Self| (old.src, old.sport, old.pid) == (self.src, self.sport, self.pid);
        let old = earlier.listeners.iter().find(is_same);
        let drops = old.and_then(|old| Some(self.drops?.saturating_sub(old.drops?)));
        Self { drops: drops.or(self.drops), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn reading(seconds: f64, connections: Vec<TcpConnection>) -> TcpMeasurement {
        TcpMeasurement { duration_s: seconds, connections, ..TcpMeasurement::default() }
    }

    #[test]
    fn an_interval_has_the_verdict_of_its_own_time() {
        let end = |port| (IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let at = |seconds: f64, sent, limits: &[(TcpLimit, f64)], closed| {
            let mut one = TcpConnection::between(end(1), end(2));
            (one.cookie, one.observed_s, one.closed) = (Some(9), seconds, closed);
            one.interval.bytes_sent = sent;
            one.busy_share = Some(limits.iter().map(|(_, s)| s).sum::<f64>() / seconds);
            one.limits = limits.iter().copied().collect();
            one.classify();
            one
        };
        let first = reading(4.0, vec![at(4.0, 100, &[(TcpLimit::Path, 4.0)], false)]);
        let limits = [(TcpLimit::Path, 4.0), (TcpLimit::Reader, 2.0)];
        let second = reading(6.0, vec![at(6.0, 150, &limits, true)]);
        let interval = second.since(&first);
        let [one] = interval.connections.as_slice() else { panic!("{interval:?}") };
        assert_eq!((one.observed_s, one.interval.bytes_sent), (2.0, 50));
        assert_eq!(one.verdict.as_ref().map(|v| (v.limit, v.share)), Some((TcpLimit::Reader, 1.0)));
        assert_eq!(one.busy_share, Some(1.0));
        // It has ended, and is not repeated.
        let third = reading(8.0, second.connections.clone());
        assert_eq!(third.since(&second).connections, []);
    }
}
