//! The steered servers: nginx and unbound from the distribution, and one that blocks in accept(2) and reports the
//! CPU that received a connection. Each is stopped when its value is dropped.

use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The port that all of them listen on.
pub const PORT: u16 = 8181;

/// Two CPUs that this process may run on; `None` if there is only one.
pub fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    Some([cpus.next()?, cpus.next()?])
}

/// Runs on a CPU; packets that it sends to this machine are then received there.
pub fn on_cpu<T: Send>(cpu: usize, run: impl FnOnce() -> T + Send) -> T {
    let pinned = move || {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        sched_setaffinity(None, &cpus).unwrap();
        run()
    };
    // A new thread inherits the namespace of its creator.
    std::thread::scope(|scope| scope.spawn(pinned).join().unwrap())
}

/// A program that is stopped and waited for when this is dropped.
pub struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    fn start(pair: &VethPair, folder: TempDir, program: &str, args: &[&str]) -> Self {
        let child = pair.run(Side::Server, |_| {
            let mut command = Command::new(program);
            command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn()
        });
        Self { child: child.unwrap(), folder }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads a file in its directory.
    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(file)).unwrap_or_default()
    }

    /// nginx with a pinned worker on each of two CPUs; its log shows which worker answered which request.
    pub fn nginx(pair: &VethPair, cpus: [usize; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = cpus.map(|cpu| format!("1{}", "0".repeat(cpu)));
        let address = Side::Server.ipv4();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path tmp;\n"))
            .concat();
        let text = format!(
            "user root; daemon off; pid pid; error_log error.log;\n\
             worker_processes 2; worker_cpu_affinity {first} {second};\n\
             events {{ worker_connections 1024; }}\n\
             http {{ log_format who '$pid $uri'; access_log log who; {temporary}\
             server {{ listen {address}:{PORT} reuseport; location / {{ return 200 $pid; }} }} }}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
        let path = folder.path().display().to_string();
        let server = Self::start(pair, folder, "nginx", &["-p", &path, "-c", "nginx.conf"]);
        wait_for("nginx's workers", || {
            let answers = || pair.run(Side::Server, |side| TcpStream::connect((side.ipv4(), PORT)));
            (children(server.pid()).len() == 2 && answers().is_ok()).then_some(())
        });
        server
    }

    /// unbound with two threads, each pinned to one of the CPUs, answering from local data.
    pub fn unbound(pair: &VethPair, cpus: [usize; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let text = format!(
            "server:\n num-threads: 2\n so-reuseport: yes\n interface: {}@{PORT}\n\
             access-control: 0.0.0.0/0 allow\n\
             do-daemonize: no\n username: \"\"\n chroot: \"\"\n directory: \"{path}\"\n\
             pidfile: \"{path}/pid\"\n use-syslog: no\n logfile: \"{path}/log\"\n\
             local-zone: \"test.\" static\n local-data: \"a.test. A 10.0.0.1\"\n\
             remote-control:\n control-enable: yes\n control-use-cert: no\n\
             control-interface: {path}/control\n",
            Side::Server.ipv4()
        );
        let conf = folder.path().join("unbound.conf");
        std::fs::write(&conf, text).unwrap();
        let server = Self::start(pair, folder, "unbound", &["-c", &conf.display().to_string()]);
        wait_for("unbound", || pair.run(Side::Server, |side| ask(side.ipv4())).ok());
        for (thread, cpu) in threads(server.pid()).into_iter().zip(cpus) {
            let mut set = CpuSet::new();
            set.set(cpu);
            sched_setaffinity(Pid::from_raw(thread.try_into().unwrap()), &set).unwrap();
        }
        server
    }

    /// The number of queries answered by each thread of unbound.
    pub fn unbound_queries(&self) -> [u64; 2] {
        let conf = self.folder.path().join("unbound.conf");
        let output = Command::new("unbound-control")
            .args([Path::new("-c"), &conf, Path::new("stats_noreset")])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        [0, 1].map(|thread| {
            let name = format!("thread{thread}.num.queries=");
            let line = text.lines().find_map(|line| line.strip_prefix(&name));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        })
    }

    /// `server.py` on an address, with these arguments.
    pub fn python(pair: &VethPair, address: IpAddr, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel_steer/server.py");
        let (address, port) = (address.to_string(), PORT.to_string());
        let args = [&["-u", file, &address, &port], args].concat();
        let mut server = Self::start(pair, folder, "python3", &args);
        let mut line = String::new();
        BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Sends a DNS query from a new port, and waits for the answer.
pub fn ask(server: IpAddr) -> std::io::Result<()> {
    const QUERY: &[u8] = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
    let socket = UdpSocket::bind((server, 0))?;
    socket.connect((server, PORT))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.send(QUERY)?;
    socket.recv(&mut [0; 512]).map(drop)
}

/// The answer of a worker of `server.py`: its process id, the CPU it runs on, the CPU that received.
pub fn connect(server: IpAddr) -> [u64; 3] {
    let mut text = String::new();
    TcpStream::connect((server, PORT)).unwrap().read_to_string(&mut text).unwrap();
    let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Child processes.
pub fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Threads, ascending.
fn threads(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut tids: Vec<u32> =
        tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    tids.sort_unstable();
    tids
}
