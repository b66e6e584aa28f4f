//! Network namespaces as hosts: each has a link to this one, and a daemon; all end with it.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

/// A namespace with an address, reached from this one.
pub struct Host {
    name: String,
    number: u8,
    daemon: Option<Child>,
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Host {
    /// A host with this number, which is part of its name and address.
    pub fn new(number: u8) -> Self {
        let name = format!("npf{number}-{}", std::process::id());
        ip(&format!("netns add {name}"));
        let host = Self { name, number, daemon: None };
        let (name, here) = (&host.name, host.link());
        ip(&format!("link add {here} type veth peer name eth0 netns {name}"));
        ip(&format!("addr add 198.18.{number}.1/24 dev {here}"));
        ip(&format!("link set {here} up"));
        ip(&format!("-n {name} addr add 198.18.{number}.2/24 dev eth0"));
        ip(&format!("-n {name} link set eth0 up"));
        ip(&format!("-n {name} link set lo up"));
        host
    }

    fn link(&self) -> String {
        format!("npf{}", self.number)
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 2)
    }

    /// Where its daemon listens.
    pub fn daemon(&self) -> SocketAddr {
        (self.address(), 9477).into()
    }

    /// A command inside of it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Starts nearpath's daemon there.
    pub fn monitor(&mut self, options: &[&str]) {
        let built = || env!("CARGO_BIN_EXE_nearpath").into();
        let binary = nearpath_testing::other_build().unwrap_or_else(built);
        let mut command = self.command(binary.to_str().unwrap());
        command.args(["monitor", "--listen", &self.daemon().to_string(), "--insecure"]);
        let command = command.args(options).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemon = Some(command.spawn().unwrap());
    }

    /// Receive packet steering of its link to these CPUs, as the kernel's mask.
    pub fn set_rps(&self, mask: &str) {
        let file = "/sys/class/net/eth0/queues/rx-0/rps_cpus";
        let mut command = self.command("sh");
        assert!(command.args(["-c", &format!("echo {mask} > {file}")]).status().unwrap().success());
    }

    /// The mask as it is.
    pub fn rps(&self) -> String {
        let mut command = self.command("cat");
        let output = command.arg("/sys/class/net/eth0/queues/rx-0/rps_cpus").output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().trim_start_matches('0').to_owned()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            // SIGTERM, as programs are detached then.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let _ = daemon.wait();
        }
        let _ = Command::new("ip").args(["link", "del", &self.link()]).status();
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}
