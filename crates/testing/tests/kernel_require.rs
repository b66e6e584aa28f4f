//! The requirements are probed on the running kernel without a trace of the probe.

use std::fs::read_link;

#[test]
fn probing_leaves_the_thread_in_its_namespace() {
    let before = read_link("/proc/thread-self/ns/net").unwrap();
    if !nearpath_testing::require_netns() {
        return;
    }
    assert_eq!(read_link("/proc/thread-self/ns/net").unwrap(), before);
}

#[test]
fn probing_leaves_no_descriptor_of_a_program() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    let programs = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| read_link(fd.unwrap().path()).ok())
        .filter(|target| target.to_string_lossy().contains("bpf-prog"));
    assert_eq!(programs.count(), 0);
}
