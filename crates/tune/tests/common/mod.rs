//! What the tests on this kernel share: a namespace whose settings they may change.

use nearpath_testing::require_netns;
use nearpath_testing::veth::{Side, VethPair};
use std::io;

/// Runs on the server's side of a pair with two queues; not at all where there are no namespaces.
pub fn in_namespace(run: impl FnOnce(&VethPair) + Send) {
    if !require_netns() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    pair.run(Side::Server, |_| {
        run(&pair);
        io::Result::Ok(())
    })
    .unwrap();
}
