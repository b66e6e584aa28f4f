//! A program that runs beside a benchmark: its output is read all the time, and it never outlives this
//! process, nor the value here.
//!
//! In go a program and its arguments (no shell), and where it and its memory may be; out come how it ended
//! and what it said.

use crate::affinity;
use nearpath_model::{CpuId, CpuSet, NodeId};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What is kept of each output; the rest is read and thrown away, so that nobody waits for a full pipe.
const KEPT_BYTES: u64 = 4 << 20;
/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Where a program may be. Its threads and children inherit it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binding {
    /// CPUs that it may run on; `None`: those of this process.
    pub cpus: Option<CpuSet>,
    /// The node that it has memory from, and from no other (MPOL_BIND); `None`: as this process.
    pub memory: Option<NodeId>,
}

/// A running program. Dropped it is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
}

/// What a program left.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// The first 4 MiB of its standard output.
    pub out: Vec<u8>,
    /// And of its standard error.
    pub err: Vec<u8>,
}

impl Process {
    /// Starts it, in a group of its own: ^C is for nearpath, which then ends it in order. The kernel kills it when the calling *thread* ends (PR_SET_PDEATHSIG), so it is to be
    /// called on one that lives as long as the program shall.
    ///
    /// # Errors
    /// It is not installed (`NotFound`), or cannot be started, or not where it shall be.
    pub fn start(program: &str, arguments: &[String], binding: &Binding) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let parent = rustix::process::getpid();
        // Made here: between fork and exec nothing may be allocated.
        let cpus = binding.cpus.as_ref().map(affinity::mask);
        let memory = binding.memory.map(|node| affinity::mask(&CpuSet::from_iter([CpuId(node.0)])));
        // SAFETY: system calls alone, which touch no memory that is shared with the parent.
        unsafe {
            command.pre_exec(move || {
                let kill = Some(rustix::process::Signal::KILL);
                rustix::process::set_parent_process_death_signal(kill)?;
                if let Some(mask) = &cpus {
                    affinity::set_mask(mask)?;
                }
                if let Some(mask) = &memory {
                    bind_memory(mask)?;
                }
                // The parent may have died before that.
                let is_there = rustix::process::getppid() == Some(parent);
                if is_there { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            });
        }
        let mut child = command.spawn()?;
        let out = child.stdout.take().map(reader).transpose();
        let err = child.stderr.take().map(reader).transpose();
        let mut process = Self { child, out: None, err: None };
        process.out = out?;
        process.err = err?;
        Ok(process)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end, no longer than that; whether it has ended.
    pub fn wait(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        while !self.has_ended() {
            if begin.elapsed() >= time {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }

    /// Asks it to end. (Not as ^C does: what a script starts in the background has that ignored.)
    pub fn interrupt(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        // Not after it was waited for: another process may have its number.
        if let (Some(pid), false) = (pid, self.has_ended()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Kills it with its children, which are in its group. Its number is its own until it was waited for,
    /// and the group's until its last member has gone.
    fn kill(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let (Some(pid), false) = (pid, self.has_ended()) {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }

    /// Kills it if it has not ended, and returns what it said.
    ///
    /// # Errors
    /// The kernel does not tell how it ended.
    pub fn end(mut self) -> io::Result<Ended> {
        self.kill();
        let status = self.child.wait()?;
        let said = |reader: Option<JoinHandle<Vec<u8>>>| {
            reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        Ok(Ended { status, out: said(self.out.take()), err: said(self.err.take()) })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Lets what the calling thread runs have memory of these nodes alone.
fn bind_memory(mask: &[libc::c_ulong]) -> io::Result<()> {
    /// include/uapi/linux/mempolicy.h
    const MPOL_BIND: libc::c_long = 2;
    // One more than there are, as the kernel takes one off (`get_nodes` in mm/mempolicy.c).
    let bits = std::mem::size_of_val(mask) * 8 + 1;
    // SAFETY: the pointer is that of `mask`, which has the bits but for the one that is taken off.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, mask.as_ptr(), bits) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn reader(mut pipe: impl Read + Send + 'static) -> io::Result<JoinHandle<Vec<u8>>> {
    thread::Builder::new().name("output".to_owned()).spawn(move || {
        let mut kept = Vec::new();
        let _ = pipe.by_ref().take(KEPT_BYTES).read_to_end(&mut kept);
        let _ = io::copy(&mut pipe, &mut io::sink());
        kept
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(program: &str, arguments: &[&str]) -> io::Result<Process> {
        let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        Process::start(program, &arguments, &Binding::default())
    }

    #[test]
    fn it_runs_where_it_is_bound() {
        let last: CpuSet = affinity::current().unwrap().iter().last().into_iter().collect();
        let binding = Binding { cpus: Some(last.clone()), memory: None };
        let words = ["Cpus_allowed_list", "/proc/self/status"].map(str::to_owned);
        let mut process = Process::start("grep", &words, &binding).unwrap();
        assert!(process.wait(Duration::from_secs(20)));
        let said = String::from_utf8(process.end().unwrap().out).unwrap();
        assert_eq!(said.split_whitespace().last(), Some(last.to_string().as_str()));
        // Memory of a node that is there, and of one that is not.
        if std::path::Path::new("/sys/devices/system/node/node0").is_dir() {
            let start = |node| {
                let binding = Binding { cpus: None, memory: Some(NodeId(node)) };
                Process::start(
                    "grep",
                    &["heap".to_owned(), "/proc/self/numa_maps".to_owned()],
                    &binding,
                )
            };
            let mut process = start(0).unwrap();
            assert!(process.wait(Duration::from_secs(20)));
            let said = String::from_utf8(process.end().unwrap().out).unwrap();
            assert!(said.is_empty() || said.contains("bind:0"), "{said}");
            assert!(start(1000).is_err());
        }
    }

    #[test]
    fn what_it_says_is_read_also_when_nobody_waits_for_it() {
        // More than a pipe holds, and than is kept.
        let mut process = start("head", &["-c", "5000000", "/dev/zero"]).unwrap();
        assert!(process.wait(Duration::from_secs(20)));
        let ended = process.end().unwrap();
        assert!(ended.status.success());
        assert_eq!(ended.out.len() as u64, KEPT_BYTES);
    }

    #[test]
    fn it_ends_when_it_is_told_and_when_it_is_dropped() {
        let mut process = start("sleep", &["600"]).unwrap();
        assert!(!process.wait(Duration::from_millis(30)));
        process.interrupt();
        assert!(process.wait(Duration::from_secs(20)));
        assert!(!process.end().unwrap().status.success());
        let process = start("sleep", &["600"]).unwrap();
        let pid = rustix::process::Pid::from_raw(process.child.id().try_into().unwrap()).unwrap();
        drop(process);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn it_ends_with_the_thread_that_started_it() {
        let process = thread::spawn(|| start("sleep", &["600"]).unwrap()).join().unwrap();
        let mut process = process;
        assert!(process.wait(Duration::from_secs(20)));
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let error = start("nearpath-has-no-such-program", &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
