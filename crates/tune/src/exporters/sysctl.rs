//! A fragment for `/etc/sysctl.d` (sysctl.d(5)): the sysctls among the settings.

use super::quote::{comment, comments};
use super::setting::{Kind, Setting};
use super::{Context, Document, Exporter};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "sysctl",
    writes: "a fragment for /etc/sysctl.d",
    several: false,
    carries,
    render,
};

const NAME: &str = "60-nearpath.conf";

fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.kind {
        Kind::Sysctl(_) => Ok(()),
        _ => Err("not a sysctl"),
    }
}

fn render(settings: &[Setting<'_>], context: &Context) -> Vec<Document> {
    let title =
        "Sysctls by nearpath. Install in /etc/sysctl.d; 'sysctl --system' applies them now.";
    let left_out = context.left_out.iter().map(String::as_str);
    let mut text = comments(std::iter::once(title).chain(left_out));
    for setting in settings {
        if let Kind::Sysctl(name) = &setting.kind {
            text += &format!("\n# {}\n", comment(&setting.change.why));
            text += &format!("{name} = {}\n", setting.after);
        }
    }
    vec![Document { name: NAME.to_owned(), text, program: false }]
}
