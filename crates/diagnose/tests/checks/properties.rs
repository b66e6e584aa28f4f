//! Whatever a host or a measurement says of itself, diagnosing it neither panics nor depends on
//! anything but what it says; and ranking puts any findings into one order.
//!
//! Hosts are the fixtures with values, chosen at random, replaced by extreme ones of the same
//! kind; a replacement that does not deserialise is left out, so that each host reaches the
//! checks.

use crate::support::{Fixture, fixtures_dir, load_dir};
use nearpath_diagnose::{Evidence, diagnose, rank};
use nearpath_model::{Finding, FindingCost, Host, Measurement, Severity};
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// One change of one value: which of all values, and into what.
type Mutation = (u32, u32);

const NUMBERS: [u64; 8] = [0, 1, 2, 127, 1 << 20, u32::MAX as u64, 1 << 53, u64::MAX];
const TEXTS: [&str; 8] = ["", "0", "0-3", "4-5,70", "0-65535", "eth0", "a/../b", "\u{1b}[2J"];

fn fixtures() -> Vec<Fixture> {
    let mut folders: Vec<_> =
        std::fs::read_dir(fixtures_dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.is_dir() && !folder.ends_with("machines"));
    folders.sort();
    folders.iter().flat_map(|folder| load_dir(folder)).collect()
}

/// All values below this one that are no containers, and all lists.
fn places<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    match value {
        Value::Array(list) if list.is_empty() => {}
        Value::Array(list) => list.iter_mut().for_each(|value| places(value, found)),
        Value::Object(fields) => fields.values_mut().for_each(|value| places(value, found)),
        leaf => found.push(leaf),
    }
}

fn mutate(json: &mut Value, (which, into): Mutation) {
    let mut found = Vec::new();
    places(json, &mut found);
    let count = found.len().max(1);
    let Some(value) = found.into_iter().nth(which as usize % count) else { return };
    let into = into as usize;
    *value = match &*value {
        Value::Number(n) if n.is_f64() => json!([0.0, 0.5, 1.0, -1.0, 1e300][into % 5]),
        Value::Number(_) => json!(NUMBERS[into % NUMBERS.len()]),
        Value::String(_) if into % 9 == 8 => Value::Null,
        Value::String(_) => json!(TEXTS[into % TEXTS.len()]),
        Value::Bool(value) => json!(!value),
        _ => json!(into % 3),
    };
}

/// Makes those of the mutations after which it still is a `T`.
fn mutated<T: Serialize + DeserializeOwned>(value: &T, mutations: &[Mutation]) -> T {
    let json = serde_json::to_value(value).unwrap();
    let whole = mutations.iter().fold(json, |before, &mutation| {
        let mut after = before.clone();
        mutate(&mut after, mutation);
        if T::deserialize(&after).is_ok() { after } else { before }
    });
    serde_json::from_value(whole).unwrap()
}

/// No JSON holds these, but a measurement made in memory may.
fn make_strange(measurement: &mut Measurement, how: u32) {
    let strange = [f64::NAN, f64::INFINITY, -0.0, f64::MIN_POSITIVE][how as usize % 4];
    if how.is_multiple_of(3) {
        measurement.duration_s = strange;
    }
    for span in &mut measurement.spans {
        span.other_cpu = Some(strange);
        span.other_node = how.is_multiple_of(2).then_some(strange);
    }
}

/// Diagnoses twice, and checks what must hold of every diagnosis.
fn assert_sound(host: &Host, earlier: Option<&Host>, evidence: Evidence<'_>) {
    let diagnosis = diagnose(host, earlier, evidence);
    let json = serde_json::to_string(&diagnosis).unwrap();
    let again = serde_json::to_string(&diagnose(host, earlier, evidence)).unwrap();
    assert_eq!(json, again, "the same input gives the same diagnosis");
    for pair in diagnosis.findings.windows(2) {
        assert!(pair[0].severity >= pair[1].severity);
    }
    for finding in &diagnosis.findings {
        assert!(!finding.check.is_empty() && !finding.title.contains(char::is_control));
        assert!(finding.evidence.iter().all(|line| !line.contains(char::is_control)));
        assert!(finding.cost.share_percent.is_none_or(|share| (0.0..=100.0).contains(&share)));
        for change in &finding.changes {
            assert!(!change.target.to_string().contains(".."), "{}", change.target);
            assert_ne!(change.before.as_ref(), Some(&change.after), "{}", change.target);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_host_makes_it_panic(
        which in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        mutations in prop::collection::vec(any::<Mutation>(), 1..12),
        strange in prop::option::of(any::<u32>()),
    ) {
        thread_local!(static ALL: Vec<Fixture> = fixtures());
        ALL.with(|all| {
            let (fixture, other) = (which.get(all), other.get(all));
            let host = mutated(&fixture.host, &mutations);
            let earlier = fixture.earlier.as_ref().map(|e| mutated(e, &mutations[1..]));
            let measurement = other.measurement.as_ref().or(fixture.measurement.as_ref());
            let mut measurement = measurement.map(|m| mutated(m, &mutations[1..]));
            if let (Some(how), Some(measurement)) = (strange, &mut measurement) {
                make_strange(measurement, how);
            }
            let locality = other.locality.as_ref().or(fixture.locality.as_ref());
            let locality = locality.map(|m| mutated(m, &mutations[1..]));
            let drops = other.drops.as_ref().or(fixture.drops.as_ref());
            let drops = drops.map(|m| mutated(m, &mutations[1..]));
            let accepts = other.accepts.as_ref().or(fixture.accepts.as_ref());
            let accepts = accepts.map(|m| mutated(m, &mutations[1..]));
            let answers = other.answers.as_ref().or(fixture.answers.as_ref());
            let answers = answers.map(|m| mutated(m, &mutations[1..]));
            let tcp = other.tcp.as_ref().or(fixture.tcp.as_ref());
            let tcp = tcp.map(|m| mutated(m, &mutations[1..]));
            let memory = other.memory.as_ref().or(fixture.memory.as_ref());
            let memory = memory.map(|m| mutated(m, &mutations[1..]));
            let workers = other.workers.as_ref().or(fixture.workers.as_ref());
            let workers = workers.map(|m| mutated(m, &mutations[1..]));
            let vm = other.vm.as_ref().or(fixture.vm.as_ref());
            let vm = vm.map(|m| mutated(m, &mutations[1..]));
            let txtime = other.txtime.as_ref().or(fixture.txtime.as_ref());
            let txtime = txtime.map(|m| mutated(m, &mutations[1..]));
            let evidence = Evidence {
                stages: measurement.as_ref(),
                drops: drops.as_ref(),
                locality: locality.as_ref(),
                accepts: accepts.as_ref(),
                answers: answers.as_ref(),
                tcp: tcp.as_ref(),
                memory: memory.as_ref(),
                workers: workers.as_ref(),
                vm: vm.as_ref(),
                txtime: txtime.as_ref(),
            };
            assert_sound(&host, earlier.as_ref(), evidence);
            assert_sound(&host, Some(&other.host), Evidence::default());
        });
    }

    #[test]
    fn any_findings_have_one_order(
        findings in prop::collection::vec(finding(), 0..12),
        turn in any::<prop::sample::Index>(),
    ) {
        let mut ranked = findings.clone();
        rank(&mut ranked);
        let mut turned = findings;
        if !turned.is_empty() {
            let middle = turn.index(turned.len());
            turned.rotate_left(middle);
            turned.reverse();
        }
        rank(&mut turned);
        prop_assert_eq!(ranked, turned);
    }
}

fn finding() -> impl Strategy<Value = Finding> {
    let severity = prop::sample::select(&[Severity::Info, Severity::Warning, Severity::Critical]);
    let cost = || prop::option::of(prop::num::f64::ANY);
    (severity, cost(), cost(), "[ab]", "[ab]", "[ab]").prop_map(
        |(severity, seconds, share, check, title, evidence)| Finding {
            subjects: Vec::new(),
            whose: nearpath_model::Whose::Host,
            symptoms: Vec::new(),
            check,
            severity,
            title,
            evidence: vec![evidence],
            cost: FindingCost {
                share_of: String::new(),
                max_ns: None,
                seconds_per_second: seconds,
                share_percent: share,
                per_packet_ns: None,
            },
            changes: Vec::new(),
            manual: Vec::new(),
        },
    )
}
