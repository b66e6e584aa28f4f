//! Shell commands for the changes that a finding proposes.
//!
//! Input: proposals. Output: a command line for each, with the value before and the reason; equal changes of several
//! queues are combined. What no command can make is a comment that says why, so that all lines can be pasted. Names are
//! untrusted, so shell metacharacters are quoted.

use super::units::ranges;
use nearpath_model::shell::{self, word};
use nearpath_model::{
    CpuSet, EgressMap, Ethtool, FileOf, PoolCounts, Proposal, ProposedChange, QdiscTree, QueueFile,
    QueueId, SettingFile, SocketProtocol, Target, UnitProperty, Value,
};
use std::collections::BTreeSet;

/// One or several changes as a line for a shell.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The command, or a comment that says why there is none.
    pub line: String,
    /// The values before; empty if they are unknown.
    pub was: String,
    /// Why, a sentence.
    pub why: String,
}

/// The commands of proposals, in their order.
pub fn commands(changes: &[&ProposedChange]) -> Vec<Command> {
    let mut lines: Vec<Command> = Vec::new();
    let mut done = vec![false; changes.len()];
    for (place, change) in changes.iter().enumerate() {
        if done.get(place).copied().unwrap_or(true) {
            continue;
        }
        let why = change.why.clone();
        let Some((nic, _, file)) = of_queue(&change.target) else {
            lines.push(Command { line: command(change), was: was(&[change]), why });
            continue;
        };
        // Queues with the same value are set by one command.
        let (mut queues, mut alike) = (Vec::new(), Vec::new());
        for (other, change_of) in changes.iter().enumerate().skip(place) {
            if let Some((its_nic, its_queue, its_file)) = of_queue(&change_of.target)
                && (its_nic, its_file) == (nic, file)
                && (&change_of.after, &change_of.netns) == (&change.after, &change.netns)
                && let Some(done) = done.get_mut(other)
            {
                *done = true;
                queues.push(its_queue);
                alike.push(*change_of);
            }
        }
        let place = Place(change.netns.as_deref());
        let line = write_to(&queue_value(&change.after), nic, &queues, file, place);
        lines.push(Command { line, was: was(&alike), why });
    }
    lines
}

/// Values before, each once: `1`, `1, 3`, or how many there are.
fn was(changes: &[&ProposedChange]) -> String {
    let mut values: Vec<String> = Vec::new();
    for change in changes {
        let Some(before) = &change.before else { return String::new() };
        let before = short_value(change, before);
        let before = if before.is_empty() { "\"\"".to_owned() } else { before };
        if !values.contains(&before) {
            values.push(before);
        }
    }
    match values.len() {
        0..=3 => values.join(", "),
        n => format!("{n} values"),
    }
}

/// The interface, queue and file of a proposal about a queue.
fn of_queue(proposal: &Proposal) -> Option<(&str, QueueId, QueueFile)> {
    queue_of(proposal.setting()?)
}

/// The interface, queue and file of a setting of a queue.
pub(super) fn queue_of(target: &Target) -> Option<(&str, QueueId, QueueFile)> {
    match target {
        Target::File(SettingFile { of: FileOf::Queue { nic, queue, file }, .. }) => {
            Some((nic, *queue, *file))
        }
        _ => None,
    }
}

/// The directory of the queues of an interface.
pub(super) fn queues_folder(nic: &str) -> String {
    format!("/sys/class/net/{nic}/queues")
}

/// The network namespace in which a command is to run, as for `--netns`; `None`: that of the shell.
#[derive(Clone, Copy)]
struct Place<'a>(Option<&'a str>);

impl Place<'_> {
    /// The path of the namespace, if it has no name in `/run/netns`.
    fn path(self) -> Option<String> {
        self.0.and_then(shell::netns_path)
    }

    /// A command that runs there.
    fn run(self, command: &str) -> String {
        self.0.map_or_else(|| command.to_owned(), |netns| shell::in_netns(netns, command))
    }

    /// A line that writes to a file of /sys/class/net, whose interfaces are those of the namespace in which sysfs was
    /// mounted (sysfs(5)): 'ip netns exec' mounts another.
    fn write(self, value: &str, files: &str, several: bool) -> String {
        match (self.path(), self.0) {
            (Some(_), _) => {
                let mounted =
                    "unshare --mount sh -c 'mount -t sysfs none /sys && exec tee \"$@\"' -";
                format!("echo {value} | {} {files}", self.run(mounted))
            }
            (None, Some(_)) => format!("echo {value} | {} {files}", self.run("tee")),
            // A shell takes one file for a redirection.
            (None, None) if several => format!("echo {value} | tee {files}"),
            (None, None) => format!("echo {value} > {files}"),
        }
    }

    /// A command of nearpath there.
    fn nearpath(self, command: &str) -> String {
        let netns = self.0.map(|netns| format!(" --netns {}", word(netns)));
        format!("nearpath {command}{}", netns.unwrap_or_default())
    }

    /// The reason why there is no command, as a comment.
    fn by_tune(self, why: &str) -> String {
        format!("# use '{}': {why}", self.nearpath("tune apply"))
    }
}

/// `echo 0 > FILE`, or for several queues `echo 0 | tee FILES`.
fn write_to(
    value: &str,
    nic: &str,
    queues: &[QueueId],
    file: QueueFile,
    place: Place<'_>,
) -> String {
    match queues {
        [queue] => {
            let path = SettingFile::queue(nic, *queue, file).path();
            place.write(value, &word(&path), false)
        }
        _ => {
            let folder = word(&queues_folder(nic));
            place.write(value, &format!("{folder}/{}/{file}", braces(queues, file)), true)
        }
    }
}

/// `rx-{0..3}` of queues in a row, `rx-{0..6..2}` of even steps, `rx-{0,1,5}` of others.
pub(super) fn braces(queues: &[QueueId], file: QueueFile) -> String {
    let steps: Option<BTreeSet<u32>> = queues
        .windows(2)
        .map(|two| match two {
            [a, b] => b.0.checked_sub(a.0).filter(|step| *step > 0),
            _ => None,
        })
        .collect();
    let steps: Vec<u32> = steps.into_iter().flatten().collect();
    let numbers = match (queues, steps.as_slice()) {
        ([first, _, .., last], [1]) if queues.len() > 2 => format!("{first}..{last}"),
        ([first, _, .., last], [step]) if queues.len() > 2 => format!("{first}..{last}..{step}"),
        _ => queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    };
    format!("{}{{{numbers}}}", file.direction().queue_prefix())
}

/// The command of one change, or a comment.
fn command(change: &ProposedChange) -> String {
    match &change.target {
        Proposal::Setting(target) => setting(change, target),
        Proposal::Affinity { pid, tid: None } => {
            format!("taskset -acp {} {pid}", cpus(&change.after, Stride::Taskset))
        }
        Proposal::Affinity { tid: Some(tid), .. } => {
            format!("taskset -cp {} {tid}", cpus(&change.after, Stride::Taskset))
        }
        Proposal::Pages { pid } => {
            let from = change.before.as_ref().map_or_else(|| "all".to_owned(), value);
            format!("migratepages {pid} {from} {}", value(&change.after))
        }
        Proposal::Steering { protocol, port } => {
            let udp = if *protocol == SocketProtocol::Udp { " --udp" } else { "" };
            Place(change.netns.as_deref()).nearpath(&format!("steer --port {port}{udp}"))
        }
        Proposal::IrqbalanceBans => {
            let irqs = change.after.to_string();
            let irqs = ranges(irqs.split_ascii_whitespace().filter_map(|irq| irq.parse().ok()));
            format!("# 'nearpath tune apply' bans IRQs {irqs} through irqbalance's socket")
        }
    }
}

fn setting(change: &ProposedChange, target: &Target) -> String {
    let (place, after) = (Place(change.netns.as_deref()), value(&change.after));
    let by_tune = |why: &str| place.by_tune(why);
    match target {
        Target::File(file) => match file.of {
            FileOf::Sysctl(sysctl) => {
                place.run(&format!("sysctl -w {}", word(&format!("{sysctl}={}", change.after))))
            }
            FileOf::Interface { .. } => place.write(&after, &word(&file.path()), false),
            FileOf::Irq(_) => {
                format!("echo {} > {}", cpus(&change.after, Stride::Kernel), word(&file.path()))
            }
            _ => format!("echo {after} > {}", word(&file.path())),
        },
        Target::Nic(setting) => {
            let nic = word(&setting.nic);
            let option = match &setting.what {
                Ethtool::Channels => format!("-L {nic}"),
                Ethtool::Rings => format!("-G {nic}"),
                Ethtool::Coalesce => format!("-C {nic}"),
                Ethtool::Rss => format!("-X {nic}"),
                Ethtool::RssKey => format!("-X {nic} hkey"),
                Ethtool::Feature(name) => format!("-K {nic} {}", word(name)),
                Ethtool::Rule(_) => return by_tune("it adds an n-tuple rule"),
                Ethtool::Napi(_) => {
                    return by_tune("it sets parameters of a NAPI instance by netlink");
                }
            };
            match plain(&change.after) {
                Some(after) => place.run(&format!("ethtool {option} {after}")),
                None => by_tune("the value is not plain words"),
            }
        }
        Target::Unit(unit) if unit.property == UnitProperty::ActiveState => {
            let verb = if change.after.text() == Some("inactive") { "stop" } else { "start" };
            format!("systemctl {verb} {}", word(&unit.unit))
        }
        Target::Unit(unit) => {
            let property = word(&format!("{}={}", unit.property.name(), change.after));
            format!("systemctl set-property --runtime {} {property}", word(&unit.unit))
        }
        Target::Hugepages(pools) => {
            let counts = change.after.text().and_then(|text| text.parse::<PoolCounts>().ok());
            let Some(counts) = counts else { return by_tune("its value has no counts by node") };
            let echo =
                |(node, count)| format!("echo {count} > {}/nr_hugepages", pools.folder(node));
            counts.iter().map(echo).collect::<Vec<_>>().join("; ")
        }
        Target::Ovs(setting) => match change.after.text() {
            Some(after) => setting.command(after),
            None => by_tune("its value is not text"),
        },
        Target::Qdiscs(setting) => match change.after.to_string().parse::<QdiscTree>() {
            Ok(tree) => {
                let tc = |words: Vec<String>| place.run(&format!("tc {}", words.join(" ")));
                let all = tree.commands(&word(&setting.nic), false);
                all.into_iter().map(tc).collect::<Vec<_>>().join("; ")
            }
            Err(()) => by_tune("its value is not a tree of qdiscs"),
        },
        Target::VlanEgress(setting) => {
            let text = |value: &Value| value.text()?.parse::<EgressMap>().ok();
            let before = change.before.as_ref().and_then(text);
            let (Some(before), Some(after)) = (before, text(&change.after)) else {
                return by_tune("its value is not a map");
            };
            let (vlan, entries) = (word(&setting.vlan), before.entries_to(&after).join(" "));
            place.run(&format!("ip link set dev {vlan} type vlan egress-qos-map {entries}"))
        }
        Target::Memory(_) => by_tune("it moves pages in slices"),
        Target::Thread(_) => by_tune("it sets the affinity of one thread"),
        Target::Cpuset(_) => by_tune("it changes a cpuset"),
        Target::ConfigFile(_) => by_tune("it edits a file"),
        Target::Irqbalance(_) => by_tune("it uses irqbalance's socket"),
        Target::Xdp(_) => by_tune("it attaches an XDP program"),
        Target::ReuseportGroup(_) => by_tune("it attaches a program to sockets"),
    }
}

/// How a tool writes every other CPU.
#[derive(Clone, Copy)]
enum Stride {
    /// `0-126:1/2` (lib/bitmap-str.c).
    Kernel,
    /// `0-126:2` (taskset(1)).
    Taskset,
}

/// A cpulist as one word, with a stride where that is shorter.
fn cpus(value: &Value, how: Stride) -> String {
    let text = value.to_string();
    let stride = CpuSet::from_list(&text).ok().and_then(|cpus| cpus.stride());
    let short = stride.map(|(first, last, step)| match how {
        Stride::Kernel => format!("{first}-{last}:1/{step}"),
        Stride::Taskset => format!("{first}-{last}:{step}"),
    });
    word(&short.filter(|short| short.len() < text.len()).unwrap_or(text))
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
fn short_value(change: &ProposedChange, value: &Value) -> String {
    let text = value.to_string();
    match of_queue(&change.target) {
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

/// A command in lines of at most `width` columns, each but the last with a backslash at its end. Words are not split.
pub(super) fn wrapped(command: &str, width: usize) -> Vec<String> {
    if command.chars().count() <= width || command.starts_with('#') {
        return vec![command.to_owned()];
    }
    let mut words: Vec<String> = Vec::new();
    let mut quoted = false;
    for part in command.split(' ') {
        match words.last_mut() {
            Some(word) if quoted => *word = format!("{word} {part}"),
            _ => words.push(part.to_owned()),
        }
        quoted ^= part.matches('\'').count() % 2 == 1;
    }
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() + 3 <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            Some(line) => {
                line.push_str(" \\");
                lines.push(format!("  {word}"));
            }
            None => lines.push(word),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{IrqNumber, NicSetting, Sysctl, UnitSetting};

    fn change(target: impl Into<Proposal>, after: &str) -> ProposedChange {
        ProposedChange::new(target, Some("1".to_owned()), after, "")
    }

    fn of(changes: &[ProposedChange]) -> Vec<String> {
        commands(&changes.iter().collect::<Vec<_>>()).into_iter().map(|c| c.line).collect()
    }

    fn rps(nic: &str, queue: u32, after: &str) -> ProposedChange {
        change(SettingFile::queue(nic, QueueId(queue), QueueFile::RpsCpus), after)
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
        let even: Vec<_> = [0, 2, 4, 6].map(|queue| rps("eth0", queue, "f")).to_vec();
        assert_eq!(of(&even), [format!("echo f | tee {path}/rx-{{0..6..2}}/rps_cpus")]);
        let gaps: Vec<_> = [0, 2, 3].map(|queue| rps("eth0", queue, "f")).to_vec();
        assert_eq!(of(&gaps), [format!("echo f | tee {path}/rx-{{0,2,3}}/rps_cpus")]);
        // Another value, another interface.
        let mixed = [rps("eth0", 0, "f"), rps("eth0", 1, "0"), rps("eth1", 0, "f")];
        assert_eq!(of(&mixed).len(), 3);
    }

    #[test]
    fn each_setting_has_its_tool() {
        for (change, command) in [
            (change(Sysctl::BusyRead, "50"), "sysctl -w net.core.busy_read=50"),
            (
                change(Sysctl::TcpRmem, "4096 131072 6291456"),
                "sysctl -w 'net.ipv4.tcp_rmem=4096 131072 6291456'",
            ),
            (change(NicSetting::new("eth0", Ethtool::Rings), "rx 2048"), "ethtool -G eth0 rx 2048"),
            (change(NicSetting::new("eth0", Ethtool::Rss), "equal 4"), "ethtool -X eth0 equal 4"),
            (change(Proposal::Affinity { pid: 7, tid: None }, "0-3"), "taskset -acp 0-3 7"),
            (change(Proposal::Affinity { pid: 7, tid: Some(9) }, "2"), "taskset -cp 2 9"),
            (change(Proposal::Affinity { pid: 7, tid: None }, "0,2,4,6"), "taskset -acp 0-6:2 7"),
            (
                change(SettingFile::irq_affinity(IrqNumber(40)), "0,2,4,6"),
                "echo 0,2,4,6 > /proc/irq/40/smp_affinity_list",
            ),
            (
                change(SettingFile::irq_affinity(IrqNumber(40)), "0,2,4,6,8,10"),
                "echo 0-10:1/2 > /proc/irq/40/smp_affinity_list",
            ),
            (
                change(NicSetting::new("eth0", Ethtool::Feature("rx-gro".to_owned())), "on"),
                "ethtool -K eth0 rx-gro on",
            ),
            (
                change(SettingFile::from(FileOf::MigrationCost), "5"),
                "echo 5 > /sys/kernel/debug/sched/migration_cost_ns",
            ),
            (
                change(Target::Unit(UnitSetting::irqbalance()), "inactive"),
                "systemctl stop irqbalance.service",
            ),
            (
                change(Proposal::IrqbalanceBans, "30 31 32 40"),
                "# 'nearpath tune apply' bans IRQs 30-32,40 through irqbalance's socket",
            ),
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
        let rings = of(&[change(NicSetting::new("eth0", Ethtool::Rings), "rx $(reboot)")]).concat();
        assert!(rings.starts_with("# use 'nearpath tune apply'"), "{rings}");
    }

    /// On the host eth0 is another interface.
    #[test]
    fn commands_enter_the_namespace_of_what_they_change() {
        let of_netns = |netns: &str, change: ProposedChange| {
            let mut change = change;
            change.set_netns(netns);
            of(&[change]).concat()
        };
        let file = "/sys/class/net/eth0/queues/rx-0/rps_cpus";
        assert_eq!(
            of_netns("blue", rps("eth0", 0, "0")),
            format!("echo 0 | ip netns exec blue tee {file}")
        );
        assert_eq!(
            of_netns("pid:7", rps("eth0", 0, "0")),
            format!(
                "echo 0 | nsenter --net=/proc/7/ns/net unshare --mount sh -c \
                 'mount -t sysfs none /sys && exec tee \"$@\"' - {file}"
            )
        );
        let rings = || change(NicSetting::new("eth0", Ethtool::Rings), "rx 512");
        assert_eq!(of_netns("b c", rings()), "ip netns exec 'b c' ethtool -G eth0 rx 512");
        assert_eq!(
            of_netns("/run/netns/blue", change(Sysctl::Somaxconn, "4096")),
            "nsenter --net=/run/netns/blue sysctl -w net.core.somaxconn=4096"
        );
        let port = Proposal::Steering { protocol: SocketProtocol::Udp, port: 53 };
        assert_eq!(
            of_netns("blue", change(port, "")),
            "nearpath steer --port 53 --udp --netns blue"
        );
        let xdp = change(NicSetting::new("eth0", Ethtool::Rings), "rx $(reboot)");
        assert!(of_netns("blue", xdp).starts_with("# use 'nearpath tune apply --netns blue'"));
        // These are the host's.
        assert_eq!(
            of_netns("blue", change(SettingFile::irq_affinity(IrqNumber(7)), "0")),
            "echo 0 > /proc/irq/7/smp_affinity_list"
        );
        assert_eq!(
            of_netns("blue", change(Sysctl::BusyRead, "50")),
            "sysctl -w net.core.busy_read=50"
        );
    }

    #[test]
    fn values_before_stand_beside_the_command() {
        let was = |changes: &[ProposedChange]| {
            let commands = commands(&changes.iter().collect::<Vec<_>>());
            commands.into_iter().map(|command| command.was).collect::<Vec<_>>()
        };
        let before = |queue, before: Option<&str>| ProposedChange {
            before: before.map(|text| Value::Text(text.to_owned())),
            ..rps("eth0", queue, "0")
        };
        assert_eq!(was(&[before(0, Some("00000001")), before(1, Some("00000001"))]), ["1"]);
        assert_eq!(was(&[before(0, Some("1")), before(1, Some("00000002"))]), ["1, 2"]);
        assert_eq!(was(&[before(0, Some("1")), before(1, None)]), [""]);
    }

    #[test]
    fn long_commands_are_wrapped_where_a_shell_joins_them() {
        let long = "echo 55555555,55555555 | tee '/sys/class/net/a b/queues/rx-0/rps_cpus'";
        assert_eq!(wrapped(long, 100), [long]);
        let lines = wrapped(long, 50);
        assert_eq!(
            lines,
            ["echo 55555555,55555555 | tee \\", "  '/sys/class/net/a b/queues/rx-0/rps_cpus'"]
        );
    }
}
