use super::*;
use nearpath_model::{
    CpuId, Direction, Finding, Harm, HostSummary, Measurement, Passed, Severity, Share, ShareKind,
    TRIAL_SCHEMA, TrialDesign, Verdict,
};
use serde_json::{Value, json};

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
        vm: None,
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
        plan: None,
        trials: &[],
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

fn trial() -> TrialReport {
    TrialReport {
        schema: TRIAL_SCHEMA,
        changes: vec!["<i>a</i>".to_owned()],
        verdict: Verdict::Worse,
        path: None,
        figures: Vec::new(),
        design: TrialDesign {
            alternating: true,
            blocks: 9,
            seed: 7,
            block_s: 2.0,
            settling_s: 0.3,
            settling_measured: true,
            seconds: 40.0,
        },
        stopped: Some(Harm { blocks_with: 1, what: "<script>".to_owned() }),
        tail: None,
        mechanism: None,
        kept: false,
        one_way: Vec::new(),
    }
}

#[test]
fn a_plan_is_a_table_and_trials_begin_with_their_verdict() {
    let shares = json!({"other_cpu": null, "other_llc": null, "other_node": null});
    let change = json!({"id": "a", "kind": "sysctl", "target": "/proc/sys/net/core/somaxconn",
        "before": "128", "after": "4096", "why": "<script>alert(2)</script>", "finding": null,
        "persist": [], "reboot": false, "optional": false});
    let plan = |changes: Vec<Value>| -> Plan {
        let plan = json!({"schema": 1, "goal": "latency", "boot": null, "netns": null,
            "changes": changes, "now": shares, "predicted": shares, "notes": []});
        serde_json::from_value(plan).unwrap()
    };
    let diagnosis = diagnosis();
    let html = |plan: Option<&Plan>, trials: &[TrialReport]| {
        let (host_name, when, host, history) = ("h", "now", None, &[][..]);
        report(&Report { host_name, when, host, diagnosis: &diagnosis, history, plan, trials })
    };
    let two = [trial(), trial()];
    let written = html(Some(&plan(vec![change; 3])), &two);
    // A name for the table, and headings for its rows and columns.
    assert_eq!(written.matches("<caption>").count(), 1);
    assert_eq!(written.matches("<th scope=\"col\">").count(), 4);
    assert_eq!(written.matches("<th scope=\"row\">/proc/sys/net/core/somaxconn</th>").count(), 3);
    assert!(written.contains("<td>128</td><td>4096</td><td>&lt;script&gt;alert(2)"), "{written}");
    assert!(!written.contains("<script") && !written.contains("<i>"), "{written}");
    for section in ["plan", "trial-1", "trial-2"] {
        assert!(written.contains(&format!("<section id=\"{section}\"")), "{section}");
        assert!(written.contains(&format!("href=\"#{section}\"")), "{section}");
    }
    assert!(written.contains("trial stopped, plan undone</p>"), "{written}");
    assert!(html(Some(&plan(Vec::new())), &[]).contains("<p>Nothing to change.</p>"));
    let neither = html(None, &[]);
    assert!(!neither.contains("id=\"plan\"") && !neither.contains("id=\"trial"));
}
