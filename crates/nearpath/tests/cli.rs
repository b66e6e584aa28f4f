//! The real binary on wrong command lines, and what it prints where.

use std::process::{Command, Output, Stdio};

fn nearpath(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearpath"))
        .args(args)
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

/// Exit status, standard output, standard error.
fn parts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Fails unless the command says one line on standard error only, and exits with the status.
fn refused(args: &[&str], status: i32, says: &str) {
    let (code, out, err) = parts(&nearpath(args));
    assert_eq!((code, out.as_str()), (status, ""), "{args:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
    assert!(err.starts_with("nearpath: ") && err.contains(says), "{args:?}: {err}");
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    refused(&["show", "--jsn"], 2, "--json");
    refused(&["show", "cpu"], 2, "cpus");
    refused(&["shwo"], 2, "show");
    refused(&["show", "--root"], 2, "--root <DIR>");
    refused(&["show", "--root", "a", "--netns", "b"], 2, "cannot be used with");
}

#[test]
fn nothing_to_read_is_one_line_and_status_1() {
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    refused(&["show", "--root", empty], 1, empty);
    refused(&["show", "--json", "--root", empty], 1, empty);
    refused(&["show", "--root", "/no/such/folder"], 1, "/no/such/folder");
    refused(&["show", "--netns", "no-such-namespace"], 1, "no-such-namespace");
}

#[test]
fn help_has_examples_and_the_exit_status() {
    for args in [["--help"].as_slice(), &["show", "--help"]] {
        let (code, out, err) = parts(&nearpath(args));
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.contains("EXAMPLES"), "{out}");
    }
    let (code, out, err) = parts(&nearpath(&[]));
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("Usage: nearpath"), "{err}");
}
