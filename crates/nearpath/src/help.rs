//! Grouped help: commands by purpose, options by how often they are needed.
//!
//! Input: the command as its arguments define it. Output: the same with groups: `-h` shows only the common
//! options, `--help` also those that select packets and hosts, and the expert options last.

use clap::builder::{Resettable, Str};
use clap::{Arg, Command};
use std::fmt::Write as _;

/// The commands of each group, basic ones first.
const COMMANDS: &[(&str, &[&str])] = &[
    ("Look at a host", &["show", "snapshot"]),
    ("Measure packets", &["measure", "bench"]),
    ("Diagnose", &["diagnose", "top", "monitor", "record", "report", "fleet"]),
    ("Fix and tune the host", &["fix", "tune", "steer"]),
    ("Other commands", &["demo", "completions"]),
];

/// Options common to many commands, shown first in this order.
const FIRST: &[&str] = &["for", "interval", "dev", "nic", "port", "pid", "netns"];

/// Options shown last, and only in `--help`.
const EXPERT: &[&str] = &[
    "btf",
    "detail",
    "stages",
    "without",
    "max-overhead",
    "duty",
    "slow",
    "above",
    "outliers",
    "no-budgets",
    "channels",
    "priority",
    "schedule",
    "cpuset",
    "stop-irqbalance",
    "napi",
    "performance",
    "wakeup-latency",
    "move-memory",
    "hugepages",
    "sysctl",
    "reasons",
    "confirm-within",
    "late-after",
    "no-split",
    "txtime",
    "spin",
    "cbpf",
];

/// The command with grouped help.
pub fn grouped(command: Command) -> Command {
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{}\n{{options}}{{after-help}}",
        commands(&command),
        heading(&command, "Options"),
    );
    options(command).help_template(template)
}

fn heading(command: &Command, text: &str) -> String {
    let style = command.get_styles().get_header();
    format!("{style}{text}:{style:#}")
}

/// The grouped list of commands. A command without a group would not be shown; a test checks that.
fn commands(command: &Command) -> String {
    let literal = command.get_styles().get_literal();
    let names = COMMANDS.iter().flat_map(|(_, names)| names.iter());
    let width = names.map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (group, names) in COMMANDS {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", heading(command, group));
        for name in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = name.get_about().map(ToString::to_string).unwrap_or_default();
            let name = name.get_name();
            let _ = writeln!(text, "  {literal}{name:width$}{literal:#}  {about}");
        }
        text.push('\n');
    }
    text
}

/// Groups the options of a command and its subcommands.
fn options(command: Command) -> Command {
    command.mut_args(option).mut_subcommands(options)
}

fn option(arg: Arg) -> Arg {
    let Some(name) = arg.get_long().map(ToOwned::to_owned) else { return arg };
    if let Some(place) = FIRST.iter().position(|&first| first == name) {
        return arg.help_heading(Resettable::<Str>::Reset).display_order(place);
    }
    match name.as_str() {
        // Last before --help, which clap puts at 999.
        "json" => arg.help_heading(Resettable::<Str>::Reset).display_order(900),
        expert if EXPERT.contains(&expert) => {
            arg.help_heading("Expert options").display_order(100).hide_short_help(true)
        }
        _ if arg.get_help_heading().is_some() => arg.display_order(100).hide_short_help(true),
        _ => arg.display_order(100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// All commands, recursively.
    fn all(command: &Command) -> Vec<Command> {
        let below = command.get_subcommands().filter(|command| !command.is_hide_set());
        std::iter::once(command.clone()).chain(below.flat_map(all)).collect()
    }

    fn built() -> Command {
        let mut command = crate::command();
        command.build();
        command
    }

    #[test]
    fn each_command_is_in_one_group() {
        let command = built();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut shown: Vec<&str> = shown.map(Command::get_name).collect();
        let mut grouped: Vec<&str> =
            COMMANDS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(shown, grouped);
        let help = command.clone().render_help().to_string();
        for (group, names) in COMMANDS {
            let (_, after) = help.split_once(&format!("{group}:\n")).expect(group);
            let lines = after.lines().take_while(|line| !line.is_empty());
            let listed: Vec<&str> =
                lines.filter_map(|line| line.split_whitespace().next()).collect();
            assert_eq!(listed, *names);
        }
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }

    #[test]
    fn each_named_option_exists() {
        let commands = all(&built());
        let options: BTreeSet<&str> =
            commands.iter().flat_map(Command::get_arguments).filter_map(Arg::get_long).collect();
        for name in FIRST.iter().chain(EXPERT) {
            assert!(options.contains(name), "no command has --{name}");
        }
    }

    #[test]
    fn short_help_fits_on_a_screen_and_long_help_has_every_option() {
        for mut command in all(&built()) {
            let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
            let short = command.clone().term_width(100).render_help().to_string();
            let lines = short.lines().count();
            assert!(lines <= 40, "{name} -h has {lines} lines:\n{short}");
            assert!(!short.contains("Expert options"), "{name}:\n{short}");
            let long = command.render_long_help().to_string();
            for option in command.get_arguments().filter_map(Arg::get_long) {
                assert!(long.contains(&format!("--{option}")), "{name} --help lacks --{option}");
            }
        }
    }

    /// The options of each heading. (A heading of a flattened structure is also that of all fields after it, as clap
    /// derives them, until one has another or none: `next_help_heading`.)
    const HEADINGS: &[(&str, &[&str])] = &[
        ("Recording", &["recording", "at", "from", "to", "hostname"]),
        ("Host", &["root", "snapshot"]),
        (
            "Packet filter",
            &["direction", "dport", "dst", "host", "proto", "sample", "sport", "src"],
        ),
        ("Grouping", &["per", "sort", "top"]),
        ("Processes", &["all", "cgroup", "comm", "thp", "unit"]),
        ("Probes", &["probe", "probe-rate", "probe-connections", "probe-tcp", "request"]),
        ("Threads and sockets", &["cpus", "busy-poll", "dscp", "cbpf"]),
    ];

    #[test]
    fn each_heading_has_its_own_options() {
        for command in all(&built()) {
            for option in command.get_arguments() {
                let (Some(heading), Some(name)) = (option.get_help_heading(), option.get_long())
                else {
                    continue;
                };
                if let Some((_, options)) = HEADINGS.iter().find(|(its, _)| *its == heading) {
                    let command = command.get_display_name().unwrap_or(command.get_name());
                    assert!(options.contains(&name), "{command}: --{name} below '{heading}'");
                }
                assert_ne!(name, "json", "below '{heading}'");
            }
        }
    }

    #[test]
    fn expert_options_come_last() {
        // clap orders headings by the first field of each: a structure has its expert options last.
        let mut early = Vec::new();
        for mut command in all(&built()) {
            let help = command.render_long_help().to_string();
            let place = |heading: &str| help.find(&format!("\n{heading}:\n"));
            let Some(expert) = place("Expert options") else { continue };
            let headings: BTreeSet<&str> =
                command.get_arguments().filter_map(Arg::get_help_heading).collect();
            let after =
                headings.into_iter().filter(|its| place(its).is_none_or(|place| place > expert));
            let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
            early.extend(
                after.map(|heading| format!("{name}: '{heading}' comes after the expert options")),
            );
        }
        assert!(early.is_empty(), "{}", early.join("\n"));
        let mut commands = all(&built());
        let stages = commands.iter_mut().find(|command| command.get_name() == "stages").unwrap();
        let help = stages.render_long_help().to_string();
        let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("no {text}: {help}"));
        assert!(place("--for") < place("--json"));
        assert!(place("--json") < place("Packet filter:"));
        assert!(place("Packet filter:") < place("Expert options:"));
        assert!(place("Expert options:") < place("--max-overhead"));
    }
}
