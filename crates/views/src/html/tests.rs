use super::*;
use nearpath_model::{
    CpuId, Direction, Finding, HostSummary, Measurement, Passed, Severity, Share, ShareKind,
};

fn outlier() -> Outlier {
    let passed = |stage: &str, cpu, at_ns| Passed {
        stage: stage.to_owned(),
        cpu: CpuId(cpu),
        node: None,
        at_ns,
    };
    let share = |share, ns| Share { share, ns, who: None };
    Outlier {
        direction: Direction::Rx,
        from: "a".to_owned(),
        to: "b".to_owned(),
        span_ns: 3_000_000,
        from_cpu: CpuId(0),
        cpu: CpuId(1),
        node: None,
        flow: Some("TCP <x> > \"y\"".to_owned()),
        at_ns: 13_000_000,
        packets_meanwhile: 0,
        complete: true,
        budget: vec![share(ShareKind::Runqueue, 2_000_000), share(ShareKind::Own, 1_000_000)],
        packet: 1,
        path: vec![passed("a", 0, 10_000_000), passed("b", 1, 13_000_000)],
    }
}

fn diagnosis() -> Diagnosis {
    let mut finding = Finding::new(Severity::Critical, "</title><script>alert(1)</script>");
    finding.evidence.push("<img src=http://example.org/x>\u{1b}[31m".to_owned());
    Diagnosis {
        schema: 1,
        findings: vec![finding],
        not_checked: Vec::new(),
        checks: 1,
        host: HostSummary::default(),
        measurement: Some(Measurement {
            outliers: vec![outlier()],
            budget_totals: outlier().budget,
            ..Measurement::default()
        }),
        other_look: None,
        locality: None,
        accepts: None,
        tcp: None,
        memory: None,
        workers: None,
    }
}

#[test]
fn names_are_text_and_nothing_is_requested() {
    let diagnosis = diagnosis();
    let history = vec![(
        "receive".to_owned(),
        (0..100)
            .map(|n| Interval { time_s: n * 10, buckets: vec![(1000 << (n % 5), n + 1)] })
            .collect(),
    )];
    let html = report(&Report {
        host_name: "<b>host</b>",
        when: "now",
        host: None,
        diagnosis: &diagnosis,
        history: &history,
    });
    assert!(html.contains("&lt;script&gt;alert(1)"), "{html}");
    for forbidden in ["<script", "<img", "<b>host", "src=\"", "url(", "@import", "\u{1b}"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    // The names of XML's dialect only.
    let links: Vec<&str> =
        html.match_indices("http").map(|(at, _)| &html[at..(at + 24).min(html.len())]).collect();
    assert!(
        links.iter().all(|link| link.starts_with("http://www.w3.org/2000/s")
            || link.starts_with("http-equiv")
            || link.starts_with("http://example.org/x&gt;")),
        "{links:?}"
    );
    for section in ["findings", "history-receive", "causes", "packets"] {
        assert!(html.contains(&format!("<section id=\"{section}\"")), "{section}");
        assert!(html.contains(&format!("href=\"#{section}\"")), "{section}");
    }
    let ids: Vec<&str> =
        html.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let unique: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "{ids:?}");
}

#[test]
fn a_timeline_splits_the_slow_span_by_its_budget() {
    let svg = svg::timeline(&outlier());
    assert!(svg.contains("a → b, CPU 0 → 1"), "{svg}");
    // 2 of 3 ms of the axis of 640.
    assert!(svg.contains("width=\"426.7\"") && svg.contains("width=\"213.3\""), "{svg}");
    assert!(svg.contains("2.00ms runqueue"), "{svg}");
    let without_path = Outlier { path: Vec::new(), budget: Vec::new(), ..outlier() };
    assert!(svg::timeline(&without_path).contains("width=\"640.0\""));
}
