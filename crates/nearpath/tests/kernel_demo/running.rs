//! A demonstration running in the background, and its namespaces, which must end with it.

use super::NEARPATH;
use nearpath_testing::wait_for;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;

/// The running demonstration with its load, and handles to watch its namespaces.
pub struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    watched: Vec<Watched>,
    links: String,
}

impl Running {
    /// Starts it; returns when it has printed `says`.
    pub fn start(args: &[&str], says: &str) -> Self {
        let links = links();
        let mut child = Command::new(NEARPATH)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, stderr, watched: Vec::new(), links };
        let mut line = String::new();
        while !line.contains(says) {
            line.clear();
            let read = running.stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "the demo exited early");
        }
        let threads = wait_for("two namespaces", || {
            let threads = threads_elsewhere(running.child.id());
            (threads.len() == 2).then_some(threads)
        });
        running.watched = threads.into_values().enumerate().map(Watched::of).collect();
        running
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: signals a child that has not been reaped, so its pid is still valid.
        assert_eq!(unsafe { libc::kill(self.child.id().try_into().unwrap(), signal) }, 0);
    }

    /// Waits for it to exit and for everything it created to disappear.
    pub fn end(mut self) -> (ExitStatus, Vec<u8>, String) {
        // Concurrently: its output may be more than a pipe holds.
        let mut out = self.child.stdout.take().unwrap();
        let reader = thread::spawn(move || {
            let mut stdout = Vec::new();
            out.read_to_end(&mut stdout).map(|_| stdout)
        });
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        let stdout = reader.join().unwrap().unwrap();
        let status = self.child.wait().unwrap();
        for watched in &self.watched {
            wait_for("the end of a namespace", || watched.is_gone().then_some(()));
        }
        assert_eq!(links(), self.links);
        (status, stdout, said)
    }
}

impl Drop for Running {
    /// A failing test leaves nothing behind either.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A namespace with an id in this one, which shows when it is gone. Only the demonstration keeps it alive.
struct Watched {
    id: String,
}

impl Watched {
    fn of((index, thread): (usize, u32)) -> Self {
        let name = format!("nearpath-test-{}-{index}", std::process::id());
        ip(&["netns", "attach", &name, &thread.to_string()]);
        ip(&["netns", "set", &name, "auto"]);
        let ids = ip(&["netns", "list-id"]);
        ip(&["netns", "delete", &name]);
        let line = ids.lines().find(|line| line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("no id of {name} in {ids}"));
        Self { id: line.split(" (").next().unwrap().trim().to_owned() }
    }

    fn is_gone(&self) -> bool {
        !ip(&["netns", "list-id"])
            .lines()
            .any(|line| line.split(" (").next().unwrap().trim() == self.id)
    }
}

fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The interfaces of this namespace, by name.
fn links() -> String {
    let links = ip(&["-o", "link"]);
    links.lines().filter_map(|line| line.split(": ").nth(1)).collect::<Vec<_>>().join(" ")
}

/// One thread in each other network namespace that a process or its children have threads in.
fn threads_elsewhere(pid: u32) -> BTreeMap<String, u32> {
    let netns = |thread: u32| {
        let link = fs::read_link(format!("/proc/{thread}/ns/net")).ok()?;
        Some(link.to_string_lossy().into_owned())
    };
    let here = netns(std::process::id()).unwrap();
    let threads = |pid: u32| -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
    };
    let children = |thread: &u32| -> Vec<u32> {
        let path = format!("/proc/{pid}/task/{thread}/children");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let own = threads(pid);
    // Children last, as the threads that read facts in this process are short-lived.
    let all = own.iter().copied().chain(own.iter().flat_map(children).flat_map(threads));
    all.filter_map(|thread| Some((netns(thread)?, thread))).filter(|(ns, _)| *ns != here).collect()
}
