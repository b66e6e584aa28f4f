//! N-tuple rules as text, as bytes, and on a simulated NIC.

use super::*;
use crate::ObservedValue;
use crate::setting;
use nearpath_model::{Change, Persistence, Target, Value};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

const PRIORITY: &str = "ether vlan 40960/0xe000 queue 3";

/// What the driver of a NIC with n-tuple rules answers (as igb of an i350 does, which keeps only
/// what it compares); none of the lab's NICs takes rules.
#[derive(Default)]
struct Recorded {
    rules: RefCell<BTreeMap<u32, (FlowSpec, u32)>>,
    asked: RefCell<Vec<&'static str>>,
    refuses: Option<i32>,
}

impl Rules for &Recorded {
    fn locations(&self) -> io::Result<Vec<u32>> {
        Ok(self.rules.borrow().keys().copied().collect())
    }

    fn rule(&self, location: u32) -> io::Result<(FlowSpec, u32)> {
        let none = || io::Error::from_raw_os_error(libc::EINVAL);
        self.rules.borrow().get(&location).cloned().ok_or_else(none)
    }

    fn insert(&self, rule: &FlowSpec, context: u32) -> io::Result<()> {
        self.asked.borrow_mut().push("insert");
        if let Some(errno) = self.refuses {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.rules.borrow_mut().insert(rule.location, (rule.clone(), context));
        Ok(())
    }

    fn delete(&self, location: u32) -> io::Result<()> {
        self.asked.borrow_mut().push("delete");
        let none = || io::Error::from_raw_os_error(libc::EINVAL);
        self.rules.borrow_mut().remove(&location).map(drop).ok_or_else(none)
    }
}

fn target() -> NicSetting {
    NicSetting::parse("ethtool nic0 rule 5", None).unwrap()
}

fn change(before: &str, after: &str) -> Change {
    Change {
        target: Target::Nic(target()),
        before: Value::Text(before.to_owned()),
        after: Value::Text(after.to_owned()),
        why: "a test".to_owned(),
        persistence: Persistence::UntilReboot,
        snapshot: Vec::new(),
    }
}

#[test]
fn a_rule_is_inserted_and_deleted() {
    let (target, recorded) = (target(), Recorded::default());
    let its = RuleSetting { target: &target, location: 5, rules: &recorded };
    let made = setting::prepare(&its, change(NONE, PRIORITY), false).unwrap();
    setting::write(&its, &made).unwrap();
    let (spec, _) = recorded.rules.borrow()[&5].clone();
    // ETHER_FLOW | FLOW_EXT, the upper three bits of the tag, queue 3.
    assert_eq!((spec.flow_type, spec.ring_cookie, spec.location), (0x8000_0012, 3, 5));
    assert_eq!((&spec.value_ext[10..12], &spec.mask_ext[10..12]), (&[0xa0, 0][..], &[0xe0, 0][..]));
    assert_eq!(setting::look(&its, &made).unwrap(), ObservedValue::After);
    setting::undo(&its, &made, false, false).unwrap();
    assert!(recorded.rules.borrow().is_empty());
    assert_eq!(*recorded.asked.borrow(), ["insert", "delete"]);
}

#[test]
fn the_original_rule_is_restored_exactly() {
    let (target, recorded) = (target(), Recorded::default());
    // Of a type, and with mask bits, that the syntax cannot express.
    let mut old = FlowSpec { flow_type: 0x77, location: 5, ring_cookie: 2, ..FlowSpec::default() };
    old.value[3] = 9;
    old.mask_ext[1] = 7;
    recorded.rules.borrow_mut().insert(5, (old.clone(), 0));
    let its = RuleSetting { target: &target, location: 5, rules: &recorded };
    let now = its.read().unwrap().unwrap();
    assert!(now.starts_with("raw 00000077"), "{now}");
    let made = setting::prepare(&its, change(&now, PRIORITY), false).unwrap();
    setting::write(&its, &made).unwrap();
    setting::undo(&its, &made, false, false).unwrap();
    assert_eq!(recorded.rules.borrow()[&5], (old, 0));
}

#[test]
fn a_refusal_means_unsupported() {
    let recorded = Recorded { refuses: Some(libc::EOPNOTSUPP), ..Recorded::default() };
    let target = target();
    let its = RuleSetting { target: &target, location: 5, rules: &recorded };
    let error = its.write(PRIORITY).unwrap_err();
    assert!(matches!(error, TuneError::Unsupported { .. }), "{error}");
    for bad in ["", "ether", "ether queue", "ether vlan queue 1", "ether x 1 queue 1", "raw 00"] {
        assert!(its.check(bad).is_err(), "{bad}");
    }
}

#[test]
fn only_a_rule_of_an_rss_context_has_one() {
    // The fields of a flow, their masks, and the ring (struct ethtool_rx_flow_spec).
    let bytes = 2 * 52 + 2 * 20 + 8;
    let raw = |flow_type: &str, context: &str| {
        fuzzing(&format!("raw {flow_type}{}{context}", "00".repeat(bytes)));
        parse(7, &format!("raw {flow_type}{}{context}", "00".repeat(bytes)))
    };
    assert_eq!(raw("00000099", "00000003"), None);
    assert!(raw("00000099", "00000000").is_some());
    assert!(raw("20000099", "00000003").is_some());
}

#[test]
fn ethtool_masks_are_inverted() {
    for (field, mask, expected) in [
        ("vlan", "0xe000", "0x1fff"),
        ("vlan", "0xff", "0xff00"),
        ("tos", "0xfc", "0x3"),
        ("src-ip", "255.255.0.0", "0.0.255.255"),
        ("dst", "ff:ff:ff:00:00:00", "00:00:00:ff:ff:ff"),
    ] {
        assert_eq!(inverted(field, mask).as_deref(), Some(expected), "{field} {mask}");
    }
}

proptest! {
    #[test]
    fn any_rule_is_kept_exactly(
        flow_type in any::<u32>(),
        value in any::<[u8; 32]>(),
        mask in any::<[u8; 32]>(),
        tag in any::<[u8; 8]>(),
        cookie in any::<u64>(),
        context in any::<u32>(),
    ) {
        let mut spec = FlowSpec { flow_type, ring_cookie: cookie, location: 9, ..FlowSpec::default() };
        spec.value[..32].copy_from_slice(&value);
        spec.mask[..32].copy_from_slice(&mask);
        spec.value_ext[8..16].copy_from_slice(&tag);
        spec.mask_ext[8..16].copy_from_slice(&tag);
        let context = if flow_type & FLOW_RSS == 0 { 0 } else { context };
        let text = text(&spec, context);
        prop_assert_eq!(parse(9, &text), Some((spec, context)), "{}", text);
    }

    #[test]
    fn any_text_is_refused_or_parsed(text in "(raw |ether |tcp4 |)[a-z0-9/. :-]{0,40}") {
        fuzzing(&text);
    }
}
