//! Shell commands for the changes that a finding proposes.
//!
//! Input: proposals. Output: command lines; equal changes of several queues are combined. Names are untrusted, so shell
//! metacharacters are quoted.

use nearpath_model::{
    Ethtool, FileOf, Proposal, ProposedChange, SocketProtocol, Target, UnitProperty, Value,
};

/// The commands of proposals; proposals without a command are skipped.
pub fn commands(changes: &[&ProposedChange]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut done = vec![false; changes.len()];
    for (place, change) in changes.iter().enumerate() {
        if done.get(place).copied().unwrap_or(true) {
            continue;
        }
        let Some((folder, file)) = of_queue(&change.target) else {
            lines.extend(command(change));
            continue;
        };
        // Queues with the same value are set by one command.
        let mut queues = Vec::new();
        for (other, change_of) in changes.iter().enumerate().skip(place) {
            if let Some((its_folder, its_file)) = of_queue(&change_of.target)
                && (its_folder.rsplit_once('/').map(|(nic, _)| nic), its_file)
                    == (folder.rsplit_once('/').map(|(nic, _)| nic), file)
                && change_of.after == change.after
                && let Some(done) = done.get_mut(other)
            {
                *done = true;
                queues.push(its_folder.rsplit('/').next().unwrap_or_default());
            }
        }
        let nic = folder.rsplit_once('/').map_or(folder, |(nic, _)| nic);
        lines.push(write_to(&queue_value(&change.after), nic, &queues, file));
    }
    lines
}

/// The directory of a queue and the file in it, for a proposal about a queue.
fn of_queue(proposal: &Proposal) -> Option<(&str, &str)> {
    queue_folder(proposal.setting()?)
}

/// The directory of a queue and the file in it.
pub(super) fn queue_folder(target: &Target) -> Option<(&str, &str)> {
    let Target::File(file) = target else { return None };
    matches!(file.of()?, FileOf::Queue { .. }).then(|| file.path.rsplit_once('/')).flatten()
}

/// `echo 0 > FILE`, or for several queues `echo 0 | tee FILES`: a shell takes one file for a redirection.
fn write_to(value: &str, nic: &str, queues: &[&str], file: &str) -> String {
    match queues {
        [queue] => format!("echo {value} > {}", word(&format!("{nic}/{queue}/{file}"))),
        _ => format!("echo {value} | tee {}/{}/{file}", word(nic), braces(queues)),
    }
}

/// `rx-{0..3}` of queues in a row, `{rx-0,tx-2}` of others.
pub(super) fn braces(queues: &[&str]) -> String {
    let parts: Vec<Option<(&str, u32)>> = queues
        .iter()
        .map(|queue| queue.split_once('-').and_then(|(kind, n)| Some((kind, n.parse().ok()?))))
        .collect();
    if let (Some(Some((kind, first))), Some(Some((_, last)))) = (parts.first(), parts.last()) {
        let expected = (*first..).map(|number| Some((*kind, number)));
        if parts.iter().copied().eq(expected.take(parts.len())) {
            let dots = if parts.len() == 2 { "," } else { ".." };
            return format!("{kind}-{{{first}{dots}{last}}}");
        }
        if parts.iter().all(|part| part.is_some_and(|(its, _)| its == *kind)) {
            let numbers: Vec<String> =
                parts.iter().flatten().map(|(_, number)| number.to_string()).collect();
            return format!("{kind}-{{{}}}", numbers.join(","));
        }
    }
    format!("{{{}}}", queues.join(","))
}

fn command(change: &ProposedChange) -> Option<String> {
    let after = value(&change.after);
    Some(match &change.target {
        Proposal::Setting(Target::File(file)) => match file.of()? {
            FileOf::Sysctl(name) => {
                format!("sysctl -w {}", word(&format!("{name}={}", change.after)))
            }
            _ => format!("echo {after} > {}", word(&file.path)),
        },
        Proposal::Setting(Target::Nic(setting)) => {
            let option = match setting.what {
                Ethtool::Channels => "-L",
                Ethtool::Rings => "-G",
                Ethtool::Coalesce => "-C",
                Ethtool::Rss => "-X",
                _ => return None,
            };
            format!("ethtool {option} {} {}", word(&setting.nic), plain(&change.after)?)
        }
        Proposal::Setting(Target::Unit(unit)) if unit.property == UnitProperty::ActiveState => {
            let verb = if change.after.text() == Some("inactive") { "stop" } else { "start" };
            format!("systemctl {verb} {}", word(&unit.unit))
        }
        Proposal::Setting(_) | Proposal::IrqbalanceBans => return None,
        Proposal::Affinity { pid, tid: None } => format!("taskset -acp {after} {pid}"),
        Proposal::Affinity { tid: Some(tid), .. } => format!("taskset -cp {after} {tid}"),
        Proposal::Pages { pid } => {
            let from = change.before.as_ref().map(value)?;
            format!("migratepages {pid} {from} {after}")
        }
        Proposal::Steering { protocol, port } => {
            let udp = if *protocol == SocketProtocol::Udp { " --udp" } else { "" };
            format!("nearpath steer --port {port}{udp}")
        }
    })
}

/// A value as one word of a shell.
fn value(value: &Value) -> String {
    word(&value.to_string())
}

/// A value of a queue as one word: a mask without its leading zeros.
fn queue_value(value: &Value) -> String {
    word(without_zeros(&value.to_string()))
}

/// `f` of `00000000,0000000f`, `0` of `00000000`.
fn without_zeros(mask: &str) -> &str {
    let is_mask = mask.chars().all(|c| c.is_ascii_hexdigit() || c == ',');
    match mask.trim_start_matches(['0', ',']) {
        _ if !is_mask => mask,
        "" if mask.is_empty() => mask,
        "" => "0",
        rest => rest,
    }
}

/// A value as it is shown beside the command of a proposal.
pub fn short_value(change: Option<&ProposedChange>, value: &Value) -> String {
    let text = value.to_string();
    match change.and_then(|change| of_queue(&change.target)) {
        Some(_) => without_zeros(&text).to_owned(),
        None => text,
    }
}

/// Words of ethtool, which are nothing else to a shell; `None` for what is more than words.
fn plain(value: &Value) -> Option<String> {
    let text = value.text()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_:.".contains(c);
    text.chars().all(plain).then(|| text.to_owned())
}

/// A word, quoted if it has shell metacharacters.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.,:=+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    let printable: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("'{}'", printable.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{NicSetting, QueueId, SettingFile};

    fn change(target: impl Into<Proposal>, after: &str) -> ProposedChange {
        ProposedChange::new(target, Some("1".to_owned()), after, "")
    }

    fn of(changes: &[ProposedChange]) -> Vec<String> {
        commands(&changes.iter().collect::<Vec<_>>())
    }

    fn rps(nic: &str, queue: u32, after: &str) -> ProposedChange {
        change(SettingFile::rx_queue(nic, QueueId(queue), "rps_cpus"), after)
    }

    #[test]
    fn equal_changes_of_queues_are_one_line() {
        let path = "/sys/class/net/eth0/queues";
        assert_eq!(of(&[rps("eth0", 0, "0")]), [format!("echo 0 > {path}/rx-0/rps_cpus")]);
        assert_eq!(
            of(&[rps("eth0", 0, "0"), rps("eth0", 1, "0")]),
            [format!("echo 0 | tee {path}/rx-{{0,1}}/rps_cpus")]
        );
        let four: Vec<_> = (0..4).map(|queue| rps("eth0", queue, "f")).collect();
        assert_eq!(of(&four), [format!("echo f | tee {path}/rx-{{0..3}}/rps_cpus")]);
        let gaps: Vec<_> = [0, 2, 3].map(|queue| rps("eth0", queue, "f")).to_vec();
        assert_eq!(of(&gaps), [format!("echo f | tee {path}/rx-{{0,2,3}}/rps_cpus")]);
        // Another value, another interface.
        let mixed = [rps("eth0", 0, "f"), rps("eth0", 1, "0"), rps("eth1", 0, "f")];
        assert_eq!(of(&mixed).len(), 3);
    }

    #[test]
    fn each_setting_has_its_tool() {
        for (change, command) in [
            (
                change(SettingFile::sysctl("net.core.busy_read"), "50"),
                "sysctl -w net.core.busy_read=50",
            ),
            (
                change(SettingFile::sysctl("net.ipv4.tcp_rmem"), "4096 131072 6291456"),
                "sysctl -w 'net.ipv4.tcp_rmem=4096 131072 6291456'",
            ),
            (change(NicSetting::new("eth0", Ethtool::Rings), "rx 2048"), "ethtool -G eth0 rx 2048"),
            (change(NicSetting::new("eth0", Ethtool::Rss), "equal 4"), "ethtool -X eth0 equal 4"),
            (change(Proposal::Affinity { pid: 7, tid: None }, "0-3"), "taskset -acp 0-3 7"),
            (change(Proposal::Affinity { pid: 7, tid: Some(9) }, "2"), "taskset -cp 2 9"),
            (change(Proposal::Pages { pid: 7 }, "0"), "migratepages 7 1 0"),
            (
                change(Proposal::Steering { protocol: SocketProtocol::Udp, port: 53 }, "on"),
                "nearpath steer --port 53 --udp",
            ),
        ] {
            assert_eq!(of(&[change]), [command]);
        }
    }

    #[test]
    fn masks_are_short() {
        for (mask, short) in [
            ("00000000", "0"),
            ("00000000,0000000f", "f"),
            ("1,00000000", "1,00000000"),
            ("", ""),
            ("x0", "x0"),
        ] {
            assert_eq!(without_zeros(mask), short);
        }
    }

    #[test]
    fn names_cannot_end_a_command() {
        let line = of(&[rps("a'$(reboot);b", 0, "0")]).concat();
        assert_eq!(line, "echo 0 > '/sys/class/net/a'\\''$(reboot);b/queues/rx-0/rps_cpus'");
        let values = of(&[rps("eth0", 0, "0; reboot")]).concat();
        assert!(values.starts_with("echo '0; reboot' > "), "{values}");
        assert!(of(&[change(NicSetting::new("eth0", Ethtool::Rings), "rx $(reboot)")]).is_empty());
    }
}
