//! Names what a task is blocked on, from the functions on its kernel stack, innermost first.
//!
//! Functions of the scheduler, and generic wait functions, are skipped. The first known function determines the
//! name; if there is none, the first function outside of the scheduler is the name.

use super::record::{Block, Change, ReaderEvents};
use crate::InstrumentError;
use crate::kernel::{Symbols, refused};
use libbpf_rs::{Map, MapCore, MapFlags, MapHandle};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prefixes of functions that belong to the scheduler, or wait on behalf of their caller.
const WAITING: [&str; 24] = [
    "bpf_",
    "__bpf_",
    "__traceiter_",
    "trace_",
    "__schedule",
    "schedule",
    "preempt_schedule",
    "__cond_resched",
    "io_schedule",
    "wait_woken",
    "__wait_for_common",
    "wait_for_completion",
    "wait_for_common",
    "__wait_on_bit",
    "out_of_line_wait_on",
    "bit_wait",
    "wait_on_bit",
    "usleep_range",
    "rcuwait",
    "prepare_to_wait",
    "do_wait_intr",
    "finish_wait",
    "raw_spin_",
    "__perf_",
];

/// Prefixes of functions, and what a task waits for in them; the first match counts.
const CAUSES: &[(&str, &str)] = &[
    // The data of another packet, and space for what the task sends.
    ("sk_stream_wait_memory", "send_buffer"),
    ("sock_wait_for_wmem", "send_buffer"),
    ("sock_alloc_send_", "send_buffer"),
    ("__lock_sock", "socket_lock"),
    ("lock_sock_nested", "socket_lock"),
    ("sk_wait_data", "socket"),
    ("__skb_wait_for_more_packets", "socket"),
    ("inet_csk_accept", "socket"),
    ("inet_csk_wait_for_connect", "socket"),
    ("inet_wait_for_connect", "socket"),
    ("tcp_recvmsg", "socket"),
    ("udp_recvmsg", "socket"),
    ("udpv6_recvmsg", "socket"),
    ("unix_stream_", "socket"),
    ("unix_wait_for_peer", "socket"),
    ("futex_", "futex"),
    ("__futex_", "futex"),
    ("do_futex", "futex"),
    ("do_nanosleep", "nanosleep"),
    ("hrtimer_nanosleep", "nanosleep"),
    ("ep_poll", "poll"),
    ("do_epoll_", "poll"),
    ("poll_schedule_timeout", "poll"),
    ("do_poll", "poll"),
    ("do_sys_poll", "poll"),
    ("do_select", "poll"),
    ("io_cqring_", "io_uring"),
    ("io_sq", "io_uring"),
    ("io_wq", "io_uring"),
    ("__io_uring", "io_uring"),
    ("pipe_", "pipe"),
    ("anon_pipe_", "pipe"),
    ("fifo_open", "pipe"),
    ("wait_for_partner", "pipe"),
    ("eventfd_", "eventfd"),
    ("timerfd_", "timerfd"),
    ("signalfd_", "signal"),
    ("do_sigtimedwait", "signal"),
    ("sigsuspend", "signal"),
    ("__do_sys_pause", "signal"),
    ("do_signal_stop", "stopped"),
    ("do_jobctl_trap", "stopped"),
    ("ptrace_stop", "stopped"),
    ("ptrace_do_notify", "stopped"),
    ("__refrigerator", "frozen"),
    ("do_freezer_trap", "frozen"),
    ("cgroup_enter_frozen", "frozen"),
    ("mem_cgroup_handle_over_high", "memory"),
    ("__mem_cgroup_handle_over_high", "memory"),
    ("try_to_free_", "memory"),
    ("reclaim_throttle", "memory"),
    ("shrink_", "memory"),
    ("out_of_memory", "memory"),
    ("mem_cgroup_oom", "memory"),
    ("do_wait", "child"),
    ("kernel_wait4", "child"),
    ("do_msgrcv", "ipc"),
    ("do_msgsnd", "ipc"),
    ("__do_semtimedop", "ipc"),
    ("do_semtimedop", "ipc"),
    ("n_tty_read", "terminal"),
    ("synchronize_", "rcu"),
    ("exp_funnel_lock", "rcu"),
    ("__mutex_lock", "lock"),
    ("mutex_lock", "lock"),
    ("rwsem_", "lock"),
    ("down_", "lock"),
    ("__down_", "lock"),
    ("rt_mutex_", "lock"),
    ("__rt_mutex_", "lock"),
    ("rtlock_", "lock"),
    ("percpu_rwsem_", "lock"),
    ("exit_to_user_mode_", "stopped"),
];

/// If one of these is anywhere on the stack, the task accessed memory that was not present.
const FAULTS: [&str; 6] = [
    "handle_mm_fault",
    "__handle_mm_fault",
    "do_user_addr_fault",
    "exc_page_fault",
    "handle_userfault",
    "filemap_fault",
];

/// If one of these is on the stack as well, it waits for storage.
const STORAGE: [&str; 16] = [
    "folio_wait_",
    "wait_on_page_",
    "__lock_page",
    "__folio_lock",
    "wait_for_stable_page",
    "filemap_",
    "submit_bio_wait",
    "blk_",
    "jbd2_",
    "ext4_",
    "xfs_",
    "btrfs_",
    "nfs_",
    "vfs_fsync",
    "do_blockdev_",
    "__iomap_dio_rw",
];

/// Scheduler states (`include/linux/sched.h`).
const STOPPED: u32 = 0x4 | 0x8;
const UNINTERRUPTIBLE: u32 = 0x2;
const FROZEN: u32 = 0x8000;

/// The stacks recorded by the programs.
#[derive(Debug)]
pub struct Stacks {
    map: MapHandle,
    /// Read before packets are observed: it takes more CPU time than an overhead limit allows in a second.
    symbols: Arc<Symbols>,
    known: BTreeMap<i32, Option<String>>,
}

impl Stacks {
    /// Those of a stack map.
    ///
    /// # Errors
    /// The kernel refused another handle of the map.
    pub fn new(map: &Map<'_>) -> Result<Self, InstrumentError> {
        let map = MapHandle::try_from(map);
        let map = map.map_err(|e| refused("reading the stacks of readers", &e))?;
        let symbols = Symbols::of_this_kernel();
        Ok(Self { map, symbols, known: BTreeMap::new() })
    }

    /// Sets the names of what a reader was blocked on.
    pub fn name(&mut self, reader: &mut ReaderEvents) {
        for event in &mut reader.events {
            if let Change::Blocks(block) = &mut event.what {
                block.on = self.on(block);
            }
        }
    }

    fn on(&mut self, block: &Block) -> Option<String> {
        if block.state & STOPPED != 0 {
            return Some("stopped".to_owned());
        }
        if block.state & FROZEN != 0 {
            return Some("frozen".to_owned());
        }
        let by_stack = match self.known.get(&block.stack) {
            Some(known) => known.clone(),
            None if block.stack < 0 => None,
            None => {
                let named = self.look_up(block.stack);
                self.known.insert(block.stack, named.clone());
                named
            }
        };
        let by_state = || {
            let is_io = block.io && block.state & UNINTERRUPTIBLE != 0;
            is_io.then(|| "io".to_owned())
        };
        by_stack.or_else(by_state)
    }

    /// The name for a stack. Numbers are not reused for other stacks.
    fn look_up(&mut self, stack: i32) -> Option<String> {
        let key = u32::try_from(stack).ok()?.to_ne_bytes();
        let frames = self.map.lookup(&key, MapFlags::ANY).ok()??;
        let addresses = frames.chunks_exact(8).filter_map(|word| word.try_into().ok());
        let addresses = addresses.map(u64::from_ne_bytes).take_while(|&address| address != 0);
        let names: Vec<&str> = addresses.filter_map(|address| self.symbols.name(address)).collect();
        cause(&names)
    }
}

/// The name for a stack, innermost function first.
fn cause(stack: &[&str]) -> Option<String> {
    let begins = |name: &str, with: &[&str]| with.iter().any(|prefix| name.starts_with(prefix));
    let known = |name: &str| CAUSES.iter().find(|(prefix, _)| name.starts_with(prefix));
    // A task that is stopped or throttled during a fault is on its way out of it.
    let first = stack.iter().find_map(|name| known(name)).map(|&(_, on)| on);
    let any = |of: &[&str]| stack.iter().any(|name| begins(name, of));
    let on = match first {
        Some(on @ ("memory" | "stopped" | "frozen")) => on.to_owned(),
        _ if any(&FAULTS) => "fault".to_owned(),
        Some(on) if on != "lock" => on.to_owned(),
        _ if any(&STORAGE) => "io".to_owned(),
        Some(on) => on.to_owned(),
        None => (*stack.iter().find(|name| !begins(name, &WAITING))?).to_owned(),
    };
    Some(on)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stacks as printed by kernels (`/proc/PID/stack`, with the functions above).
    #[test]
    fn a_stack_shows_what_a_task_is_blocked_on() {
        for (stack, on) in [
            ("__schedule schedule futex_wait_queue __futex_wait futex_wait do_futex", "futex"),
            ("__schedule schedule futex_wait_queue_me futex_wait do_futex", "futex"),
            ("__schedule schedule do_nanosleep hrtimer_nanosleep common_nsleep", "nanosleep"),
            ("__schedule schedule schedule_hrtimeout_range ep_poll do_epoll_wait", "poll"),
            ("schedule_hrtimeout_range_clock poll_schedule_timeout do_sys_poll", "poll"),
            ("__schedule schedule pipe_read vfs_read ksys_read", "pipe"),
            ("__schedule schedule anon_pipe_read vfs_read ksys_read", "pipe"),
            ("schedule do_signal_stop get_signal arch_do_signal_or_restart", "stopped"),
            ("schedule do_freezer_trap get_signal exit_to_user_mode_loop", "frozen"),
            ("schedule schedule_timeout __skb_wait_for_more_packets udp_recvmsg", "socket"),
            ("schedule wait_woken sk_wait_data tcp_recvmsg_locked tcp_recvmsg", "socket"),
            ("schedule __lock_sock lock_sock_nested tcp_sendmsg sock_write_iter", "socket_lock"),
            ("wait_woken sk_stream_wait_memory tcp_sendmsg_locked tcp_sendmsg", "send_buffer"),
            ("schedule_timeout sock_wait_for_wmem sock_alloc_send_pskb", "send_buffer"),
            ("io_schedule folio_wait_bit_common filemap_fault __do_fault do_fault", "fault"),
            ("schedule handle_userfault do_anonymous_page __handle_mm_fault", "fault"),
            ("io_schedule folio_wait_bit_common filemap_update_page filemap_get_pages", "io"),
            ("io_schedule blk_mq_get_tag __blk_mq_alloc_requests submit_bio", "io"),
            ("rwsem_down_read_slowpath down_read ext4_map_blocks", "io"),
            ("schedule schedule_preempt_disabled __mutex_lock do_thing", "lock"),
            ("schedule_timeout mem_cgroup_handle_over_high exit_to_user_mode_loop", "memory"),
            ("schedule_timeout reclaim_throttle shrink_node handle_mm_fault", "memory"),
            ("schedule io_cqring_wait __do_sys_io_uring_enter", "io_uring"),
            ("schedule do_wait kernel_wait4", "child"),
            (
                "bpf_prog_1_x bpf_trace_run4 __schedule schedule inotify_read vfs_read",
                "inotify_read",
            ),
        ] {
            let stack: Vec<_> = stack.split(' ').collect();
            assert_eq!(cause(&stack).as_deref(), Some(on), "{stack:?}");
        }
        assert_eq!(cause(&[]), None);
        assert_eq!(cause(&["__schedule", "schedule"]), None);
    }
}
