//! Records build information for `nearpath --version`.
//!
//! Input: the repository, or `archive.txt` of a source archive, and SOURCE_DATE_EPOCH. Output: the environment
//! variables that `src/version.rs` reads at compile time. A debug build records no commit: otherwise each commit
//! would rebuild the crate and all of its tests.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// A commit and its time, in seconds since the epoch.
struct Source {
    commit: String,
    time: Option<u64>,
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=archive.txt");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let profile = profile();
    let source = match profile.as_str() {
        "debug" => None,
        _ => of_repository(&package.join("../..")).or_else(|| of_archive(&package)),
    };
    let epoch = env::var("SOURCE_DATE_EPOCH").ok().and_then(|epoch| epoch.parse().ok());
    let time = epoch.or_else(|| source.as_ref().and_then(|source| source.time));
    let date = time.map(|time| {
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time)).to_string()
    });
    let unknown = if profile == "debug" { "not recorded in a debug build" } else { "unknown" };
    set("COMMIT", source.map(|source| source.commit).as_deref().unwrap_or(unknown));
    set("DATE", date.as_deref().unwrap_or(unknown));
    set("TARGET", &env::var("TARGET").expect("cargo sets it"));
    set("PROFILE", &profile);
}

fn set(name: &str, value: &str) {
    println!("cargo:rustc-env=NEARPATH_{name}={value}");
}

/// The name of the profile's directory: PROFILE is `release` for all profiles that inherit from it.
fn profile() -> String {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut parts = out.iter().rev().map(|part| part.to_string_lossy().into_owned());
    // …/PROFILE/build/nearpath-HASH/out
    parts.by_ref().find(|part| part == "build");
    parts.next().unwrap_or_else(|| "unknown".to_owned())
}

/// The checked-out commit, with `-dirty` if there are uncommitted changes.
fn of_repository(workspace: &Path) -> Option<Source> {
    // It must be this project's repository: an archive may be unpacked inside another one.
    let top = git(workspace, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != workspace.canonicalize().ok()? {
        return None;
    }
    for name in ["HEAD", "index", "logs/HEAD"] {
        let path = workspace.join(git(workspace, &["rev-parse", "--git-path", name])?);
        // A missing file would run this script on every build.
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    for changed in ["bpf", "crates", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed=../../{changed}");
    }
    let mut commit = git(workspace, &["rev-parse", "HEAD"])?;
    if !git(workspace, &["status", "--porcelain", "--untracked-files=no"])?.is_empty() {
        commit.push_str("-dirty");
    }
    let time = git(workspace, &["show", "--no-patch", "--format=%ct", "HEAD"])?.parse().ok();
    Some(Source { commit, time })
}

/// The commit that `git archive` wrote to `archive.txt`.
fn of_archive(package: &Path) -> Option<Source> {
    let text = std::fs::read_to_string(package.join("archive.txt")).ok()?;
    let mut lines = text.lines();
    let commit = lines.next().filter(|line| !line.contains('$'))?.to_owned();
    Some(Source { commit, time: lines.next().and_then(|time| time.parse().ok()) })
}

fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
