//! `nearpath top` on this kernel, driven under tmux: what is on the screen, and that the terminal is as before afterwards.
//!
//! The judge of traffic is its sender, that of the terminal stty(1).

use nearpath::screen::Screen;
use nearpath_testing::tmux::Tmux;
use nearpath_testing::{require_bpf, require_program};
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thousand datagrams per second to a reader, who takes them.
fn send(stop: &AtomicBool) {
    let reader = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(reader.local_addr().unwrap()).unwrap();
    while !stop.load(Ordering::Relaxed) {
        sender.send(b"datagram").unwrap();
        reader.recv(&mut [0; 16]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn available() -> bool {
    require_bpf() && require_program("tmux") && require_program("stty")
}

/// The time of day in the first line.
fn clock(screen: &str) -> String {
    let is_time = |word: &&str| word.matches(':').count() == 2;
    screen.split_whitespace().find(is_time).unwrap_or_default().to_owned()
}

/// Packets per second of the row that begins with a name.
fn rate(screen: &str, name: &str) -> Option<f64> {
    let row = screen.lines().find(|line| line.starts_with(name))?;
    let figure = row.strip_prefix(name)?.split_whitespace().next()?;
    match figure.strip_suffix('k') {
        Some(thousands) => thousands.parse::<f64>().ok().map(|k| k * 1_000.0),
        None => figure.parse().ok(),
    }
}

#[test]
fn it_shows_real_packets_and_restores_the_terminal() {
    if !available() {
        return;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&stop));
        let _stops = Stops(&stop);
        let nearpath = env!("CARGO_BIN_EXE_nearpath");
        let top = Tmux::run(&format!("{nearpath} top --max-overhead none"));
        // (A screen may be read while it is being written.)
        let is_live = |screen: &str| {
            rate(screen, "receive ").is_some_and(|rate| rate > 100.0)
                && screen.contains("CPUS, BY PACKETS")
        };
        let screen = top.shows("received packets", is_live);
        assert!(screen.starts_with("nearpath top  "), "{screen}");

        top.press(&["2"]);
        let has_spans = |screen: &str| {
            screen.contains("PATH OR SPAN") && screen.contains("receive, end to end")
        };
        top.shows("spans", has_spans);
        top.press(&["4"]);
        top.shows("CPUs", |screen| screen.contains("hottest: CPU") && screen.contains("IRQS/S"));

        // Frozen, the time stands still; a step back it is earlier.
        top.press(&["1"]);
        top.press(&["Space"]);
        let frozen = top.shows("freeze", |screen| screen.contains("FROZEN"));
        std::thread::sleep(Duration::from_millis(2_500));
        assert_eq!(clock(&top.screen()), clock(&frozen));
        top.press(&["Left"]);
        let back = top.shows("step", |screen| clock(screen) != clock(&frozen));
        assert!(clock(&back) < clock(&frozen) && back.contains("FROZEN"), "{back}");
        top.press(&["Space"]);
        top.shows("live", |screen| screen.contains(", live"));

        top.press(&["q"]);
        top.is_restored("ended: 0");
    });
}

#[test]
fn a_signal_restores_the_terminal() {
    if !nearpath_testing::require_lengthy() || !available() {
        return;
    }
    let nearpath = env!("CARGO_BIN_EXE_nearpath");
    for (signal, source) in [("TERM", "facts"), ("INT", "facts,drops")] {
        let top = Tmux::run(&format!("{nearpath} top --source {source}"));
        top.shows("start", |screen| screen.contains("nearpath top  "));
        let shell = top.tmux(&["display-message", "-p", "#{pane_pid}"]);
        // The program is the only child of the window's shell.
        let mut kill = Command::new("pkill");
        let status = kill.args([&format!("-{signal}"), "-P", shell.trim()]).status().unwrap();
        assert!(status.success());
        top.is_restored("ended: 0");
    }
}

/// Run by [`a_panic_restores_the_terminal`].
#[test]
#[ignore = "takes the terminal"]
fn panics_with_the_screen() {
    let mut screen = Screen::open().unwrap();
    screen.draw(|frame| frame.set_cursor_position((3, 3))).unwrap();
    panic!("on purpose");
}

#[test]
fn a_panic_restores_the_terminal() {
    if !(require_program("tmux") && require_program("stty")) {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let arguments = "--exact panics_with_the_screen --ignored --nocapture";
    let top = Tmux::run(&format!("RUST_BACKTRACE=0 {} {arguments}", this.display()));
    top.is_restored("ended: 101");
    let said = top.tmux(&["capture-pane", "-p", "-S", "-"]);
    assert!(said.contains("on purpose"), "{said}");
}

#[test]
fn without_a_terminal_it_says_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
    let output = command.args(["top", "--source", "facts"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("standard output is not a terminal"), "{said}");
}

#[test]
fn a_recording_goes_back_and_forward() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !available() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("rec");
    let nearpath = env!("CARGO_BIN_EXE_nearpath");
    let mut record = Command::new(nearpath);
    record.arg("record").arg("-o").arg(&folder);
    let record = record.args([
        "--for",
        "12s",
        "--interval",
        "500ms",
        "--source",
        "facts,drops",
        "--max-overhead",
        "none",
    ]);
    // CPUs that process no packet have no rows.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&stop));
        let _stops = Stops(&stop);
        assert!(record.status().unwrap().success());
    });
    let top = Tmux::run(&format!("{nearpath} top {}", folder.display()));
    let at_end = top.shows("recording", |screen| screen.contains("UTC  last 10.0s, recording"));
    assert!(at_end.contains("hottest: CPU"), "{at_end}");
    top.press(&["w", "w"]);
    let two = top.shows("window", |screen| screen.contains("last 2.00s"));
    top.press(&["Left"]);
    let back = top.shows("step back", |screen| clock(screen) != clock(&two));
    assert!(clock(&back) < clock(&two), "{back}");
    top.press(&["Right"]);
    top.shows("step forward", |screen| clock(screen) == clock(&two));
    top.press(&["{"]);
    let first = top.shows("the first moment", |screen| clock(screen) < clock(&back));
    assert!(first.contains("recording"), "{first}");
    top.press(&["C-c"]);
    top.is_restored("ended: 0");
}
