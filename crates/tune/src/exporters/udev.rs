//! udev rules (udev(7)) for the queues of interfaces that are set up later, or anew.
//!
//! A rule for the interface as it is added, and as it has got its name (`move`: the first event still
//! has the kernel's name for it), and one for each queue as it is added, which is after the interface,
//! and again when the number of channels changes. `ATTR{}` writes files below the device, also in
//! folders of it. What ethtool sets is set by ethtool.

use super::quote::{comment, comments, is_plain};
use super::setting::{Kind, NicCommands, Setting};
use super::{Context, Document, Exporter};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "udev",
    writes: "udev rules for interfaces that come later",
    several: false,
    carries,
    render,
};

/// After the rules that give interfaces their names (`80-net-setup-link.rules`).
const NAME: &str = "99-nearpath.rules";

fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.kind {
        // `:` and `@` mean nothing to udev either, but are in no name of an interface that it takes.
        Kind::Queue { nic, .. } | Kind::Interface { nic, .. } if is_plain(nic) => Ok(()),
        Kind::Queue { .. } | Kind::Interface { .. } => {
            Err("udev has a meaning of its own for signs in the interface's name")
        }
        Kind::Nic(ref commands) if is_plain(&commands.nic) => Ok(()),
        Kind::Nic(_) => Err("udev has a meaning of its own for signs in the interface's name"),
        Kind::Interrupt(_) => Err("udev has no event for an interrupt"),
        _ => Err("it is of no interface"),
    }
}

fn render(settings: &[Setting<'_>], context: &Context) -> Vec<Document> {
    let title = [
        "Queues of interfaces, by nearpath, for /etc/udev/rules.d; 'udevadm control --reload' reads",
        "them, and 'udevadm trigger --action=add --subsystem-match=net' makes them so at once.",
    ];
    let left_out = context.left_out.iter().map(String::as_str);
    let mut text = comments(title.into_iter().chain(left_out));
    for setting in settings {
        text += &format!("\n# {}\n", comment(&setting.change.why));
        if let Kind::Nic(NicCommands { nic, set, after, .. }) = &setting.kind {
            text += &format!(
                "ACTION==\"add|move\", SUBSYSTEM==\"net\", KERNEL==\"{nic}\", \
                 RUN+=\"/usr/sbin/ethtool {set} {nic} {after}\"\n"
            );
        }
        let value = &setting.after;
        if let Kind::Interface { nic, file } = setting.kind {
            text += &format!(
                "ACTION==\"add|move\", SUBSYSTEM==\"net\", KERNEL==\"{nic}\", ATTR{{{file}}}=\"{value}\"\n"
            );
        }
        let Kind::Queue { nic, queue, file } = setting.kind else { continue };
        text += &format!(
            "ACTION==\"add|move\", SUBSYSTEM==\"net\", KERNEL==\"{nic}\", \
             ATTR{{queues/{queue}/{file}}}=\"{value}\"\n"
        );
        text += &format!(
            "ACTION==\"add\", SUBSYSTEM==\"queues\", DEVPATH==\"*/net/{nic}/queues/{queue}\", \
             ATTR{{{file}}}=\"{value}\"\n"
        );
    }
    vec![Document { name: NAME.to_owned(), text, program: false }]
}
