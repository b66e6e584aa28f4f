//! udev rules (udev(7)) for the queues of interfaces that appear later or are re-created.
//!
//! One rule for an interface when it is added and when it is renamed (`move`: the first event still has the
//! kernel's name), and one per queue when it is added: after the interface, and again when the number of channels
//! changes. `ATTR{}` writes files below the device, including subdirectories. ethtool settings run ethtool.
//!
//! A device is matched by its bus address and its driver, where these are known, else by the name of its interface. Not
//! by its vendor, which physical and virtual functions share, nor by a name that another device may have later.

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
        let Some(nic) = setting.nic() else { continue };
        let device = device(nic, context);
        let interface = match &device {
            Some(device) => format!("ACTION==\"add|move\", SUBSYSTEM==\"net\", {device}"),
            None => format!("ACTION==\"add|move\", SUBSYSTEM==\"net\", KERNEL==\"{nic}\""),
        };
        let value = &setting.after;
        match &setting.kind {
            Kind::Nic(NicCommands { set, after, .. }) => {
                // The interface may have another name than in the plan.
                let name = if device.is_some() { "$name" } else { nic };
                text += &format!("{interface}, RUN+=\"/usr/sbin/ethtool {set} {name} {after}\"\n");
            }
            Kind::Interface { file, .. } => {
                text += &format!("{interface}, ATTR{{{file}}}=\"{value}\"\n");
            }
            Kind::Queue { queue, file, .. } => {
                text += &format!("{interface}, ATTR{{queues/{queue}/{file}}}=\"{value}\"\n");
                let place = match &device {
                    Some(device) => format!("KERNEL==\"{queue}\", {device}"),
                    None => format!("DEVPATH==\"*/net/{nic}/queues/{queue}\""),
                };
                text += &format!(
                    "ACTION==\"add\", SUBSYSTEM==\"queues\", {place}, ATTR{{{file}}}=\"{value}\"\n"
                );
            }
            _ => {}
        }
    }
    vec![Document { name: NAME.to_owned(), text, program: false }]
}

/// The match of an interface's device: address and driver are those of one parent.
fn device(nic: &str, context: &Context) -> Option<String> {
    let (bus, driver) = context.devices.get(nic)?;
    (is_plain(bus) && is_plain(driver))
        .then(|| format!("KERNELS==\"{bus}\", DRIVERS==\"{driver}\""))
}
