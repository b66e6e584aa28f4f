//! N-tuple rules (`ethtool -N`), each at its location in the NIC's table.
//!
//! Input: a rule as text: the flow type, the match (`value` or `value/mask`; set mask bits are compared, unlike in ethtool),
//! and the action: `ether vlan 40960/0xe000 queue 2`, `tcp4 dst-port 443 drop`; or `none`. A rule that the syntax cannot
//! express exactly is given as bytes (`raw …`), so that the original can always be restored.

use super::{NicSetting, failure};
use crate::TuneError;
use crate::setting::Setting;
use nearpath_host::ethtool::{FlowSpec, Ioctl, rule_of, rxnfc, spec_of};
use nearpath_model::{NtupleRule, QueueId};
use std::io;

/// The value of a location without a rule.
pub(super) const NONE: &str = "none";

const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
const FLOW_RSS: u32 = 0x2000_0000;
/// The longest rule has its 168 bytes in hexadecimal.
const MAX_TEXT: usize = 1024;

/// The table of rules of an interface.
pub(super) trait Rules {
    /// The locations in use.
    fn locations(&self) -> io::Result<Vec<u32>>;
    /// The rule at a location, and its RSS context.
    fn rule(&self, location: u32) -> io::Result<(FlowSpec, u32)>;
    /// Inserts a rule at its location.
    fn insert(&self, rule: &FlowSpec, context: u32) -> io::Result<()>;
    /// Deletes the rule at a location.
    fn delete(&self, location: u32) -> io::Result<()>;
}

/// That of the kernel.
pub(super) struct OfKernel<'a> {
    nic: &'a str,
}

impl OfKernel<'_> {
    fn ask(&self, cmd: u32, rule: FlowSpec, context: u32) -> io::Result<()> {
        let mut request = rxnfc::<1>(cmd);
        request.spec = rule;
        request.count = context;
        // SAFETY: for these commands the kernel reads and writes one `struct ethtool_rxnfc`.
        unsafe { Ioctl::open()?.ask(self.nic, &raw mut *request) }
    }
}

impl Rules for OfKernel<'_> {
    fn locations(&self) -> io::Result<Vec<u32>> {
        Ioctl::open()?.rule_locations(self.nic)
    }

    fn rule(&self, location: u32) -> io::Result<(FlowSpec, u32)> {
        Ioctl::open()?.rule_at(self.nic, location)
    }

    fn insert(&self, rule: &FlowSpec, context: u32) -> io::Result<()> {
        self.ask(ETHTOOL_SRXCLSRLINS, rule.clone(), context)
    }

    fn delete(&self, location: u32) -> io::Result<()> {
        self.ask(ETHTOOL_SRXCLSRLDEL, FlowSpec { location, ..FlowSpec::default() }, 0)
    }
}

/// The rule at a location.
pub(super) struct RuleSetting<'a, R> {
    target: &'a NicSetting,
    location: u32,
    rules: R,
}

impl<'a> RuleSetting<'a, OfKernel<'a>> {
    pub fn live(target: &'a NicSetting, location: u32) -> Self {
        Self { target, location, rules: OfKernel { nic: &target.nic } }
    }
}

impl<R: Rules> Setting for RuleSetting<'_, R> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        if value == NONE || parse(self.location, value).is_some() {
            return Ok(());
        }
        Err(TuneError::Refused(format!("{}: {value:?} is not a rule", self.target)))
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let locations = self.rules.locations();
        let Some(locations) = failure::answer(self.target, locations)? else { return Ok(None) };
        if !locations.contains(&self.location) {
            return Ok(Some(NONE.to_owned()));
        }
        let rule = failure::answer(self.target, self.rules.rule(self.location))?;
        Ok(rule.map(|(spec, context)| text(&spec, context)))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        let refused = |error: io::Error| {
            failure::refusal(format!("setting {} to {value}", self.target), &error, None)
        };
        let there = self.rules.locations().map_err(refused)?.contains(&self.location);
        if there {
            self.rules.delete(self.location).map_err(refused)?;
        }
        match parse(self.location, value) {
            None => Ok(()),
            Some((spec, context)) => self.rules.insert(&spec, context).map_err(refused),
        }
    }

    fn same(&self, a: &str, b: &str) -> bool {
        match (parse(self.location, a), parse(self.location, b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        }
    }
}

/// A rule as text, or as bytes if the syntax cannot express it exactly.
fn text(spec: &FlowSpec, context: u32) -> String {
    let rule = rule_of(spec, context);
    let context = if spec.flow_type & FLOW_RSS == 0 { 0 } else { context };
    if spec_of(&rule).as_ref() == Some(&(spec.clone(), context)) {
        return words(&rule);
    }
    let (flow_type, cookie) = (spec.flow_type.to_be_bytes(), spec.ring_cookie.to_be_bytes());
    let context = context.to_be_bytes();
    let fields: [&[u8]; 7] =
        [&flow_type, &spec.value, &spec.value_ext, &spec.mask, &spec.mask_ext, &cookie, &context];
    let hexadecimal: String = fields.concat().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("raw {hexadecimal}")
}

/// A rule in words.
pub(super) fn words(rule: &NtupleRule) -> String {
    let mut words = vec![rule.flow_type.clone()];
    let wakes = rule.matches.contains_key("action");
    let compared = rule.matches.iter().filter(|(word, _)| *word != "action");
    words.extend(compared.map(|(word, value)| format!("{word} {value}")));
    words.push(match rule.queue {
        Some(queue) => format!("queue {queue}"),
        None if wakes => "wake".to_owned(),
        None => "drop".to_owned(),
    });
    words.join(" ")
}

/// The rule of a text, and its RSS context.
fn parse(location: u32, text: &str) -> Option<(FlowSpec, u32)> {
    if text.len() > MAX_TEXT || !text.is_ascii() {
        return None;
    }
    if let Some(bytes) = text.strip_prefix("raw ") {
        return raw(location, bytes);
    }
    let mut words: Vec<&str> = text.split(' ').collect();
    let mut rule = NtupleRule {
        location,
        flow_type: words.first()?.to_string(),
        matches: [].into(),
        queue: None,
    };
    words.remove(0);
    match words.pop()? {
        "drop" => {}
        "wake" => drop(rule.matches.insert("action".to_owned(), "-2".to_owned())),
        queue if words.pop()? == "queue" => rule.queue = Some(QueueId(queue.parse().ok()?)),
        _ => return None,
    }
    for pair in words.chunks(2) {
        let [word, value] = pair else { return None };
        if *word == "action"
            || rule.matches.insert((*word).to_owned(), (*value).to_owned()).is_some()
        {
            return None;
        }
    }
    spec_of(&rule)
}

/// Parses any text as a rule; a valid one must round-trip.
pub(super) fn fuzzing(value: &str) {
    if let Some((spec, context)) = parse(7, value) {
        assert_eq!(parse(7, &text(&spec, context)), Some((spec, context)));
    }
    let _ = words_of_ethtool(7, value);
}

/// The rule of its bytes.
fn raw(location: u32, hexadecimal: &str) -> Option<(FlowSpec, u32)> {
    let pairs = hexadecimal.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let plain = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
        plain.then(|| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).flatten()
    };
    let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
    let mut bytes = bytes?.into_iter();
    let mut spec = FlowSpec { location, ..FlowSpec::default() };
    spec.flow_type = u32::from_be_bytes(take(&mut bytes)?);
    spec.value = take(&mut bytes)?;
    spec.value_ext = take(&mut bytes)?;
    spec.mask = take(&mut bytes)?;
    spec.mask_ext = take(&mut bytes)?;
    spec.ring_cookie = u64::from_be_bytes(take(&mut bytes)?);
    let context = u32::from_be_bytes(take(&mut bytes)?);
    // Only a rule with an RSS context has one: some kernels leave the field unset.
    let is_told = spec.flow_type & FLOW_RSS != 0 || context == 0;
    (bytes.next().is_none() && is_told).then_some((spec, context))
}

fn take<const N: usize>(bytes: &mut impl Iterator<Item = u8>) -> Option<[u8; N]> {
    let all: Vec<u8> = bytes.take(N).collect();
    all.try_into().ok()
}

/// The arguments after `ethtool -N NIC` that set a rule; `None` if ethtool cannot express it.
pub(super) fn words_of_ethtool(location: u32, text: &str) -> Option<Vec<String>> {
    let (spec, context) = parse(location, text)?;
    let rule = rule_of(&spec, context);
    if spec_of(&rule) != Some((spec, context)) {
        return None;
    }
    let mut words = vec!["flow-type".to_owned(), rule.flow_type.clone()];
    for (word, value) in &rule.matches {
        match (word.as_str(), value.split_once('/')) {
            ("action", _) => {}
            (_, None) => words.extend([word.clone(), value.clone()]),
            // A mask bit that is compared in nearpath and the kernel is ignored in ethtool.
            (_, Some((value, mask))) => {
                let mask = inverted(word, mask)?;
                words.extend([word.clone(), value.to_owned(), "m".to_owned(), mask]);
            }
        }
    }
    let (word, action) = match rule.queue {
        Some(queue) if rule.matches.contains_key("vf") => ("queue", queue.to_string()),
        Some(queue) => ("action", queue.to_string()),
        None if rule.matches.contains_key("action") => ("action", "-2".to_owned()),
        None => ("action", "-1".to_owned()),
    };
    words.extend([word.to_owned(), action, "loc".to_owned(), location.to_string()]);
    Some(words)
}

/// The inverted mask of a field.
fn inverted(field: &str, mask: &str) -> Option<String> {
    if let Some(digits) = mask.strip_prefix("0x") {
        let width = match field {
            "tos" | "tclass" | "l4proto" => 8,
            "l4data" | "spi" => 32,
            "user-def" => 64,
            _ => 16,
        };
        let bits = u64::from_str_radix(digits, 16).ok()?;
        return Some(format!("{:#x}", !bits & (u64::MAX >> (64 - width))));
    }
    if let Ok(v4) = mask.parse::<std::net::Ipv4Addr>() {
        return Some(std::net::Ipv4Addr::from_bits(!v4.to_bits()).to_string());
    }
    if let Ok(v6) = mask.parse::<std::net::Ipv6Addr>() {
        return Some(std::net::Ipv6Addr::from_bits(!v6.to_bits()).to_string());
    }
    let part = |part: &str| u8::from_str_radix(part, 16).ok().map(|byte| format!("{:02x}", !byte));
    mask.split(':').map(part).collect::<Option<Vec<_>>>().map(|parts| parts.join(":"))
}

#[cfg(test)]
mod tests;
