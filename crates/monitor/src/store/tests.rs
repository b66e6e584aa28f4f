use super::*;
use nearpath_model::histogram;
use proptest::prelude::*;

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn counters_add_up_and_ignore_what_is_not_an_increase() {
    let mut store = Store::default();
    for increase in [1.5, 0.0, -3.0, f64::NAN, f64::INFINITY, 2.0] {
        store.add(Id::LateSeconds, &["runqueue"], increase);
    }
    assert_eq!(store.snapshot().number(Id::LateSeconds, &["runqueue"]), Some(3.5));
}

#[test]
fn a_series_without_news_is_forgotten_after_ten_minutes() {
    let mut store = Store::default();
    store.count(Id::Drops, &["NO_SOCKET", "eth0"], 5);
    store.advance(seconds(599));
    store.count(Id::Drops, &["NO_SOCKET", "eth1"], 5);
    assert_eq!(store.snapshot().len(), 2);
    store.advance(seconds(600));
    let left = store.snapshot();
    assert_eq!(left.number(Id::Drops, &["NO_SOCKET", "eth0"]), None);
    assert_eq!(left.number(Id::Drops, &["NO_SOCKET", "eth1"]), Some(5.0));
    // An increase of nothing is news, too.
    store.count(Id::Drops, &["NO_SOCKET", "eth1"], 0);
    store.advance(seconds(1_199));
    assert_eq!(store.snapshot().len(), 1);
    // A clock that is set back changes nothing.
    store.advance(seconds(3));
    store.advance(seconds(1_200));
    assert!(store.snapshot().is_empty());
}

#[test]
fn beyond_the_limit_counts_go_to_others_and_are_counted() {
    let mut store = Store::default();
    for device in 0..SERIES_MAX + 500 {
        store.count(Id::Drops, &["NO_SOCKET", &format!("veth{device}")], 2);
        store.set(Id::QueueIrqLocal, &[&format!("veth{device}"), "0"], 1.0);
    }
    let all = store.snapshot();
    // Those that were first, 'others', and the counters of what was left out.
    assert!(all.len() <= SERIES_MAX, "{}", all.len());
    let drops: f64 = all.families[Id::Drops as usize]
        .iter()
        .map(|(_, value)| if let Value::Number(n) = value { *n } else { 0.0 })
        .sum();
    assert_eq!(drops, 2.0 * (SERIES_MAX + 500) as f64);
    assert!(all.number(Id::Drops, &[OTHERS, OTHERS]).is_some_and(|n| n >= 1_000.0));
    let left = |name| all.number(Id::LeftOut, &[name]).unwrap();
    // Both come in turn, so each has half of the room.
    let without_room = (SERIES_MAX + 500 - OWN_SERIES_MAX / 2) as f64;
    assert_eq!(left("nearpath_drops_total"), without_room);
    assert_eq!(left("nearpath_queue_irq_local"), without_room);
    // A value of 'others' would be of nothing.
    assert_eq!(all.number(Id::QueueIrqLocal, &[OTHERS, OTHERS]), None);
    // Once the others have ended there is room again.
    store.advance(seconds(600));
    store.count(Id::Drops, &["NO_SOCKET", "eth9"], 1);
    assert_eq!(store.snapshot().number(Id::Drops, &["NO_SOCKET", "eth9"]), Some(1.0));
}

#[test]
fn the_longest_of_the_last_minute_is_kept_for_a_minute() {
    let mut store = Store::default();
    let mut most = |s, value| {
        store.advance(seconds(s));
        store.set_max(Id::PathLatencyMax, &["receive"], value);
        store.snapshot().number(Id::PathLatencyMax, &["receive"]).unwrap()
    };
    assert_eq!(most(0, 3.0), 3.0);
    assert_eq!(most(10, 9.0), 9.0);
    assert_eq!(most(20, 1.0), 9.0);
    assert_eq!(most(30, 2.0), 9.0);
    assert_eq!(most(69, 0.5), 9.0);
    assert_eq!(most(70, 0.5), 2.0);
    assert_eq!(most(200, 0.1), 0.1);
}

#[test]
fn labels_are_bounded_and_printable() {
    let mut store = Store::default();
    let name = "x\u{1b}[31m\n".to_owned() + &"é".repeat(1_000);
    store.set(Id::ProcessMemory, &[&name, "0"], 1.0);
    let snapshot = store.snapshot();
    let (labels, _) = &snapshot.families[Id::ProcessMemory as usize][0];
    assert_eq!(labels[0].chars().count(), LABEL_MAX);
    assert!(!labels[0].chars().any(char::is_control));
}

#[test]
fn native_buckets_are_runs_with_differences() {
    let mut buckets = Buckets::default();
    let upper = |number| histogram::upper_ns(number);
    buckets.add(&[(0, 4), (upper(101), 3), (upper(102), 5), (upper(200), 1)], 77);
    let native = buckets.native();
    assert_eq!(native.zero_count, 4);
    assert_eq!(native.spans, [(-314, 2), (97, 1)]);
    assert_eq!(native.deltas, [3, 2, -4]);
    assert_eq!(Buckets::default().native().spans, [(0, 0)]);
}

proptest! {
    /// Native and classic buckets hold the same samples, and no classic boundary cuts a bucket.
    #[test]
    fn native_and_classic_buckets_agree(samples in prop::collection::vec((0u64..1 << 37, 1u64..1_000), 0..60)) {
        let mut buckets = Buckets::default();
        for (ns, n) in &samples {
            let number = histogram::bucket(*ns);
            buckets.add(&[(histogram::upper_ns(number), *n)], ns * n);
        }
        let native = buckets.native();
        let (mut index, mut count, mut at) = (0i32, 0i64, 0);
        let mut decoded = Vec::new();
        for (gap, length) in &native.spans {
            index += gap;
            for _ in 0..*length {
                count += native.deltas[at];
                decoded.push((index, count));
                (at, index) = (at + 1, index + 1);
            }
        }
        prop_assert_eq!(at, native.deltas.len());
        let total: i64 = decoded.iter().map(|(_, n)| n).sum();
        prop_assert_eq!(total as u64 + native.zero_count, buckets.count());
        let mut cumulative = 0;
        for (upper_s, n) in buckets.classic() {
            cumulative += n;
            // Of the samples themselves: the boundaries are whole powers of two in seconds.
            let below = |(ns, n): &(u64, u64)| if *ns as f64 / 1e9 <= upper_s { *n } else { 0 };
            let exact: u64 = samples.iter().map(below).sum();
            prop_assert_eq!(cumulative, exact, "{}", upper_s);
        }
    }
}
