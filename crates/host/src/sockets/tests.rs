//! Sockets and owners from a tree in the format of `/proc`.

use super::*;
use nearpath_model::Unknown;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.file("sys/kernel/cpu_byteorder", "little\n");
        tree.file("proc/net/tcp", include_str!("fixtures/tcp.txt"));
        tree.file("proc/net/udp", include_str!("fixtures/udp.txt"));
        tree
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A process with a file, a pipe and sockets open.
    fn process(&self, pid: u32, comm: &str, inodes: &[u64], cpus: &str) {
        let status = format!("Name:\t{comm}\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0\n");
        self.file(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
        self.file(&format!("proc/{pid}/status"), &status);
        self.file(&format!("proc/{pid}/cgroup"), "0::/system.slice\n");
        self.file(&format!("proc/{pid}/task/{pid}/status"), &status);
        let fds = self.0.path().join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&fds).unwrap();
        link("/dev/null", &fds.join("0"));
        link("pipe:[20437]", &fds.join("1"));
        for (i, inode) in inodes.iter().enumerate() {
            link(&format!("socket:[{inode}]"), &fds.join(format!("{}", i + 2)));
        }
    }

    fn read(&self) -> (Vec<Socket>, Vec<SocketOwner>, Vec<Unknown>) {
        let mut notes = Notes::default();
        let (sockets, owners) = read(&Root::tree(self.0.path()).unwrap(), &mut notes);
        (sockets, owners, notes.unknown().to_vec())
    }
}

fn link(target: &str, at: &Path) {
    symlink(target, at).unwrap();
}

#[test]
fn sockets_have_their_owners() {
    let tree = Tree::new();
    tree.process(10, "nginx", &[20437, 20437, 5], "0-3");
    tree.process(9, "nginx: worker", &[20437], "2");
    tree.process(11, "named", &[1044, 1050], "0-3");
    tree.process(12, "bash", &[], "0-3");
    tree.file("proc/11/task/14/status", "Cpus_allowed_list:\t1\n");
    tree.file("proc/11/task/15/status", "Name:\tended\n");
    let (sockets, owners, unknown) = tree.read();
    let pids: Vec<_> = sockets.iter().map(|s| (s.port, s.pids.as_slice())).collect();
    let expected: [(u16, &[u32]); 5] =
        [(22, &[]), (8080, &[9, 10]), (53, &[11]), (68, &[]), (40000, &[11])];
    assert_eq!(pids, expected);
    let names: Vec<_> = owners.iter().map(|o| (o.pid, o.comm.as_str())).collect();
    assert_eq!(names, [(9, "nginx: worker"), (10, "nginx"), (11, "named")]);
    let named = &owners[2];
    assert_eq!(named.affinity.as_ref().unwrap().to_string(), "0-3");
    let threads: Vec<_> = named.threads.iter().map(|(t, cpus)| (*t, cpus.to_string())).collect();
    assert_eq!(threads, [(11, "0-3".to_owned()), (14, "1".to_owned())]);
    assert_eq!(named.mems_allowed.as_deref(), Some("0"));
    assert_eq!(named.cgroup.as_deref(), Some("/system.slice"));
    assert_eq!(unknown, []);
}

/// Processes of other namespaces are searched only for what those of this one do not have.
#[test]
fn processes_of_the_namespace_are_searched_first() {
    let tree = Tree::new();
    let namespace = |pid: &str, inode: u32| {
        tree.file(&format!("proc/{pid}/ns/uts"), "");
        let at = tree.0.path().join(format!("proc/{pid}/ns/net"));
        link(&format!("net:[{inode}]"), &at);
    };
    namespace("thread-self", 1);
    for (pid, inode) in [(10, 2), (20, 1), (30, 2), (40, 2)] {
        namespace(&pid.to_string(), inode);
    }
    tree.process(10, "passed to", &[20437, 77], "0");
    tree.process(20, "own", &[20437], "0");
    tree.process(30, "other", &[77, 88], "0");
    tree.file("proc/40/fd/0", "not a link, which is an error");
    let root = Root::tree(tree.0.path()).unwrap();
    let found = |wanted: &[u64]| {
        let (owners, missing) = connection_owners(&root, &wanted.iter().copied().collect());
        let mut pids: Vec<_> = owners.iter().map(|(inode, owner)| (*inode, owner.pid)).collect();
        pids.sort_unstable();
        (pids, missing.is_some())
    };
    assert_eq!(found(&[20437]), (vec![(20437, 20)], false));
    assert_eq!(found(&[20437, 77, 88]), (vec![(77, 10), (88, 30), (20437, 20)], false));
    assert_eq!(found(&[20437, 99]), (vec![(20437, 20)], true));
    fs::remove_dir_all(tree.0.path().join("proc/40")).unwrap();
    assert_eq!(found(&[20437, 99]), (vec![(20437, 20)], false));
}

#[test]
fn a_proxy_of_another_namespace_is_not_read_whole() {
    let tree = Tree::new();
    for (pid, inode) in [("thread-self", 1), ("10", 2), ("20", 2), ("30", 1)] {
        tree.file(&format!("proc/{pid}/ns/uts"), "");
        link(&format!("net:[{inode}]"), &tree.0.path().join(format!("proc/{pid}/ns/net")));
    }
    tree.process(10, "proxy", &[77], "0");
    for i in 10..70_000 {
        tree.file(&format!("proc/10/fd/{i}"), "not a link: reading it would be an error");
    }
    tree.process(20, "passed to", &[88], "0");
    tree.process(30, "own", &[99], "0");
    let root = Root::tree(tree.0.path()).unwrap();
    let (owners, missing) = connection_owners(&root, &[77, 88, 99].into_iter().collect());
    assert_eq!(owners.len(), 2);
    assert_eq!((owners[&88].pid, owners[&99].pid), (20, 30));
    assert_eq!(
        missing.as_deref(),
        Some("of other network namespaces, only 65536 descriptors were read")
    );
}

#[test]
fn a_tree_without_processes_is_noted() {
    let (sockets, owners, unknown) = Tree::new().read();
    assert_eq!((sockets.len(), owners.len()), (5, 0));
    assert_eq!(unknown[0].reason, "/proc: no processes");
}

#[test]
fn the_byte_order_is_that_of_the_tree() {
    let tree = Tree::new();
    tree.file("sys/kernel/cpu_byteorder", "big\n");
    let (sockets, _, _) = tree.read();
    assert_eq!(sockets.iter().find(|s| s.port == 8080).unwrap().address.to_string(), "1.0.0.127");
    fs::remove_file(tree.0.path().join("sys/kernel/cpu_byteorder")).unwrap();
    let (_, _, unknown) = tree.read();
    assert!(unknown.iter().any(|u| u.fact == "sockets' addresses"), "{unknown:?}");
}

#[test]
fn too_many_threads_are_truncated_and_noted() {
    let tree = Tree::new();
    tree.process(10, "java", &[1180], "0");
    for tid in 11..=1100 {
        tree.file(&format!("proc/10/task/{tid}/status"), "Cpus_allowed_list:\t0\n");
    }
    let (_, owners, unknown) = tree.read();
    assert_eq!(owners[0].threads.len(), 1024);
    assert_eq!(unknown[0].reason, "/proc/10/task: only 1024 of 1091 threads were read");
}

#[test]
fn a_snapshot_keeps_what_the_kernel_answered() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let root = Root::live().recording();
    let (live, _) = read(&root, &mut Notes::default());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.tar.zst");
    root.save(&file).unwrap();
    let (saved, _) = read(&Root::snapshot(&file).unwrap(), &mut Notes::default());
    assert_eq!(saved, live);
    let own = saved.iter().find(|socket| socket.port == port).unwrap();
    assert!(own.pids.contains(&std::process::id()));
}
