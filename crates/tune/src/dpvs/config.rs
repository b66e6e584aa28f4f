//! A configuration as DPVS holds it after reading the file: devices, bonds and workers, in the order of the file.
//!
//! Input: the bytes of the file. Output: a [`Config`], and the problems of single statements. Blocks are followed as
//! `process_stream` does it (src/parser.c): a block begins with its keyword, whether or not `{` follows; an unknown
//! keyword begins none, so that its `}` ends the block around it.

use super::keywords::{Keyword, ROOT, Takes};
use super::problems::{Problems, word};
use super::statements::{self, Statement};
use super::text::{self, Lines, Tokens};
use super::{DpvsOptions, DpvsVersion};
use std::collections::BTreeSet;

/// Devices, bonds and workers of a file.
#[derive(Debug, Default)]
pub(super) struct Config {
    pub devices: Vec<Device>,
    pub bonds: Vec<Bond>,
    pub workers: Vec<Worker>,
    /// The line of `worker_defs`.
    pub workers_line: Option<u32>,
    /// The line of `netif_defs`.
    pub netif_line: Option<u32>,
    /// DPVS's `g_kni_lcore_id`: the `cpu_id` of a worker that was of type kni by then; 0 is none.
    pub kni_lcore: i32,
    /// The names of all devices so far.
    pub device_names: BTreeSet<String>,
    /// Reading the file ends DPVS, so that nothing after it matters.
    pub is_aborted: bool,
}

#[derive(Debug)]
pub(super) struct Device {
    pub name: String,
    pub line: u32,
    /// `queue_number` and its line.
    pub rx_queues: Option<(i32, u32)>,
    pub tx_queues: Option<(i32, u32)>,
}

#[derive(Debug)]
pub(super) struct Bond {
    pub name: String,
    pub line: u32,
    pub mode: i32,
    pub slaves: Vec<(String, u32)>,
    pub primary: Option<(String, u32)>,
    pub has_node: bool,
}

/// The type of a worker as DPVS stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// No `type` was read.
    None,
    Master,
    Slave,
    Kni,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub name: String,
    pub line: u32,
    pub kind: Type,
    /// `cpu_id` and its line.
    pub lcore: Option<(i32, u32)>,
    /// Its id became DPVS's KNI lcore.
    pub is_kni_lcore: bool,
    pub ports: Vec<WorkerPort>,
}

#[derive(Debug)]
pub(super) struct WorkerPort {
    pub name: String,
    pub line: u32,
    pub rx: Vec<u32>,
    pub rx_line: Option<u32>,
    pub tx: Vec<u32>,
    pub tx_line: Option<u32>,
    /// Isolated receivers by the position of the receive queue.
    pub isolated: Vec<Option<u32>>,
    pub isolated_line: Option<u32>,
    /// The size of their rings as written.
    pub ring: Option<(i32, u32)>,
}

impl WorkerPort {
    pub(super) fn new(name: String, line: u32) -> Self {
        Self {
            name,
            line,
            rx: Vec::new(),
            rx_line: None,
            tx: Vec::new(),
            tx_line: None,
            isolated: Vec::new(),
            isolated_line: None,
            ring: None,
        }
    }

    /// The isolated receivers that DPVS uses, each with its receive queue.
    pub(super) fn receivers(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.rx.iter().zip(&self.isolated).filter_map(|(queue, id)| Some(((*id)?, *queue)))
    }
}

/// Reads a file.
pub(super) fn read(file: &[u8], options: &DpvsOptions, problems: &mut Problems) -> Config {
    let DpvsOptions { nodes, version, .. } = *options;
    let mut config = Config::default();
    let mut blocks: Vec<&'static [Keyword]> = vec![ROOT];
    for line in Lines::new(file) {
        let at = Some(line.number);
        if line.is_cut {
            problems.changed(
                at,
                "line_too_long",
                "the line is longer than DPVS's buffer of 1,024 bytes: the rest is read as a line of its own, \
                 even of a comment"
                    .to_owned(),
                "shorten the line",
            );
        }
        let tokens = match text::tokens(line.text) {
            Tokens::Blank => continue,
            Tokens::Crash => {
                problems.refused(
                    at,
                    "attribute_only",
                    "the line consists of an attribute (<…>) only: DPVS crashes (an attribute ends with the next \
                     '>', so <init> needs a blank after it)"
                        .to_owned(),
                    "write the statement after the attribute and a blank, or make the line a comment",
                );
                config.is_aborted = true;
                return config;
            }
            Tokens::Some(tokens) => tokens,
        };
        let Some((&first, values)) = tokens.split_first() else { continue };
        if first == b"include" && tokens.len() == 2 {
            problems.note(
                at,
                "include_not_read",
                format!("the included file {} was not read", word(values.concat().as_slice())),
                "check a copy of the file with the included one in place of this line",
            );
            continue;
        }
        if line.is_unterminated {
            if first != b"}" {
                problems.changed(
                    at,
                    "last_line_not_read",
                    "the file does not end with a newline: DPVS does not read its last line"
                        .to_owned(),
                    "end the file with a newline",
                );
            }
            break;
        }
        if first == b"}" && blocks.len() > 1 {
            blocks.pop();
            extra(values, line.number, problems);
            continue;
        }
        let keywords = blocks.last().copied().unwrap_or(ROOT);
        let named = keywords.iter().find(|keyword| keyword.name.as_bytes() == first);
        let Some(keyword) = named.filter(|keyword| keyword.is_in(version)) else {
            unknown(&tokens, named, version, line.number, problems);
            continue;
        };
        let statement = Statement { keyword, line: line.number, tokens: &tokens };
        if !check_values(&statement, problems) {
            config.is_aborted = true;
            return config;
        }
        statements::apply(&statement, &mut config, nodes, problems);
        if !keyword.below.is_empty() {
            blocks.push(keyword.below);
        }
    }
    config
}

/// Whether a statement has the values that DPVS needs; reports those that it ignores.
fn check_values(statement: &Statement<'_>, problems: &mut Problems) -> bool {
    let Statement { keyword, line, tokens } = *statement;
    let is_quoted = tokens.get(1).is_some_and(|token| *token == b"\"");
    let has_value = match keyword.takes {
        Takes::Nothing | Takes::List => true,
        Takes::Name => tokens.len() > 1,
        Takes::Value | Takes::Values => text::value(tokens).is_some(),
    };
    if !has_value {
        problems.refused(
            Some(line),
            "missing_value",
            format!("{} has no value: DPVS aborts", keyword.name),
            "write the value on the same line, or remove the statement",
        );
        return false;
    }
    let used = match keyword.takes {
        Takes::List | Takes::Values => tokens.len(),
        Takes::Nothing => 1,
        Takes::Value if is_quoted => tokens.len(),
        Takes::Value | Takes::Name => 2,
    };
    let mut rest = tokens.get(used..).unwrap_or_default();
    if let (Some((&b"{", after)), false) = (rest.split_first(), keyword.below.is_empty()) {
        rest = after;
    }
    extra(rest, line, problems);
    if keyword.takes == Takes::Name && tokens.get(1).is_some_and(|name| *name == b"{") {
        problems.changed(
            Some(line),
            "missing_name",
            format!("{} has no name: DPVS takes the brace for it", keyword.name),
            "write a name before the brace",
        );
    }
    true
}

/// Words after a statement, which DPVS ignores: a statement that was meant is lost.
fn extra(rest: &[&[u8]], line: u32, problems: &mut Problems) {
    let Some(&first) = rest.first() else { return };
    let is_meant = rest.iter().any(|token| is_brace(token) || is_keyword(token, ROOT));
    if is_meant {
        problems.changed(
            Some(line),
            "statement_ignored",
            format!("DPVS reads one statement a line: {} and what follows is ignored", word(first)),
            "write it on a line of its own",
        );
    } else {
        problems.note(
            Some(line),
            "words_ignored",
            format!("DPVS ignores {} and what follows on this line", word(first)),
            "begin a comment with # or !",
        );
    }
}

/// A statement whose keyword this release does not know here; `named` is that of another release.
fn unknown(
    tokens: &[&[u8]],
    named: Option<&Keyword>,
    version: DpvsVersion,
    line: u32,
    problems: &mut Problems,
) {
    let first = tokens.first().copied().unwrap_or_default();
    if first.starts_with(b"}") {
        if tokens.len() > 1 || first.len() > 1 {
            extra(tokens, line, problems);
        }
        return;
    }
    if tokens == [b"{"] {
        // On a line of its own it is unknown, too, and nothing is lost: the keyword above began the block.
        return;
    }
    let opens = tokens.last().is_some_and(|token| *token == b"{");
    let block = if opens {
        "; what is inside of its braces is read as if outside, and its } ends the block around it"
    } else {
        ""
    };
    let since = named.and_then(|named| named.since).filter(|since| version < *since);
    let until = named.and_then(|named| named.until).filter(|until| version > *until);
    let (who, other) = match (since, until) {
        (Some(since), _) => (format!(" {version}"), format!(" (known since {since})")),
        (_, Some(until)) => (format!(" {version}"), format!(" (known until {until})")),
        _ => (String::new(), String::new()),
    };
    problems.changed(
        Some(line),
        "unknown_keyword",
        format!("DPVS{who} does not know {} here{other}, warns and ignores it{block}", word(first)),
        "correct or remove it; see conf/dpvs.conf.items of DPVS for where a keyword belongs",
    );
}

fn is_brace(token: &[u8]) -> bool {
    token.contains(&b'{') || token.contains(&b'}')
}

fn is_keyword(token: &[u8], keywords: &[Keyword]) -> bool {
    let is =
        |keyword: &Keyword| keyword.name.as_bytes() == token || is_keyword(token, keyword.below);
    keywords.iter().any(is)
}
