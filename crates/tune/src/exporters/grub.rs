//! A fragment for `/etc/default/grub.d`: the changes of the kernel command line.

use super::quote::comments;
use super::setting::{Kind, Setting};
use super::{Context, Document, Exporter};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "grub",
    writes: "a fragment of the kernel command line for grub",
    several: false,
    carries,
    render,
};

const NAME: &str = "50-nearpath.cfg";

fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.kind {
        Kind::CommandLine => Ok(()),
        _ => Err("not a kernel command line parameter"),
    }
}

fn render(settings: &[Setting<'_>], context: &Context) -> Vec<Document> {
    let title = "Install in /etc/default/grub.d, then run update-grub and reboot.";
    let left_out = context.left_out.iter().map(String::as_str);
    let mut text = comments(std::iter::once(title).chain(left_out));
    settings.iter().for_each(|setting| text.push_str(&setting.after));
    vec![Document { name: NAME.to_owned(), text, program: false }]
}
