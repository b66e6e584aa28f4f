//! Virtual machines of written trees.

use super::*;
use nearpath_model::{NodeId, TapKind};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(tree.path().join("sys/module/kvm")).unwrap();
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn process(&self, pid: u32, comm: &str, descriptors: &[&str]) {
        self.write(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
        self.write(&format!("proc/{pid}/cmdline"), &format!("{comm}\0"));
        for (fd, target) in descriptors.iter().enumerate() {
            self.link(&format!("proc/{pid}/fd/{fd}"), target);
        }
        self.thread(pid, pid, comm, "0-3", "running");
    }

    fn thread(&self, pid: u32, tid: u32, comm: &str, cpus: &str, call: &str) {
        let folder = format!("proc/{pid}/task/{tid}");
        self.write(&format!("{folder}/comm"), &format!("{comm}\n"));
        self.write(&format!("{folder}/status"), &format!("Cpus_allowed_list:\t{cpus}\n"));
        self.write(&format!("{folder}/syscall"), &format!("{call}\n"));
        self.write(&format!("{folder}/schedstat"), "9000 800 7\n");
    }

    fn read(&self) -> Vms {
        read(&Root::tree(self.path()).unwrap())
    }
}

const KVM_VM: &str = "anon_inode:kvm-vm";

fn qemu(tree: &Tree) {
    let open = [
        "/dev/kvm",
        KVM_VM,
        "anon_inode:kvm-vcpu:0",
        "anon_inode:kvm-vcpu:1",
        "/dev/net/tun",
        "/dev/net/tun",
        "/dev/vhost-net",
        "/dev/vhost-net",
        "anon_inode:[eventfd]",
        "/dev/tap7",
        "/dev/vhost-vsock",
    ];
    tree.process(700, "qemu-system-x86", &open);
    tree.write("proc/700/cmdline", "/usr/bin/qemu-system-x86_64\0-name\0guest=web1\0");
    tree.write("proc/700/fdinfo/4", "pos:\t0\niff:\ttap0\n");
    tree.write("proc/700/fdinfo/5", "pos:\t0\niff:\ttap0\n");
    tree.write("proc/700/statm", "100 50 10 1 0 20 0\n");
    let maps = "7f0 default anon=5 dirty=5 N0=2 N1=3 kernelpagesize_kB=4\n";
    tree.write("proc/700/numa_maps", maps);
    tree.thread(700, 702, "CPU 0/KVM", "2", "running");
    tree.thread(700, 703, "CPU 1/KVM", "3", "running");
    tree.thread(700, 704, "IO mon_iothread", "0-3", "7 0x0");
    let device = "sys/devices/virtual/net/macvtap0/macvtap/tap7";
    fs::create_dir_all(tree.path().join(device)).unwrap();
    let target = "../../devices/virtual/net/macvtap0/macvtap/tap7";
    tree.link("sys/class/macvtap/tap7", target);
}

#[test]
fn a_vm_of_qemu_with_vhost_threads() {
    let tree = Tree::new();
    qemu(&tree);
    tree.thread(700, 705, "vhost-700", "0-1", "");
    tree.process(90, "sshd", &["socket:[7]"]);
    let vms = tree.read();
    let [vm] = vms.vms.as_slice() else { panic!("{vms:?}") };
    assert_eq!((vm.pid, vm.name.as_deref(), vm.machines), (700, Some("web1"), 1));
    assert_eq!(vm.label(), "web1 700");
    assert!(vm.is("web1") && vm.is("700") && !vm.is("70"));
    let threads: Vec<_> =
        vm.vcpus.iter().map(|v| (v.number, v.thread.as_ref().unwrap().tid)).collect();
    assert_eq!(threads, [(0, 702), (1, 703)]);
    assert_eq!(vm.vcpus[1].thread.as_ref().unwrap().cpus.as_ref().unwrap().to_string(), "3");
    assert_eq!(vm.vhost_workers.iter().map(|w| (w.tid, w.pid)).collect::<Vec<_>>(), [(705, 700)]);
    assert_eq!(vm.emulator.iter().map(|t| t.tid).collect::<Vec<_>>(), [700, 704]);
    let taps: Vec<_> = vm.taps.iter().map(|t| (t.name.as_str(), t.kind, t.queues)).collect();
    assert_eq!(taps, [("tap0", TapKind::Tap, 2), ("macvtap0", TapKind::Macvtap, 1)]);
    assert_eq!((vm.vhost_net, vm.eventfds), (2, 1));
    assert_eq!(vm.vhost_others.get("vsock"), Some(&1));
    let memory = vm.memory.as_ref().unwrap();
    assert_eq!((memory[&NodeId(0)], memory[&NodeId(1)]), (8192, 12288));
    assert_eq!(vm.main_node(), Some((NodeId(1), 60.0)));
    assert!(vms.unknown.is_empty(), "{:?}", vms.unknown);
}

#[test]
fn workers_of_the_kernel_belong_to_the_vm_whose_thread_is_their_owner() {
    let tree = Tree::new();
    qemu(&tree);
    for (pid, comm) in
        [(801, "vhost-700"), (802, "vhost-704"), (803, "vhost-7001"), (804, "vhost-9")]
    {
        tree.write(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
        tree.write(&format!("proc/{pid}/status"), "Cpus_allowed_list:\t1\n");
        fs::create_dir_all(tree.path().join(format!("proc/{pid}/fd"))).unwrap();
    }
    let vms = tree.read();
    let workers: Vec<_> = vms.vms[0].vhost_workers.iter().map(|w| (w.tid, w.pid)).collect();
    assert_eq!(workers, [(801, 801), (802, 802)]);
}

#[test]
fn threads_without_names_are_found_by_their_system_call_or_debugfs() {
    let tree = Tree::new();
    tree.process(50, "vmm", &[KVM_VM, "anon_inode:kvm-vcpu:0", "anon_inode:kvm-vcpu:1"]);
    tree.thread(50, 51, "vmm", "0-3", "16 0x2 0xae80 0x0");
    tree.thread(50, 52, "vmm", "0-3", "running");
    let vms = tree.read();
    let of = |vms: &Vms| -> Vec<Option<u32>> {
        vms.vms[0].vcpus.iter().map(|v| v.thread.as_ref().map(|t| t.tid)).collect()
    };
    assert_eq!(of(&vms), [None, Some(51)], "by its descriptor, 2");
    assert_eq!(vms.vms[0].name, None);
    assert!(vms.unknown.iter().any(|u| u.fact == "thread of vCPU 0"), "{:?}", vms.unknown);
    // The memory cannot be read: unknown, and not none.
    assert_eq!(vms.vms[0].memory, None);
    tree.write("sys/kernel/debug/kvm/50-0/vcpu0/pid", "52\n");
    tree.write("sys/kernel/debug/kvm/50-0/vcpu1/pid", "4242\n");
    assert_eq!(of(&tree.read()), [Some(52), Some(51)], "a thread of another process is refused");
}

#[test]
fn two_machines_in_a_process_are_told_apart_by_descriptor() {
    let tree = Tree::new();
    let open = [KVM_VM, KVM_VM, "anon_inode:kvm-vcpu:0", "anon_inode:kvm-vcpu:0"];
    tree.process(50, "vmm", &open);
    tree.thread(50, 51, "CPU 0/KVM", "0-3", "16 0x2 0xae80");
    let vms = tree.read();
    assert_eq!(vms.vms[0].machines, 2);
    assert_eq!(vms.vms[0].vcpus[0].thread.as_ref().unwrap().tid, 51);
}

#[test]
fn a_process_that_has_events_of_a_vm_is_its_backend() {
    let tree = Tree::new();
    let event = "anon_inode:[eventfd]";
    let info = |pid: u32, descriptor: u32, id: u32| {
        let text = format!("pos:\t0\neventfd-count:                0\neventfd-id: {id}\n");
        tree.write(&format!("proc/{pid}/fdinfo/{descriptor}"), &text);
    };
    for (pid, comm) in [(50, "qemu"), (52, "qemu")] {
        tree.process(pid, comm, &[KVM_VM, event, event, event]);
        tree.write(&format!("proc/{pid}/cmdline"), "qemu\0-netdev\0vhost-user,id=n\0");
    }
    tree.process(60, "ovs-vswitchd", &["/dev/null", event, event, event]);
    tree.process(61, "other", &[event, event]);
    for (pid, ids) in [(50, [7, 8, 9]), (52, [17, 18, 19]), (60, [19, 9, 8])] {
        (1..).zip(ids).for_each(|(descriptor, id)| info(pid, descriptor, id));
    }
    info(61, 0, 30);
    let of = |vms: &Vms| -> Vec<Vec<(u32, String, Vec<u32>)>> {
        let backend = |b: &nearpath_model::VmBackend| (b.pid, b.comm.clone(), b.eventfds.clone());
        vms.vms.iter().map(|vm| vm.backends.iter().map(backend).collect()).collect()
    };
    let by = |events: &[u32]| vec![(60, "ovs-vswitchd".to_owned(), events.to_vec())];
    assert_eq!(of(&tree.read()), [by(&[8, 9]), by(&[19])]);
    assert_eq!(tree.read().vms[0].eventfds, 3);
    // One without such a device on its command line is not looked at.
    tree.write("proc/52/cmdline", "qemu\0-netdev\0tap,vhost=on\0");
    assert_eq!(of(&tree.read()), [by(&[8, 9]), vec![]]);
    // Read, too, for a snapshot.
    let root = Root::tree(tree.path()).unwrap().recording();
    let live = read(&root);
    let file = tree.path().join("s.tar.zst");
    root.save(&file).unwrap();
    assert_eq!(live, read(&Root::snapshot(&file).unwrap()));
}

#[test]
fn without_kvm_nothing_is_read() {
    let tree = Tree(tempfile::tempdir().unwrap());
    tree.process(50, "vmm", &[KVM_VM]);
    assert_eq!(tree.read().vms, []);
    let tree = Tree::new();
    tree.process(50, "sshd", &["/dev/kvm"]);
    assert_eq!(tree.read().vms, [], "it checks whether there is KVM");
}

#[test]
fn a_snapshot_has_the_same() {
    let tree = Tree::new();
    qemu(&tree);
    let root = Root::tree(tree.path()).unwrap().recording();
    let live = read(&root);
    let file = tree.path().join("s.tar.zst");
    root.save(&file).unwrap();
    let again = read(&Root::snapshot(&file).unwrap());
    assert_eq!(live, again);
    assert_eq!(live.vms.len(), 1);
}
