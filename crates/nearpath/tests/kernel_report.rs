//! `nearpath report` in a browser: a page with findings, plan and host, opened by Chromium in a network namespace
//! without any way out. The judge of requests is the browser's own log of its network stack, that of the picture are
//! its pixels' bytes.

use nearpath_testing::{require_netns, require_program};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn nearpath(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn done(arguments: &[&str]) -> Vec<u8> {
    let output = nearpath(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Takes a picture of a page; returns it, and the addresses that the browser requested.
fn picture(folder: &Path, page: &str, name: &str, more: &[&str]) -> (Vec<u8>, Vec<String>) {
    let [png, log, profile] =
        ["png", "log", "profile"].map(|kind| folder.join(format!("{name}.{kind}")));
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "timeout", "-k", "5", "120", "chromium", "--headless"]);
    command.args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update"]);
    command.args(["--disable-sync", "--disable-extensions", "--window-size=1200,1600"]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("--log-net-log={}", log.display()));
    command.arg(format!("--screenshot={}", png.display()));
    command.args(more).arg(format!("file://{page}"));
    let output = command.env("HOME", folder).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let png = std::fs::read(&png).unwrap_or_else(|error| panic!("{error}: {said}"));
    let log = std::fs::read_to_string(&log).unwrap();
    // The log of a browser that was ended has no closing brackets.
    let asked = log.split("\"url\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    (png, asked.map(str::to_owned).collect())
}

#[test]
fn a_report_opens_without_a_request() {
    let programs = ["chromium", "unshare", "timeout"];
    if !require_netns() || !programs.into_iter().all(require_program) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (host, plan, page) = (path("host.tar.zst"), path("plan.json"), path("report.html"));
    done(&["snapshot", "-o", &host]);
    let made = done(&["tune", "plan", "--snapshot", &host, "--json"]);
    std::fs::write(&plan, &made).unwrap();
    done(&["report", "-o", &page, "--snapshot", &host, "--plan", &plan]);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("<section id=\"plan\"") && html.contains("<section id=\"host\""));
    let made: Value = serde_json::from_slice(&made).unwrap();
    let changes = made["changes"].as_array().unwrap().len();
    assert_eq!(html.matches("<th scope=\"row\">").count(), changes);

    let (light, asked) = picture(folder.path(), &page, "light", &[]);
    let elsewhere: Vec<&String> =
        asked.iter().filter(|url| html.contains(url.trim_end_matches('/'))).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    assert!(light.starts_with(b"\x89PNG") && light.len() > 20_000, "{} bytes", light.len());
    let dark = ["--blink-settings=preferredColorScheme=0"];
    let (dark, _) = picture(folder.path(), &page, "dark", &dark);
    assert_ne!(light, dark, "dark is not dark");

    // The judge notices a request: the same page with a picture from elsewhere, and without its policy.
    let other = html.replace("<main>", "<main><img src=\"http://192.0.2.7/x.png\">");
    let other = other.replace("http-equiv", "data-none");
    std::fs::write(path("other.html"), other).unwrap();
    let (_, asked) = picture(folder.path(), &path("other.html"), "other", &[]);
    assert!(asked.iter().any(|url| url.contains("192.0.2.7")), "{asked:?}");
}

#[test]
fn files_that_are_no_plans_and_no_trials_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (page, file) = (path("report.html"), path("file.json"));
    for (content, option) in [
        ("{", "--plan"),
        ("{}", "--plan"),
        ("", "--trial"),
        ("{\"schema\": 2}", "--trial"),
        ("{\"schema\": 1, \"trials\": []}", "--trial"),
    ] {
        std::fs::write(&file, content).unwrap();
        let output = nearpath(&["report", "-o", &page, option, &file]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{content}: {said}");
        assert!(said.contains("file.json") && said.lines().count() == 1, "{said}");
        assert!(!Path::new(&page).exists());
    }
}
