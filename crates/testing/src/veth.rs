//! Two network namespaces joined by a veth pair, for tests that send packets.
//!
//! The namespaces have no names and no files: they live as long as their descriptors here, so
//! nothing remains, however the test ends.

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, gettid, move_into_link_name_space, unshare_unsafe,
};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

/// A client's namespace with `np0`, and a server's with `np1`.
#[derive(Debug)]
pub struct VethPair {
    client: OwnedFd,
    server: OwnedFd,
    bridge: Option<Bridge>,
}

/// The Open vSwitch bridge that joins the two sides; removed with them.
#[derive(Debug)]
struct Bridge;

const BRIDGE: &str = "npbr0";

/// One side of the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `np0`, 10.99.0.1 and fd99::1.
    Client,
    /// `np1`, 10.99.0.2 and fd99::2.
    Server,
}

impl Side {
    /// Name of its device.
    pub fn device(self) -> &'static str {
        match self {
            Self::Client => "np0",
            Self::Server => "np1",
        }
    }

    /// Its IPv4 address.
    pub fn ipv4(self) -> IpAddr {
        Ipv4Addr::new(10, 99, 0, self as u8 + 1).into()
    }

    /// Its IPv6 address.
    pub fn ipv6(self) -> IpAddr {
        Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, self as u16 + 1).into()
    }
}

impl VethPair {
    /// Creates both namespaces and brings the pair up, with `queues` queues at either end.
    ///
    /// # Errors
    /// The kernel or `ip` refused; call [`crate::require_netns`] first.
    pub fn new(queues: u32) -> io::Result<Self> {
        let pair = Self { client: new_netns()?, server: new_netns()?, bridge: None };
        let queues = queues.to_string();
        pair.run(Side::Client, |_| {
            let q = ["numrxqueues", &queues, "numtxqueues", &queues];
            let mut add = vec!["link", "add", "np0"];
            add.extend(q);
            add.extend(["type", "veth", "peer", "name", "np1"]);
            add.extend(q);
            ip(&add)
        })?;
        let peer = pair.path(Side::Server);
        pair.run(Side::Client, |_| ip(&["link", "set", "np1", "netns", &peer]))?;
        pair.bring_up()?;
        Ok(pair)
    }

    /// Creates both namespaces with the two devices as internal ports of an Open vSwitch bridge:
    /// packets pass its datapath. Open vSwitch must be running.
    ///
    /// # Errors
    /// The kernel, `ip` or `ovs-vsctl` refused.
    pub fn in_ovs() -> io::Result<Self> {
        let mut pair = Self { client: new_netns()?, server: new_netns()?, bridge: None };
        run("ovs-vsctl", &["add-br", BRIDGE])?;
        pair.bridge = Some(Bridge);
        for side in [Side::Client, Side::Server] {
            let port = side.device();
            let internal = ["--", "set", "interface", port, "type=internal"];
            run("ovs-vsctl", &[&["add-port", BRIDGE, port], &internal[..]].concat())?;
            ip(&["link", "set", port, "netns", &pair.path(side)])?;
        }
        pair.bring_up()?;
        Ok(pair)
    }

    /// The namespace of a side as a path, for `ip` and `--netns`.
    pub fn path(&self, side: Side) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.netns(side).as_raw_fd())
    }

    fn bring_up(&self) -> io::Result<()> {
        for side in [Side::Client, Side::Server] {
            self.run(side, |side| {
                let v6 = format!("{}/64", side.ipv6());
                ip(&["addr", "add", &format!("{}/24", side.ipv4()), "dev", side.device()])?;
                ip(&["addr", "add", &v6, "dev", side.device(), "nodad"])?;
                ip(&["link", "set", "lo", "up"])?;
                ip(&["link", "set", side.device(), "up"])
            })?;
        }
        [Side::Client, Side::Server].into_iter().try_for_each(|side| self.wait_until_up(side))
    }

    /// Waits until the device transmits. The kernel handles the carrier in a worker
    /// (net/core/link_watch.c); until then packets are dropped, and a neighbour lookup retries only
    /// after a second.
    fn wait_until_up(&self, side: Side) -> io::Result<()> {
        let begin = Instant::now();
        // Internal ports of Open vSwitch always have the state `unknown`.
        while self.read(side, "operstate")?.trim() == "down" {
            if begin.elapsed() > crate::PATIENCE {
                return Err(io::Error::other(format!("{} does not come up", side.device())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Runs in the namespace of a side, on a separate thread.
    ///
    /// # Errors
    /// The error of `run`, or the namespace could not be entered.
    pub fn run<T: Send>(
        &self,
        side: Side,
        run: impl FnOnce(Side) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        in_thread(self.netns(side), move || run(side))
    }

    /// The namespace of a side.
    pub fn netns(&self, side: Side) -> &OwnedFd {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// The inode of the namespace of a side, which identifies it in the kernel.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn inode(&self, side: Side) -> io::Result<u64> {
        Ok(rustix::fs::fstat(self.netns(side))?.st_ino)
    }

    /// Writes a file in the device's directory in `/sys/class/net`, such as `queues/rx-0/rps_cpus`.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn write(&self, side: Side, file: &str, value: &str) -> io::Result<()> {
        let file = self.open(side, file, OFlags::WRONLY)?;
        rustix::io::write(&file, value.as_bytes())?;
        Ok(())
    }

    /// Reads such a file.
    pub fn read(&self, side: Side, file: &str) -> io::Result<String> {
        io::read_to_string(File::from(self.open(side, file, OFlags::RDONLY)?))
    }

    fn open(&self, side: Side, file: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let file = format!("class/net/{}/{file}", side.device());
        self.run(side, |_| {
            use rustix::mount::{
                FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
            };
            let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(sysfs.as_fd())?;
            let sys =
                fsmount(sysfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            Ok(rustix::fs::openat(&sys, file, flags | OFlags::CLOEXEC, Mode::empty())?)
        })
    }
}

fn new_netns() -> io::Result<OwnedFd> {
    std::thread::spawn(|| {
        // SAFETY: only the network namespace of this thread is unshared, not its descriptor table or
        // memory.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        let path = format!("/proc/self/task/{}/ns/net", gettid().as_raw_nonzero());
        Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    })
    .join()
    .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
}

fn in_thread<T: Send>(
    netns: &OwnedFd,
    run: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
            run()
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // An earlier error matters more than this one.
        let _ = run("ovs-vsctl", &["--if-exists", "del-br", BRIDGE]);
    }
}

/// Runs `ip` in the thread's namespace.
fn ip(arguments: &[&str]) -> io::Result<()> {
    run("ip", arguments)
}

/// Runs a program that must succeed.
fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{program} {}: {said}", arguments.join(" "))))
}
