//! A fragment for `/etc/default/grub.d`: what of the changes is the kernel's command line.

use super::setting::Setting;
use super::{Context, Document, Exporter};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "grub",
    writes: "a fragment of the kernel command line for grub",
    several: false,
    carries,
    render,
};

fn carries(_: &Setting<'_>) -> Result<(), &'static str> {
    Err("it is nothing of the kernel's command line")
}

fn render(_: &[Setting<'_>], _: &Context) -> Vec<Document> {
    Vec::new()
}
