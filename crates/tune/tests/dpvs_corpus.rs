//! DPVS configurations with the verdict that follows from DPVS's sources, written down before they were checked.
//!
//! Each file of `tests/fixtures/dpvs` begins with comments: why it is there, `! expect VERDICT`, `! options …` as on the
//! command line, and for each problem `! problem CODE [LINE]`. All of them must be reported, and no others.

use nearpath_model::DpvsVerdict;
use nearpath_tune::dpvs::{DpvsOptions, check};
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;

struct Case {
    name: String,
    file: Vec<u8>,
    expect: DpvsVerdict,
    options: DpvsOptions,
    /// Code, and line where the file says one.
    problems: Vec<(String, Option<u32>)>,
}

#[test]
fn each_configuration_gets_the_verdict_of_dpvs() {
    let cases = cases();
    assert!(cases.len() >= 90, "{} configurations", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let found = check(&case.file, &case.options);
        let mut got: Vec<(&str, Option<u32>)> =
            found.problems.iter().map(|p| (p.code.as_str(), p.line)).collect();
        let mut missing = Vec::new();
        for (code, line) in &case.problems {
            let is_it = |(c, l): &(&str, Option<u32>)| c == code && (line.is_none() || l == line);
            match got.iter().position(is_it) {
                Some(at) => drop(got.remove(at)),
                None => missing.push((code, line)),
            }
        }
        if found.verdict != case.expect || !got.is_empty() || !missing.is_empty() {
            let (name, expect) = (&case.name, case.expect);
            let verdict = found.verdict;
            wrong.push(format!(
                "{name}: {verdict:?}, not {expect:?}; too many {got:?}, missing {missing:?}"
            ));
        }
        for problem in &found.problems {
            assert!(!problem.message.is_empty() && !problem.remedy.is_empty(), "{}", case.name);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_verdict_is_there_often_enough() {
    let cases = cases();
    for verdict in [DpvsVerdict::Accepted, DpvsVerdict::Changed, DpvsVerdict::Refused] {
        let count = cases.iter().filter(|case| case.expect == verdict).count();
        assert!(count >= 15, "{verdict:?}: {count}");
    }
}

#[test]
fn workers_are_those_that_run() {
    let case = case("slave_without_port");
    let found = check(&case.file, &case.options);
    let lcores: Vec<_> = found.workers.iter().map(|worker| worker.lcore).collect();
    assert_eq!(lcores, [0, 1], "worker 2 has no port and 3 is lost behind it");

    let case = self::case("isolated_receivers");
    let json = serde_json::to_value(check(&case.file, &case.options)).unwrap();
    let worker = |lcore: usize| &json["workers"][lcore];
    assert_eq!(
        worker(0),
        &serde_json::json!({"lcore": 0, "cpu": 0, "role": "master", "ports": {}})
    );
    assert_eq!(
        worker(1),
        &serde_json::json!({"lcore": 1, "cpu": 1, "role": "forwarding",
            "ports": {"dpdk0": {"rx": [0], "tx": [0], "isolated_rx": [5]}}})
    );
    assert_eq!(
        worker(3),
        &serde_json::json!({"lcore": 5, "cpu": 5, "role": "isolated_rx",
            "ports": {"dpdk0": {"rx": [0], "tx": [], "isolated_rx": []}}})
    );

    let case = self::case("lcores_other_cpus");
    let found = check(&case.file, &case.options);
    assert_eq!(found.workers[1].cpu, Some(201));
    let floating = DpvsOptions { lcores: Some("0@0,(1-2)@(31-33)".to_owned()), ..case.options };
    let found = check(&case.file, &floating);
    assert_eq!(found.workers[1].cpu, None);
    assert_eq!(found.workers[1].cpus.as_deref(), Some("31-33"));
}

#[test]
fn each_release_has_its_keywords() {
    let device =
        |inside: &str| format!("netif_defs {{\n<init> device dpdk0 {{\n{inside}\n}}\n}}\n");
    // The samples of 1.10 have mbuf_fast_free; 1.9.0 replaced fdir by fdir_mode.
    let fast_free = device("tx {\nqueue_number 1\nmbuf_fast_free on\n}");
    let fdir = device("fdir {\nmode perfect\npballoc 64k\nstatus matched\n}");
    for (file, version, unknown) in [
        (&fast_free, "1.10", None),
        (&fast_free, "1.9.10", None),
        (
            &fast_free,
            "1.9",
            Some("DPVS 1.9.0 does not know mbuf_fast_free here (known since 1.9.10)"),
        ),
        (&fdir, "1.8.12", None),
        (&fdir, "1.9.0", Some("DPVS 1.9.0 does not know fdir here (known until 1.8.12)")),
    ] {
        let options = DpvsOptions { version: version.parse().unwrap(), ..DpvsOptions::default() };
        let found = check(file.as_bytes(), &options).problems;
        let mut found = found.iter().filter(|problem| problem.code == "unknown_keyword");
        let first = found.next().map(|problem| problem.message.as_str());
        match unknown {
            None => assert_eq!(first, None, "{version}"),
            Some(said) => assert!(first.is_some_and(|first| first.starts_with(said)), "{first:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any order of a configuration's lines, with any of them lost, and other bytes between: no panic, and a result of
    /// bounded size.
    #[test]
    fn damaged_files_are_checked(seed in any::<u64>(), cut in 0usize..6000, bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let files = ["all_sections", "kni_worker", "bond", "isolated_receivers"];
        let file = case(files[(seed % 4) as usize]).file;
        let mut lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
        let mut state = seed | 1;
        for at in 0..lines.len() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let other = (state >> 33) as usize % lines.len();
            if state & 7 == 0 {
                lines.swap(at, other);
            }
        }
        let mut damaged = lines.concat();
        damaged.truncate(cut.max(1));
        let at = (state >> 20) as usize % damaged.len();
        damaged.splice(at..at, bytes);
        let found = check(&damaged, &DpvsOptions::default());
        prop_assert!(found.problems.len() <= 1000);
        prop_assert!(found.workers.len() <= 129);
    }
}

fn cases() -> Vec<Case> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| Some(name.strip_suffix(".conf")?.to_owned()))
        .collect();
    names.sort();
    names.iter().map(|name| case(name)).collect()
}

fn case(name: &str) -> Case {
    let file = fs::read(folder().join(format!("{name}.conf"))).unwrap();
    let text = String::from_utf8_lossy(&file).into_owned();
    let mut case = Case {
        name: name.to_owned(),
        file,
        expect: DpvsVerdict::Accepted,
        options: DpvsOptions::default(),
        problems: Vec::new(),
    };
    let mut has_verdict = false;
    for line in text.lines().map_while(|line| line.strip_prefix("! ")) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["expect", verdict] => {
                has_verdict = true;
                case.expect = serde_json::from_value((*verdict).into()).unwrap();
            }
            ["options", options @ ..] => {
                for pair in options.chunks(2) {
                    let number = || Some(pair[1].parse().unwrap());
                    match pair[0] {
                        "--lcores" => case.options.lcores = Some(pair[1].to_owned()),
                        "--main-lcore" => case.options.main_lcore = number(),
                        "--ports" => case.options.ports = number(),
                        "--max-queues" => case.options.max_queues = number(),
                        "--nodes" => case.options.nodes = number(),
                        other => panic!("{name}: {other}"),
                    }
                }
            }
            ["problem", code] => case.problems.push(((*code).to_owned(), None)),
            ["problem", code, line] => {
                case.problems.push(((*code).to_owned(), Some(line.parse().unwrap())));
            }
            _ => (),
        }
    }
    assert!(has_verdict, "{name}");
    // Those with a line find theirs first.
    case.problems.sort_by_key(|(_, line)| line.is_none());
    case
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dpvs")
}
