//! udev rules (udev(7)) for the queues of interfaces that appear later or are re-created.
//!
//! One rule for an interface when it is added and when it is renamed (`move`: the first event still has the
//! kernel's name), and one per queue when it is added: after the interface, and again when the number of channels
//! changes. `ATTR{}` writes files below the device, including subdirectories. ethtool settings run ethtool.

use super::quote::{comment, comments, is_plain};
use super::setting::{Kind, NicCommands, Setting};
use super::{Context, Document, Exporter};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "udev",
    writes: "udev rules for interfaces that appear later",
    several: false,
    carries,
    render,
};

/// After the rules that give interfaces their names (`80-net-setup-link.rules`).
const NAME: &str = "99-nearpath.rules";

fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.kind {
        // `:` and `@` are literal for udev, too, but not valid in an interface name.
        Kind::Queue { nic, .. } | Kind::Interface { nic, .. } if is_plain(nic) => Ok(()),
        Kind::Queue { .. } | Kind::Interface { .. } => {
            Err("the interface name has characters that are special to udev")
        }
        Kind::Nic(ref commands) if is_plain(&commands.nic) => Ok(()),
        Kind::Nic(_) => Err("the interface name has characters that are special to udev"),
        Kind::Interrupt(_) => Err("udev has no event for an interrupt"),
        _ => Err("not an interface setting"),
    }
}

fn render(settings: &[Setting<'_>], context: &Context) -> Vec<Document> {
    let title = [
        "Interface settings by nearpath. Install in /etc/udev/rules.d. To apply them now: 'udevadm",
        "control --reload' and 'udevadm trigger --action=add --subsystem-match=net'.",
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
        if let Kind::Interface { nic, file } = &setting.kind {
            text += &format!(
                "ACTION==\"add|move\", SUBSYSTEM==\"net\", KERNEL==\"{nic}\", ATTR{{{file}}}=\"{value}\"\n"
            );
        }
        let Kind::Queue { nic, queue, file } = &setting.kind else { continue };
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
