//! Two network namespaces joined by a veth pair, for tests that send packets.
//!
//! The namespaces have no names and no files: they live as long as their descriptors here, so
//! nothing is left of them however the test ends.

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, gettid, move_into_link_name_space, unshare_unsafe,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;

/// A client's and a server's namespace, with `np0` in the one and `np1` in the other.
#[derive(Debug)]
pub struct VethPair {
    client: OwnedFd,
    server: OwnedFd,
    bridge: Option<Bridge>,
}

/// The bridge of Open vSwitch that joins the two sides; removed with them.
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
    /// Makes both namespaces and brings the pair up, with so many queues at either end.
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

    /// Makes both namespaces with the two devices as internal ports of a bridge of Open vSwitch,
    /// which must be running here: what is sent goes through its datapath.
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

    /// The namespace of a side as a path, for `ip`.
    fn path(&self, side: Side) -> String {
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
        Ok(())
    }

    /// Runs on a thread of its own in the namespace of a side.
    ///
    /// # Errors
    /// What `run` returns, or the namespace could not be entered.
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

    /// The inode of the namespace of a side, by which the kernel knows it.
    ///
    /// # Errors
    /// The descriptor cannot be looked at.
    pub fn inode(&self, side: Side) -> io::Result<u64> {
        Ok(rustix::fs::fstat(self.netns(side))?.st_ino)
    }

    /// Writes a file of the device's folder in `/sys/class/net`, such as `queues/rx-0/rps_cpus`.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn write(&self, side: Side, file: &str, value: &str) -> io::Result<()> {
        let file = format!("class/net/{}/{file}", side.device());
        self.run(side, |_| {
            use rustix::mount::{
                FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
            };
            let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(sysfs.as_fd())?;
            let sys =
                fsmount(sysfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&sys, file, flags, Mode::empty())?;
            rustix::io::write(&file, value.as_bytes())?;
            Ok(())
        })
    }
}

fn new_netns() -> io::Result<OwnedFd> {
    std::thread::spawn(|| {
        // SAFETY: only the network namespace of this thread is unshared; no descriptor table or
        // memory is.
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
        // Whatever went wrong before it is what there is to tell.
        let _ = run("ovs-vsctl", &["--if-exists", "del-br", BRIDGE]);
    }
}

/// Runs `ip` in the namespace of the thread.
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
