//! N-tuple rules in ethtool's keywords, from `struct ethtool_rx_flow_spec` (include/uapi/linux/ethtool.h). Set
//! bits in a mask are compared.

use nearpath_model::{NtupleRule, QueueId};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of `union ethtool_flow_union`.
pub const FLOW_BYTES: usize = 52;
/// Bytes of `struct ethtool_flow_ext`.
pub const EXT_BYTES: usize = 20;

/// `struct ethtool_rx_flow_spec`.
#[repr(C)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowSpec {
    /// The flow type, and which extensions are used.
    pub flow_type: u32,
    /// Values of the header fields, in network byte order.
    pub value: [u8; FLOW_BYTES],
    /// The same for `struct ethtool_flow_ext`.
    pub value_ext: [u8; EXT_BYTES],
    /// Masks of the header fields.
    pub mask: [u8; FLOW_BYTES],
    /// The same for `struct ethtool_flow_ext`.
    pub mask_ext: [u8; EXT_BYTES],
    /// The destination.
    pub ring_cookie: u64,
    /// The location in the NIC's table.
    pub location: u32,
}

impl Default for FlowSpec {
    fn default() -> Self {
        Self {
            flow_type: 0,
            value: [0; FLOW_BYTES],
            value_ext: [0; EXT_BYTES],
            mask: [0; FLOW_BYTES],
            mask_ext: [0; EXT_BYTES],
            ring_cookie: 0,
            location: 0,
        }
    }
}

const FLOW_EXT: u32 = 0x8000_0000;
const FLOW_MAC_EXT: u32 = 0x4000_0000;
const FLOW_RSS: u32 = 0x2000_0000;
const RX_CLS_FLOW_DISC: u64 = u64::MAX;
const RX_CLS_FLOW_WAKE: u64 = u64::MAX - 1;

/// Text format of a field.
#[derive(Debug, Clone, Copy)]
enum Form {
    Ip,
    Mac,
    Decimal,
    Hexadecimal,
}

/// ethtool's keyword, offset, length in bytes, format.
type Field = (&'static str, usize, usize, Form);

const TCP4: &[Field] = &[
    ("src-ip", 0, 4, Form::Ip),
    ("dst-ip", 4, 4, Form::Ip),
    ("src-port", 8, 2, Form::Decimal),
    ("dst-port", 10, 2, Form::Decimal),
    ("tos", 12, 1, Form::Hexadecimal),
];
const ESP4: &[Field] = &[
    ("src-ip", 0, 4, Form::Ip),
    ("dst-ip", 4, 4, Form::Ip),
    ("spi", 8, 4, Form::Hexadecimal),
    ("tos", 12, 1, Form::Hexadecimal),
];
const IP4: &[Field] = &[
    ("src-ip", 0, 4, Form::Ip),
    ("dst-ip", 4, 4, Form::Ip),
    ("l4data", 8, 4, Form::Hexadecimal),
    ("tos", 12, 1, Form::Hexadecimal),
    ("l4proto", 14, 1, Form::Decimal),
];
const TCP6: &[Field] = &[
    ("src-ip", 0, 16, Form::Ip),
    ("dst-ip", 16, 16, Form::Ip),
    ("src-port", 32, 2, Form::Decimal),
    ("dst-port", 34, 2, Form::Decimal),
    ("tclass", 36, 1, Form::Hexadecimal),
];
const ESP6: &[Field] = &[
    ("src-ip", 0, 16, Form::Ip),
    ("dst-ip", 16, 16, Form::Ip),
    ("spi", 32, 4, Form::Hexadecimal),
    ("tclass", 36, 1, Form::Hexadecimal),
];
const IP6: &[Field] = &[
    ("src-ip", 0, 16, Form::Ip),
    ("dst-ip", 16, 16, Form::Ip),
    ("l4data", 32, 4, Form::Hexadecimal),
    ("tclass", 36, 1, Form::Hexadecimal),
    ("l4proto", 37, 1, Form::Decimal),
];
const ETHER: &[Field] =
    &[("dst", 0, 6, Form::Mac), ("src", 6, 6, Form::Mac), ("proto", 12, 2, Form::Hexadecimal)];
const EXT: &[Field] = &[
    ("vlan-etype", 8, 2, Form::Hexadecimal),
    ("vlan", 10, 2, Form::Decimal),
    ("user-def", 12, 8, Form::Hexadecimal),
];
const MAC_EXT: &[Field] = &[("dst-mac", 2, 6, Form::Mac)];

/// Number, ethtool's keyword, fields.
const FLOW_TYPES: &[(u32, &str, &[Field])] = &[
    (0x01, "tcp4", TCP4),
    (0x02, "udp4", TCP4),
    (0x03, "sctp4", TCP4),
    (0x05, "tcp6", TCP6),
    (0x06, "udp6", TCP6),
    (0x07, "sctp6", TCP6),
    (0x09, "ah4", ESP4),
    (0x0a, "esp4", ESP4),
    (0x0b, "ah6", ESP6),
    (0x0c, "esp6", ESP6),
    (0x0d, "ip4", IP4),
    (0x0e, "ip6", IP6),
    (0x12, "ether", ETHER),
];

/// The rule as text. `context` is the RSS context, if the rule's destination is one.
pub fn rule(spec: &FlowSpec, context: u32) -> NtupleRule {
    let number = spec.flow_type & !(FLOW_EXT | FLOW_MAC_EXT | FLOW_RSS);
    let known = FLOW_TYPES.iter().find(|(n, _, _)| *n == number);
    // An unknown type is shown by its number, with no known fields.
    let (flow_type, fields) =
        known.map_or(("", [].as_slice()), |(_, word, fields)| (*word, *fields));
    let mut matches = BTreeMap::new();
    add(&mut matches, fields, &spec.value, &spec.mask);
    if spec.flow_type & FLOW_EXT != 0 {
        add(&mut matches, EXT, &spec.value_ext, &spec.mask_ext);
    }
    if spec.flow_type & FLOW_MAC_EXT != 0 {
        add(&mut matches, MAC_EXT, &spec.value_ext, &spec.mask_ext);
    }
    if spec.flow_type & FLOW_RSS != 0 {
        matches.insert("context".to_owned(), context.to_string());
    }
    NtupleRule {
        location: spec.location,
        flow_type: match flow_type {
            "" => format!("type {:#x}", spec.flow_type),
            word => word.to_owned(),
        },
        queue: queue(spec.ring_cookie, &mut matches),
        matches,
    }
}

/// The queue of the rule's destination. Another destination (a virtual function, wake-on-LAN) is added to
/// `matches` under ethtool's keyword.
fn queue(cookie: u64, matches: &mut BTreeMap<String, String>) -> Option<QueueId> {
    match cookie {
        RX_CLS_FLOW_DISC => None,
        RX_CLS_FLOW_WAKE => {
            matches.insert("action".to_owned(), "-2".to_owned());
            None
        }
        cookie => {
            // ethtool_get_flow_spec_ring_vf(): the function's number plus one; 0 is the NIC.
            if let Some(function) = ((cookie >> 32) & 0xff).checked_sub(1) {
                matches.insert("vf".to_owned(), function.to_string());
            }
            u32::try_from(cookie & 0xffff_ffff).ok().map(QueueId)
        }
    }
}

/// Parses a rule and its RSS context from its text; the inverse of [`rule`]. `None` if a keyword or a number is
/// invalid.
pub fn spec(rule: &NtupleRule) -> Option<(FlowSpec, u32)> {
    let (number, _, fields) = FLOW_TYPES.iter().find(|(_, word, _)| *word == rule.flow_type)?;
    let mut spec = FlowSpec { flow_type: *number, location: rule.location, ..FlowSpec::default() };
    spec.ring_cookie = rule.queue.map_or(RX_CLS_FLOW_DISC, |queue| u64::from(queue.0));
    let mut context = 0;
    for (word, text) in &rule.matches {
        let in_table = |fields: &[Field]| fields.iter().find(|field| field.0 == word).copied();
        match word.as_str() {
            "action" if text == "-2" && rule.queue.is_none() => spec.ring_cookie = RX_CLS_FLOW_WAKE,
            "vf" => {
                let function: u8 = text.parse().ok()?;
                rule.queue?;
                spec.ring_cookie |= u64::from(function.checked_add(1)?) << 32;
            }
            "context" => {
                context = text.parse().ok()?;
                spec.flow_type |= FLOW_RSS;
            }
            _ => {
                let (field, value, mask) = if let Some(field) = in_table(fields) {
                    (field, spec.value.as_mut_slice(), spec.mask.as_mut_slice())
                } else {
                    let (field, flag) = in_table(EXT)
                        .map(|field| (field, FLOW_EXT))
                        .or_else(|| Some((in_table(MAC_EXT)?, FLOW_MAC_EXT)))?;
                    spec.flow_type |= flag;
                    (field, spec.value_ext.as_mut_slice(), spec.mask_ext.as_mut_slice())
                };
                put(field, text, value, mask)?;
            }
        }
    }
    Some((spec, context))
}

/// Stores a field and its mask; `None` if they do not fit.
fn put(field: Field, text: &str, value: &mut [u8], mask: &mut [u8]) -> Option<()> {
    let (_, offset, bytes, form) = field;
    let range = offset..offset.checked_add(bytes)?;
    let (value, mask) = (value.get_mut(range.clone())?, mask.get_mut(range)?);
    match text.split_once('/') {
        None => mask.fill(0xff),
        Some((_, text)) => read(text, form, mask)?,
    }
    read(text.split('/').next()?, form, value)
}

/// A field's text in network byte order.
fn read(text: &str, form: Form, into: &mut [u8]) -> Option<()> {
    match form {
        Form::Ip if into.len() == 4 => {
            into.copy_from_slice(&text.parse::<Ipv4Addr>().ok()?.octets());
        }
        Form::Ip => into.copy_from_slice(&text.parse::<Ipv6Addr>().ok()?.octets()),
        Form::Mac => {
            let mut parts = text.split(':');
            for byte in into {
                *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
            }
            return parts.next().is_none().then_some(());
        }
        Form::Decimal | Form::Hexadecimal => {
            let number = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok()?,
                None => text.parse().ok()?,
            };
            let bytes = number.to_be_bytes();
            let (high, low) = bytes.split_at_checked(bytes.len().checked_sub(into.len())?)?;
            if high.iter().any(|byte| *byte != 0) {
                return None;
            }
            into.copy_from_slice(low);
        }
    }
    Some(())
}

fn add(matches: &mut BTreeMap<String, String>, fields: &[Field], value: &[u8], mask: &[u8]) {
    for &(word, offset, bytes, form) in fields {
        let range = offset..offset.saturating_add(bytes);
        let (Some(value), Some(mask)) = (value.get(range.clone()), mask.get(range)) else {
            continue;
        };
        if mask.iter().all(|byte| *byte == 0) {
            continue;
        }
        let mut text = write(value, form);
        if mask.iter().any(|byte| *byte != 0xff) {
            text.push('/');
            // The mask of a number is a bit pattern, in whatever base the number is written.
            let form = if matches!(form, Form::Decimal) { Form::Hexadecimal } else { form };
            text.push_str(&write(mask, form));
        }
        matches.insert(word.to_owned(), text);
    }
}

/// A field in network byte order as text.
fn write(bytes: &[u8], form: Form) -> String {
    let number = bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    match form {
        Form::Ip => match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
            (Ok(v4), _) => Ipv4Addr::from(v4).to_string(),
            (_, Ok(v6)) => Ipv6Addr::from(v6).to_string(),
            _ => String::new(),
        },
        Form::Mac => bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":"),
        Form::Decimal => number.to_string(),
        Form::Hexadecimal => format!("{number:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rule: &NtupleRule) -> Vec<String> {
        rule.matches.iter().map(|(word, value)| format!("{word} {value}")).collect()
    }

    #[test]
    fn tcp4_with_a_masked_address_and_a_vlan() {
        let mut spec =
            FlowSpec { flow_type: 0x01 | FLOW_EXT, location: 1022, ..Default::default() };
        spec.value[..4].copy_from_slice(&[10, 1, 0, 0]);
        spec.mask[..4].copy_from_slice(&[255, 255, 0, 0]);
        spec.value[10..12].copy_from_slice(&443u16.to_be_bytes());
        spec.mask[10..12].copy_from_slice(&[0xff; 2]);
        spec.value_ext[10..12].copy_from_slice(&0x6005u16.to_be_bytes());
        spec.mask_ext[10..12].copy_from_slice(&0xe000u16.to_be_bytes());
        spec.ring_cookie = 5;
        let rule = rule(&spec, 0);
        assert_eq!((rule.location, rule.flow_type.as_str()), (1022, "tcp4"));
        assert_eq!(rule.queue, Some(QueueId(5)));
        assert_eq!(
            text(&rule),
            ["dst-port 443", "src-ip 10.1.0.0/255.255.0.0", "vlan 24581/0xe000"]
        );
    }

    #[test]
    fn written_rules_are_read_back() {
        let mut spec = FlowSpec { flow_type: 0x12 | FLOW_EXT, location: 7, ..Default::default() };
        spec.value_ext[10..12].copy_from_slice(&0xa000u16.to_be_bytes());
        spec.mask_ext[10..12].copy_from_slice(&0xe000u16.to_be_bytes());
        spec.ring_cookie = 3;
        assert_eq!(self::spec(&rule(&spec, 0)), Some((spec.clone(), 0)));
        spec.flow_type = 0x06 | FLOW_RSS | FLOW_MAC_EXT;
        spec.value_ext[..].fill(0);
        spec.mask_ext[..].fill(0);
        spec.value_ext[2..8].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        spec.mask_ext[2..8].fill(0xff);
        spec.value[31] = 9;
        spec.mask[16..32].fill(0xff);
        spec.value[34] = 1;
        spec.mask[34..36].copy_from_slice(&[0xff, 0xf0]);
        spec.ring_cookie = (2 << 32) | 1;
        assert_eq!(self::spec(&rule(&spec, 5)), Some((spec.clone(), 5)));
        for cookie in [RX_CLS_FLOW_DISC, RX_CLS_FLOW_WAKE] {
            spec.ring_cookie = cookie;
            assert_eq!(self::spec(&rule(&spec, 5)), Some((spec.clone(), 5)));
        }
        let bad = |word: &str, text: &str| {
            let mut bad = rule(&spec, 0);
            bad.matches.insert(word.to_owned(), text.to_owned());
            self::spec(&bad)
        };
        for (word, text) in [
            ("vlan", "65536"),
            ("vlan", ""),
            ("src-ip", "1.2.3.4"),
            ("dst-mac", "00:00:00:00:00:00:00"),
            ("vf", "1"),
            ("nonsense", "1"),
            ("context", "-1"),
        ] {
            assert_eq!(bad(word, text), None, "{word} {text}");
        }
    }

    #[test]
    fn other_types_and_destinations() {
        let mut spec = FlowSpec { flow_type: 0x06 | FLOW_RSS, ..Default::default() };
        spec.value[31] = 1;
        spec.mask[16..32].fill(0xff);
        spec.ring_cookie = RX_CLS_FLOW_DISC;
        let dropped = rule(&spec, 3);
        assert_eq!(dropped.flow_type, "udp6");
        assert_eq!(text(&dropped), ["context 3", "dst-ip ::1"]);
        assert_eq!(dropped.queue, None);

        let mut spec =
            FlowSpec { flow_type: 0x12, ring_cookie: (3 << 32) | 2, ..Default::default() };
        spec.value[..6].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 10]);
        spec.mask[..6].fill(0xff);
        let ether = rule(&spec, 0);
        assert_eq!(text(&ether), ["dst 52:54:00:00:00:0a", "vf 2"]);
        assert_eq!(ether.queue, Some(QueueId(2)));

        let unknown = rule(&FlowSpec { flow_type: 0x77, ..Default::default() }, 0);
        assert_eq!((unknown.flow_type.as_str(), unknown.matches.len()), ("type 0x77", 0));
    }
}
