//! Probing the requirements leaves nothing behind on the running kernel.

use std::fs::read_link;

#[test]
fn probing_keeps_the_thread_in_its_namespace() {
    let before = read_link("/proc/thread-self/ns/net").unwrap();
    if !nearpath_testing::require_netns() {
        return;
    }
    assert_eq!(read_link("/proc/thread-self/ns/net").unwrap(), before);
}

#[test]
fn probing_leaks_no_program_descriptor() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    let programs = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| read_link(fd.unwrap().path()).ok())
        .filter(|target| target.to_string_lossy().contains("bpf-prog"));
    assert_eq!(programs.count(), 0);
}
