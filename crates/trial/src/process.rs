//! A program that runs beside a benchmark: its output is read continuously, and it outlives neither this
//! process nor the value here.
//!
//! Input: a program and its arguments (no shell), and the CPUs and memory node for it. Output: its exit status
//! and output.

use crate::affinity;
use nearpath_model::{CpuId, CpuSet, NodeId};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum kept of each output; the rest is read and discarded, so that the program never blocks on a full
/// pipe.
const KEPT_BYTES: u64 = 4 << 20;
/// Interval at which its end is checked.
const LOOK: Duration = Duration::from_millis(10);

/// Placement of a program. Its threads and children inherit it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binding {
    /// CPUs on which it may run; `None`: those of this process.
    pub cpus: Option<CpuSet>,
    /// The only node on which it may allocate memory (MPOL_BIND); `None`: as this process.
    pub memory: Option<NodeId>,
}

/// A running program, killed on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
}

/// The result of a program.
#[derive(Debug)]
pub struct Ended {
    /// Exit status.
    pub status: ExitStatus,
    /// The first 4 MiB of its standard output.
    pub out: Vec<u8>,
    /// And of its standard error.
    pub err: Vec<u8>,
}

impl Process {
    /// Starts it, in its own process group: ^C goes to nearpath, which then ends the program in order. The
    /// kernel kills it when the calling *thread* ends (PR_SET_PDEATHSIG), so the thread must live as long as
    /// the program.
    ///
    /// # Errors
    /// It is not installed (`NotFound`), cannot be started, or not with this placement.
    pub fn start(program: &str, arguments: &[String], binding: &Binding) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let parent = rustix::process::getpid();
        // Prepared here: between fork and exec nothing may be allocated.
        let cpus = binding.cpus.as_ref().map(affinity::mask);
        let memory = binding.memory.map(|node| affinity::mask(&CpuSet::from_iter([CpuId(node.0)])));
        // SAFETY: only system calls, which access no memory shared with the parent.
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

    /// Its process id, which is its own until it was waited for.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end with a timeout; returns whether it has exited.
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

    /// Requests its end by SIGTERM. (Not SIGINT, which is ignored by background processes of a script.)
    pub fn interrupt(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        // Not after it was waited for: its number may have been reused.
        if let (Some(pid), false) = (pid, self.has_ended()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Kills it with its children, which are in its group. Its number is not reused until it was waited for,
    /// nor that of the group until its last member has exited.
    fn kill(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let (Some(pid), false) = (pid, self.has_ended()) {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }

    /// Kills it if it is still running, and returns its output.
    ///
    /// # Errors
    /// Its exit status is not available.
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

/// Restricts memory of the calling thread and its children to these nodes.
fn bind_memory(mask: &[libc::c_ulong]) -> io::Result<()> {
    /// include/uapi/linux/mempolicy.h
    const MPOL_BIND: libc::c_long = 2;
    // One more than there are, as the kernel subtracts one (`get_nodes` in mm/mempolicy.c).
    let bits = std::mem::size_of_val(mask) * 8 + 1;
    // SAFETY: the pointer is that of `mask`, which has the bits except the one that is subtracted.
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
        // Memory of a node that exists, and of one that does not.
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
    fn output_is_read_even_if_nobody_waits_for_it() {
        // More than fits in a pipe, and than is kept.
        let mut process = start("head", &["-c", "5000000", "/dev/zero"]).unwrap();
        assert!(process.wait(Duration::from_secs(20)));
        let ended = process.end().unwrap();
        assert!(ended.status.success());
        assert_eq!(ended.out.len() as u64, KEPT_BYTES);
    }

    #[test]
    fn it_ends_on_request_and_on_drop() {
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
    fn a_missing_program_is_reported() {
        let error = start("nearpath-has-no-such-program", &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
