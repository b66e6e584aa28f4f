//! A fragment for `/etc/default/grub.d`: the changes of the kernel command line, and hugepages, which the kernel
//! reserves at boot before memory is fragmented (Documentation/admin-guide/kernel-parameters.txt; counts by node since
//! Linux 5.16, commit b5389086ad7b).

use super::quote::comments;
use super::setting::{Kind, Setting};
use super::{Context, Document, Exporter};
use nearpath_model::{HugepagePools, PoolCounts};

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
        Kind::CommandLine | Kind::Hugepages { .. } => Ok(()),
        _ => Err("not a kernel command line parameter"),
    }
}

fn render(settings: &[Setting<'_>], context: &Context) -> Vec<Document> {
    let title = "Install in /etc/default/grub.d, then run update-grub and reboot.";
    let left_out = context.left_out.iter().map(String::as_str);
    let mut text = comments(std::iter::once(title).chain(left_out));
    for setting in settings {
        match &setting.kind {
            Kind::Hugepages { pools, after, .. } => text += &hugepages(*pools, after),
            _ => text.push_str(&setting.after),
        }
    }
    vec![Document { name: NAME.to_owned(), text, program: false }]
}

/// The line that reserves hugepages.
fn hugepages(pools: HugepagePools, counts: &PoolCounts) -> String {
    let older = match counts {
        PoolCounts::Nodes(_) => {
            "# By node since Linux 5.16; on an older kernel use nearpath-hugepages.service ('--as systemd').\n"
        }
        PoolCounts::Only(_) => "",
    };
    format!(
        "{older}GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT hugepagesz={} hugepages={counts}\"\n",
        pools.size()
    )
}
