//! A systemd service that applies the settings at boot and when an interface appears, with the script of `sh`, so
//! that nearpath need not be installed; and for threads of services a drop-in with their CPUs.
//!
//! The service runs when the interfaces are up, as some drivers request their interrupts only then, and after
//! services that would set other values. It does not stay active, so the device unit of an interface that comes
//! back starts it again. Settings already in effect are skipped.

use super::quote::{comments, device_unit, is_plain};
use super::setting::{Kind, Setting};
use super::{Context, Document, Exporter, sh};
use nearpath_model::CpuSet;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "systemd",
    writes: "a service that applies the settings at boot, its script, and drop-ins for services",
    several: true,
    carries,
    render,
};

/// The service's name.
pub(super) const SERVICE: &str = "nearpath-tune.service";

/// Where to install the script.
pub(super) const SCRIPT: &str = "/usr/local/sbin/nearpath-tune.sh";

fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.kind {
        Kind::Thread(Some(_)) if setting.unbalanced => Err(
            "with CPUAffinity= the threads of its service would share isolated CPUs, between which the \
                 kernel does not balance load (isolcpus=domain): pin them with a plan after each start",
        ),
        Kind::Thread(Some(unit)) if is_plain(unit) && unit.ends_with(".service") => Ok(()),
        Kind::Thread(_) => Err("its process does not belong to a systemd service"),
        _ => sh::carries(setting),
    }
}

fn render(settings: &[Setting<'_>], context: &Context) -> Vec<Document> {
    let (threads, others): (Vec<_>, Vec<_>) =
        settings.iter().partition(|setting| matches!(setting.kind, Kind::Thread(_)));
    let mut documents = drop_ins(&threads);
    documents.extend(hugepages(&others));
    if !others.is_empty() {
        documents.push(service(&others, context));
        documents.push(sh::script(&others, context));
    }
    documents
}

/// The service that reserves hugepages, if there are any: before all others, when memory is not fragmented. It works on
/// kernels without `hugepages=0:512,1:512` (before Linux 5.16), too. The service with all settings finds them in effect.
fn hugepages(settings: &[&Setting<'_>]) -> Option<Document> {
    let mut starts = String::new();
    for setting in settings {
        let Kind::Hugepages { pools, after, .. } = &setting.kind else { continue };
        for (node, count) in after.iter() {
            let file = format!("{}/nr_hugepages", pools.folder(node));
            // The kernel may reserve fewer without an error: then the service fails, and shows how many.
            starts += &format!(
                "ExecStart=/bin/sh -c 'echo {count} >{file}; read has <{file}; \
                 echo \"$has of {count} pages of {}\"; test \"$has\" -ge {count}'\n",
                pools.size()
            );
        }
    }
    if starts.is_empty() {
        return None;
    }
    let title = [
        "Reserves hugepages early at boot, by nearpath. Install in /etc/systemd/system, then run",
        "'systemctl enable nearpath-hugepages.service'.",
    ];
    let text = format!(
        "{}\n[Unit]\n\
         Description=Hugepages by node\n\
         DefaultDependencies=no\n\
         Before=sysinit.target dev-hugepages.mount\n\
         \n[Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         {starts}\
         \n[Install]\n\
         WantedBy=sysinit.target\n",
        comments(title)
    );
    Some(Document { name: "nearpath-hugepages.service".to_owned(), text, program: false })
}

/// The service.
pub(super) fn service(settings: &[&Setting<'_>], context: &Context) -> Document {
    let title = [
        format!(
            "Applies the settings of nearpath at boot. Install this file in /etc/systemd/system and {}",
            sh::NAME
        ),
        format!("as {SCRIPT}, then run 'systemctl enable --now {SERVICE}'."),
        "'systemctl start' re-applies lost settings; the script's undo command undoes them."
            .to_owned(),
    ];
    let text = unit(settings, context, &title, &format!("{SCRIPT} apply"));
    Document { name: SERVICE.to_owned(), text, program: false }
}

/// A service that runs a command when the interfaces of these settings exist.
pub(super) fn unit(
    settings: &[&Setting<'_>],
    context: &Context,
    title: &[String],
    command: &str,
) -> String {
    let nics: BTreeSet<&str> = settings.iter().filter_map(|setting| setting.nic()).collect();
    let devices: Vec<String> = nics.into_iter().map(device_unit).collect();
    let all = |first: &[&str]| {
        let devices = devices.iter().map(String::as_str);
        first.iter().copied().chain(devices).collect::<Vec<_>>().join(" ")
    };
    let lines = title.iter().chain(&context.left_out).map(String::as_str);
    let wants = all(&["network-online.target"]);
    // Services that would set other values, if they exist.
    let after = format!("{wants} systemd-sysctl.service irqbalance.service tuned.service");
    let wanted_by = all(&["multi-user.target"]);
    format!(
        "{}\
         \n[Unit]\n\
         Description=Settings that keep packets near the CPU that reads them\n\
         Wants={wants}\n\
         After={after}\n\
         # An interface may exist before its driver has requested its interrupts.\n\
         StartLimitIntervalSec=300\n\
         StartLimitBurst=10\n\
         \n[Service]\n\
         Type=oneshot\n\
         ExecStart={command}\n\
         Restart=on-failure\n\
         RestartSec=5\n\
         ProtectHome=yes\n\
         PrivateTmp=yes\n\
         NoNewPrivileges=yes\n\
         \n[Install]\n\
         WantedBy={wanted_by}\n",
        comments(lines)
    )
}

/// A drop-in per service, with the CPUs of all its threads that are moved.
fn drop_ins(threads: &[&Setting<'_>]) -> Vec<Document> {
    let mut units: BTreeMap<&str, CpuSet> = BTreeMap::new();
    for thread in threads {
        if let Kind::Thread(Some(unit)) = thread.kind {
            let cpus = units.entry(unit).or_default();
            *cpus = cpus.union(&thread.cpus());
        }
    }
    let drop_in = |(unit, cpus): (&str, CpuSet)| {
        let title = [
            format!("CPUs of {unit}, by nearpath. Install in /etc/systemd/system/{unit}.d."),
            "Takes effect when the service restarts. A service that pins its own threads does"
                .to_owned(),
            "so within these CPUs.".to_owned(),
        ];
        let text = format!(
            "{}\n[Service]\nCPUAffinity=\nCPUAffinity={cpus}\n",
            comments(title.iter().map(String::as_str))
        );
        Document { name: format!("{unit}.d/50-nearpath.conf"), text, program: false }
    };
    units.into_iter().map(drop_in).collect()
}
