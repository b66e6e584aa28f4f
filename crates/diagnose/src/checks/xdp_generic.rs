//! XDP programs that run in the stack instead of in the driver.
//!
//! Input: where the XDP program of each NIC runs, and the packets that it has received. Output: one finding for each
//! NIC with a generic program. It runs when the sk_buff is made, often on a linear copy of the packet: all that XDP
//! saves is spent by then. The kernel falls back to it where the driver does not accept the program, unless native is
//! required.
//!
//! Rules: Linaro's latencies to virtual machines (the "eBPF (XDP)" case), `netif_receive_generic_xdp` in
//! net/core/dev.c.

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Nic, Subject, XdpMode};

pub(super) const CHECK: Check =
    Check::new("xdp_generic", "XDP programs that run in the stack instead of in the driver", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.hardware_nics() {
        if nic.xdp == Some(XdpMode::Generic) {
            outcome.findings.push(finding(context, nic));
        }
        let why = context.why_unknown(&format!("nic {}", nic.name), "link");
        if !why.is_empty() {
            outcome.not_checked(format!("whether {} has an XDP program is unknown{why}", nic.name));
        }
    }
    outcome
}

fn finding(context: &Context<'_>, nic: &Nic) -> Finding {
    let received = context.statistic(nic, "rx_packets");
    let rate = received.and_then(|count| context.rate(count));
    let title = format!("{}: its XDP program runs in the stack (generic)", nic.name);
    let driver = nic.driver.as_deref().map_or_else(|| "the driver".to_owned(), text::clean);
    Finding::new(severity::of_traffic(rate), title)
        .about([Subject::Nic(nic.name.clone())])
        .evidence("It sees each packet when the sk_buff is made, often copied to be linear: XDP saves nothing then.")
        .evidence(format!(
            "Attach it natively (ip link set dev {} xdpdrv ...) to see why {driver} refuses it: a large MTU, LRO or \
             few transmit queues are usual reasons.",
            nic.name
        ))
}
