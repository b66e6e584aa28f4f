//! Sent packets that are freed on another core than they were allocated on.
//!
//! Input: the packets measured by `locality`, XPS, and the sockets that share a port. Output: one
//! finding: with XPS for NICs where it is off or misses the queue's CPU, as a transmission is completed
//! where the interrupt of its queue goes; and with steering or RFS, as TCP data is freed where
//! its acknowledgement is received.
//!
//! Rule: Cloudflare's "Perfect locality" (a piece of data must be sent, transmitted, and receive back its ACK on one
//! CPU).

use super::xps_mismatch::proposed;
use crate::locality::{bring_to_their_cpu, check_direction};
use crate::{Check, CheckOutcome, Context};
use nearpath_model::Direction;

pub(super) const CHECK: Check = Check::new(
    "tx_freed_elsewhere",
    "sent packets that are freed on another core than they were allocated on",
    run,
)
.explained_by(&["rps_placement", "accepts_off_cpu", "xps_mismatch"]);

fn run(context: &Context<'_>) -> CheckOutcome {
    check_direction(context, Direction::Tx, "sent", || {
        let mut changes = proposed(context);
        changes.extend(bring_to_their_cpu(context));
        changes
    })
}
