//! Received packets that are freed on another core than they were allocated on.
//!
//! Input: the packets measured by `locality` and the sockets that share a port. Output: one finding,
//! with steering for the servers that can be steered, else RFS.
//!
//! Rule: Cloudflare's "Perfect locality" (from about 10% of the packets on their CPU to 99%: the packet is received on
//! the CPU of the application that reads it).

use crate::locality::{bring_to_their_cpu, check_direction};
use crate::{Check, CheckOutcome, Context};
use nearpath_model::Direction;

pub(super) const CHECK: Check = Check::new(
    "rx_freed_elsewhere",
    "received packets that are freed on another core than they were allocated on",
    run,
)
.explained_by(&["rps_placement", "accepts_off_cpu"]);

fn run(context: &Context<'_>) -> CheckOutcome {
    check_direction(context, Direction::Rx, "received", || bring_to_their_cpu(context))
}
