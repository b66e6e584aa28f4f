use super::*;
use crate::Store;
use crate::metrics::Id;
use nearpath_model::histogram;

fn store() -> Store {
    let mut store = Store::default();
    let us = |us: u64| histogram::upper_ns(histogram::bucket(us * 1_000));
    store.observe(Id::PathLatency, &["receive"], &[(us(10), 3), (us(900), 1)], 930_000);
    store.set_max(Id::PathLatencyMax, &["receive"], 0.0009);
    store.count(Id::Drops, &["NO_SOCKET", "e\"t\\h\n0"], 7);
    store.add(Id::ObservingCpu, &[], 0.25);
    store.observe(Id::TcpRtt, &[], &[], 0);
    store.set(Id::WorkerBusy, &["testpmd", "3"], 0.5);
    store.set(Id::BuildInfo, &["0.1.0"], 1.0);
    store
}

fn text_of(format: Format) -> String {
    String::from_utf8(encode(&store().snapshot(), format)).unwrap()
}

#[test]
fn text_has_each_name_once_with_classic_buckets() {
    let text = text_of(Format::Text);
    for line in [
        "# TYPE nearpath_path_latency_seconds histogram",
        "nearpath_path_latency_seconds_bucket{direction=\"receive\",le=\"+Inf\"} 4",
        "nearpath_path_latency_seconds_sum{direction=\"receive\"} 0.00093",
        "nearpath_path_latency_seconds_count{direction=\"receive\"} 4",
        "nearpath_path_latency_max_seconds{direction=\"receive\"} 0.0009",
        "nearpath_drops_total{reason=\"NO_SOCKET\",device=\"e\\\"t\\\\h 0\"} 7.0",
        "nearpath_observing_cpu_seconds_total 0.25",
        "nearpath_worker_busy_ratio{app=\"testpmd\",lcore=\"3\"} 0.5",
        "nearpath_build_info{version=\"0.1.0\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
    }
    let upto_16us = "le=\"1.52587890625e-05\"} 3";
    assert!(text.contains(upto_16us), "{text}");
    let mut types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let all = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), all);
}

#[test]
fn openmetrics_ends_with_its_mark() {
    let text = text_of(Format::OpenMetrics);
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains("# UNIT nearpath_path_latency_seconds seconds"), "{text}");
    assert!(text.contains("# TYPE nearpath_drops counter"), "{text}");
}

#[test]
fn protobuf_has_native_buckets_of_the_kernels() {
    use prometheus_client::encoding::prometheus_protobuf::encode as families;
    let mut registry = Registry::default();
    let snapshot = store().snapshot();
    registry.register_collector(Box::new(Families { snapshot, native: true }));
    let families = families(&registry).unwrap();
    let of = |name: &str| families.iter().find(|family| family.name == name).unwrap();
    let latency = of("nearpath_path_latency_seconds").metric[0].histogram.clone().unwrap();
    assert_eq!((latency.schema, latency.sample_count), (4, 4));
    assert!(latency.bucket.is_empty());
    assert_eq!(latency.positive_delta, [3, -2]);
    // 10 µs is in (2^(index-1)/16, 2^(index/16)] s.
    let index = latency.positive_span[0].offset;
    let bound = |index: i32| f64::exp2(f64::from(index) / 16.0);
    assert!(bound(index - 1) < 10e-6 && 10e-6 <= bound(index), "{index}");
    // One without samples is native all the same.
    let rtt = of("nearpath_tcp_rtt_seconds").metric[0].histogram.clone().unwrap();
    assert_eq!((rtt.positive_span.len(), rtt.sample_count), (1, 0));
    assert_eq!(of("nearpath_drops_total").metric[0].counter.as_ref().unwrap().value, 7.0);
}

#[test]
fn the_preferred_format_is_chosen() {
    let prometheus = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
        encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;\
        q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;\
        escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    let without = prometheus.split_once(',').unwrap().1;
    for (accept, format) in [
        (prometheus, Format::Protobuf),
        (without, Format::OpenMetrics),
        ("", Format::Text),
        ("*/*", Format::Text),
        ("text/html, image/png", Format::Text),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.5", Format::Text),
        ("application/openmetrics-text; version=1.0.0; q=0", Format::Text),
        ("application/vnd.google.protobuf;proto=other;encoding=delimited", Format::Text),
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
            Format::Text,
        ),
        ("application/openmetrics-text;q=nan", Format::Text),
        (";;;,=,q=,;q", Format::Text),
    ] {
        assert_eq!(negotiate(accept), format, "{accept}");
    }
}

#[test]
fn scrapers_share_one_encoding() {
    let exposition = Exposition::new(store().snapshot());
    let (first, second) = (exposition.encoded(Format::Text), exposition.encoded(Format::Text));
    assert!(Arc::ptr_eq(&first, &second));
    assert!(!Arc::ptr_eq(&first, &exposition.encoded(Format::OpenMetrics)));
}
