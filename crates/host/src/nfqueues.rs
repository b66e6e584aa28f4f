//! The queues of NFQUEUE (`/proc/net/netfilter/nfnetlink_queue`) of a root's network namespace.
//!
//! Input: a root. Output: the queues; none without the file, which the kernel has while its module is loaded. A line is
//! `number portid waiting copy_mode copy_range dropped user_dropped queued 1`. The port of a netlink socket is its process'
//! id, unless that has several (`netlink_autobind` of net/netlink/af_netlink.c).

use crate::{Notes, Root, processes};
use nearpath_model::NfQueue;

const TABLE: &str = "/proc/net/netfilter/nfnetlink_queue";
/// There are 65,536 numbers.
const MAX_LINES: usize = 65_536;

/// Reads all queues.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> Vec<NfQueue> {
    let text = match root.text(TABLE) {
        Ok(text) => text,
        Err(error) => {
            if !error.absent {
                notes.add("host", "nfqueues", &error.to_string());
            }
            return Vec::new();
        }
    };
    let mut queues = parse(&text);
    for queue in &mut queues {
        queue.comm = queue.pid.and_then(|pid| processes::comm(root, pid).ok());
        if queue.comm.is_none() {
            queue.pid = None;
        }
    }
    queues
}

fn parse(text: &str) -> Vec<NfQueue> {
    let line = |line: &str| -> Option<NfQueue> {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut numbers = words.map(|word| word.parse::<u64>());
        let mut next = || numbers.next()?.ok();
        let (port, waiting) = (next()?, next()?);
        let (_mode, _range) = (next()?, next()?);
        let (dropped, user_dropped, queued) = (next()?, next()?, next()?);
        let pid = u32::try_from(port).ok().filter(|pid| *pid > 0);
        Some(NfQueue { number, pid, comm: None, waiting, dropped, user_dropped, queued })
    };
    text.lines().take(MAX_LINES).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_queue() {
        let text = "    0  26696   500 2 65531    95     3  13281  1\n 1234 4294967295 0 0 0 0 0 7 1\nx\n7 1\n";
        let queues = parse(text);
        let [first, second] = queues.as_slice() else { panic!("{queues:?}") };
        assert_eq!((first.number, first.pid, first.waiting), (0, Some(26_696), 500));
        assert_eq!((first.dropped, first.user_dropped, first.queued), (95, 3, 13_281));
        assert_eq!((second.number, second.queued), (1_234, 7));
    }
}
