//! Reading from another network namespace shows that namespace, and only that.
//!
//! The namespaces are created by unshare on threads of the tests, have no names and no mounts, and are released
//! with their last descriptor.

use nearpath_host::{NetnsRef, Root, Wanted, current_netns, in_netns};
use nearpath_testing::require_netns;
use rustix::thread::UnshareFlags;
use std::fs::File;
use std::process::Command;

/// A new namespace with a veth pair in it.
fn namespace_with_veth(a: &'static str, b: &'static str) -> File {
    on_a_thread(move || {
        // SAFETY: a network namespace shares no memory or descriptor tables.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        let ip = ["link", "add", a, "mtu", "1400", "type", "veth", "peer", "name", b];
        assert!(Command::new("ip").args(ip).status().unwrap().success());
        File::open("/proc/thread-self/ns/net").unwrap()
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

fn devices(root: &Root) -> Vec<String> {
    root.list("/sys/class/net").unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn sysfs_and_proc_are_those_of_the_namespace() {
    if !require_netns() {
        return;
    }
    let here = devices(&Root::live());
    let netns = namespace_with_veth("npa0", "npb0");
    in_netns(&NetnsRef::Fd(netns.into()), |root| {
        assert_eq!(devices(&root), ["lo", "npa0", "npb0"]);
        assert_eq!(root.text("/sys/class/net/npa0/mtu").unwrap(), "1400");
        assert_eq!(root.resolve("/sys/class/net/npa0").unwrap(), "/sys/devices/virtual/net/npa0");
        assert!(root.text("/proc/net/dev").unwrap().contains("npb0:"));
        assert!(root.text("/sys/devices/system/cpu/online").unwrap().starts_with('0'));
        assert!(root.list("/sys/kernel").unwrap().len() > 1);
    })
    .unwrap();
    assert_eq!(devices(&Root::live()), here);
}

#[test]
fn live_is_correct_with_the_sysfs_of_another_namespace_on_sys() {
    if !require_netns() {
        return;
    }
    let outside = current_netns(&Root::live()).inode;
    let netns = namespace_with_veth("npa1", "npb1");
    on_a_thread(move || {
        use std::os::fd::AsFd;
        rustix::thread::move_into_link_name_space(netns.as_fd(), None).unwrap();
        let root = Root::live();
        assert_eq!(devices(&root), ["lo", "npa1", "npb1"]);
        let inside = current_netns(&root);
        assert!(inside.inode.is_some() && inside.inode != outside && inside.name.is_none());
    });
}

#[test]
fn namespaces_are_found_by_process_and_by_path() {
    if !require_netns() {
        return;
    }
    let here = current_netns(&Root::live());
    let pid = std::process::id();
    for netns in [NetnsRef::Pid(pid), NetnsRef::Path(format!("/proc/{pid}/ns/net").into())] {
        assert_eq!(in_netns(&netns, |root| current_netns(&root)).unwrap(), here);
    }
}

/// A namespace with a name, removed on drop.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn a_name_is_entered_and_found_again() {
    if !require_netns() {
        return;
    }
    let named = Named(format!("nearpath-test-{}", std::process::id()));
    assert!(Command::new("ip").args(["netns", "add", &named.0]).status().unwrap().success());
    let inside =
        in_netns(&named.0.parse().unwrap(), |root| (current_netns(&root).name, devices(&root)));
    assert_eq!(inside.unwrap(), (Some(named.0.clone()), vec!["lo".to_owned()]));
}

#[test]
fn a_namespace_can_be_recorded() {
    if !require_netns() {
        return;
    }
    let netns = namespace_with_veth("npa2", "npb2");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("netns.tar.zst");
    let host = in_netns(&NetnsRef::Fd(netns.into()), |root| {
        let recording = root.recording();
        let host = nearpath_host::read(&recording, &Wanted::default()).unwrap();
        recording.save(&file).unwrap();
        host
    })
    .unwrap();
    let mut names: Vec<_> = host.nics.iter().map(|nic| nic.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["lo", "npa2", "npb2"]);
    let snapshot = Root::snapshot(&file).unwrap();
    assert_eq!(nearpath_host::read(&snapshot, &Wanted::default()).unwrap(), host);
}
