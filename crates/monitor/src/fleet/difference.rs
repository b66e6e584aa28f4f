//! What changed between two moments.

use nearpath_model::fleet::{
    FLEET_SCHEMA, Fleet, FleetDifference, FleetFinding, FleetHost, HostDifference,
};
use std::collections::BTreeMap;

/// A cost or a percentile that changes by less is the same: noise of a minute.
const SAME: f64 = 0.1;

/// How hosts have changed: those that got worst first.
pub fn difference(before: &Fleet, after: &Fleet) -> FleetDifference {
    let by_name = |fleet: &'_ Fleet| -> BTreeMap<String, FleetHost> {
        fleet.hosts.iter().map(|host| (host.name.clone(), host.clone())).collect()
    };
    let (earlier, later) = (by_name(before), by_name(after));
    let mut out = FleetDifference { schema: FLEET_SCHEMA, ..FleetDifference::default() };
    for (name, now) in &later {
        let Some(was) = earlier.get(name) else {
            out.new.push(name.clone());
            continue;
        };
        let host = of_host(was, now);
        if is_same(&host) { out.same += 1 } else { out.hosts.push(host) }
    }
    out.gone = earlier.into_keys().filter(|name| !later.contains_key(name)).collect();
    let worse = |host: &HostDifference| host.cost_s.1 - host.cost_s.0;
    out.hosts.sort_by(|a, b| {
        let counts = |host: &HostDifference| host.began.len() as i64 - host.ended.len() as i64;
        worse(b).total_cmp(&worse(a)).then(counts(b).cmp(&counts(a)))
    });
    out
}

fn of_host(was: &FleetHost, now: &FleetHost) -> HostDifference {
    let lacks = |host: &FleetHost, finding: &FleetFinding| {
        let is = |other: &FleetFinding| {
            (&other.check, &other.subject) == (&finding.check, &finding.subject)
        };
        !host.findings.iter().any(is)
    };
    HostDifference {
        name: now.name.clone(),
        cost_s: (was.cost_s, now.cost_s),
        p99_ns: (was.p99_ns, now.p99_ns),
        began: now.findings.iter().filter(|finding| lacks(was, finding)).cloned().collect(),
        ended: was.findings.iter().filter(|finding| lacks(now, finding)).cloned().collect(),
    }
}

fn is_same(host: &HostDifference) -> bool {
    let alike = |a: f64, b: f64| a == b || (a - b).abs() <= SAME * a.abs().max(b.abs());
    let p99 = match host.p99_ns {
        (Some(a), Some(b)) => alike(a as f64, b as f64),
        (a, b) => a == b,
    };
    host.began.is_empty() && host.ended.is_empty() && p99 && alike(host.cost_s.0, host.cost_s.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::fleet::FleetHost;

    #[test]
    fn a_fleet_does_not_differ_from_itself_whatever_it_costs() {
        let host = |name: &str, cost_s| FleetHost {
            name: name.to_owned(),
            cost_s,
            ..FleetHost::default()
        };
        let fleet = Fleet {
            hosts: vec![host("a", f64::INFINITY), host("b", 0.0), host("c", 1e-300)],
            ..Fleet::default()
        };
        let none = difference(&fleet, &fleet);
        assert_eq!((none.hosts.len(), none.same), (0, 3));
    }
}
