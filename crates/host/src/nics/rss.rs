//! Receive-side scaling, assembled from the parts returned by netlink and the ioctl.

use nearpath_model::{QueueId, Rss};

/// Names of the bits of `hfunc` (`ETH_RSS_HASH_*_BIT`, include/linux/ethtool.h; ethtool shows
/// them under the same names).
const FUNCTIONS: [&str; 3] = ["toeplitz", "xor", "crc32"];

/// Assembles the parts. `None` if the NIC has neither a table nor a key, as with drivers that report only a
/// hash function.
pub(crate) fn from_parts(
    indirection: impl Iterator<Item = u32>,
    key: &[u8],
    functions: u32,
) -> Option<Rss> {
    let indirection: Vec<_> = indirection.map(QueueId).collect();
    if indirection.is_empty() && key.is_empty() {
        return None;
    }
    let hexadecimal = || key.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":");
    let function = FUNCTIONS.iter().enumerate().find(|(bit, _)| functions & (1 << bit) != 0);
    Some(Rss {
        indirection,
        key: (!key.is_empty()).then(hexadecimal),
        function: function.map(|(_, name)| (*name).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_a_table() {
        let rss = from_parts([0, 1, 0, 1].into_iter(), &[0x6d, 0x5a], 1).unwrap();
        assert_eq!(rss.indirection, [0, 1, 0, 1].map(QueueId));
        assert_eq!(rss.key.as_deref(), Some("6d:5a"));
        assert_eq!(rss.function.as_deref(), Some("toeplitz"));
        assert_eq!(from_parts([].into_iter(), &[], 1), None);
    }
}
