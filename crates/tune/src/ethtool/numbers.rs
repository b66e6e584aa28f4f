//! Settings that are several numbers under one name: channels, rings, coalescing.
//!
//! Input: words and numbers in ethtool's syntax: `rx 4096 tx 4096`, `adaptive-rx off rx-usecs 8`. Output: the current values
//! in the same syntax, and requests that set the numbers named by a text; the others are unchanged.

use super::{NicSetting, failure};
use crate::TuneError;
use crate::setting::Setting;
use nearpath_host::ethtool::{Device, attribute, coalesce_attribute};
use std::io;

/// A number of a setting.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Its name in ethtool.
    word: &'static str,
    /// Its attribute (include/uapi/linux/ethtool_netlink.h).
    attribute: u16,
    /// Whether it is on or off.
    flag: bool,
}

const fn number(word: &'static str, attribute: u16) -> Word {
    Word { word, attribute, flag: false }
}

const fn flag(word: &'static str, attribute: u16) -> Word {
    Word { word, attribute, flag: true }
}

/// `ETHTOOL_A_CHANNELS_*_COUNT`.
const CHANNELS: &[Word] =
    &[number("rx", 6), number("tx", 7), number("other", 8), number("combined", 9)];

/// `ETHTOOL_A_RINGS_*`.
const RINGS: &[Word] = &[number("rx", 6), number("tx", 9)];

/// `ETHTOOL_A_COALESCE_*`.
const COALESCE: &[Word] = &[
    flag("adaptive-rx", 11),
    flag("adaptive-tx", 12),
    number("rx-usecs", 2),
    number("rx-frames", 3),
    number("rx-usecs-irq", 4),
    number("rx-frames-irq", 5),
    number("tx-usecs", 6),
    number("tx-frames", 7),
    number("tx-usecs-irq", 8),
    number("tx-frames-irq", 9),
];

/// Drivers round rings at most to the next power of two.
const ROUNDED: u32 = 2;

const CHANNELS_SET: u8 = 18;
const RINGS_SET: u8 = 16;
const COALESCE_SET: u8 = 20;

/// Numbers under one name.
pub(super) struct NumbersSetting<'a> {
    target: &'a NicSetting,
    words: &'static [Word],
    command: u8,
    read: Read,
}

/// Reads the numbers of an interface, by attribute.
type Read = fn(&mut Device) -> io::Result<Vec<(u16, u32)>>;

/// The parsed text: indexes into the table of words, ascending, with their numbers.
type Numbers = Vec<(usize, u32)>;

impl<'a> NumbersSetting<'a> {
    /// `ethtool -L`.
    pub fn channels(target: &'a NicSetting) -> Self {
        let read = |device: &mut Device| {
            let channels = device.channels()?;
            let all = [channels.rx, channels.tx, channels.other, channels.combined];
            Ok((6..).zip(all).filter_map(|(kind, n)| Some((kind, n?))).collect())
        };
        Self { target, words: CHANNELS, command: CHANNELS_SET, read }
    }

    /// `ethtool -G`.
    pub fn rings(target: &'a NicSetting) -> Self {
        let read = |device: &mut Device| {
            let rings = device.rings()?;
            let all = [(6, rings.rx), (9, rings.tx)];
            Ok(all.into_iter().filter_map(|(kind, n)| Some((kind, n?))).collect())
        };
        Self { target, words: RINGS, command: RINGS_SET, read }
    }

    /// `ethtool -C`.
    pub fn coalesce(target: &'a NicSetting) -> Self {
        let read = |device: &mut Device| {
            let all = device.coalesce()?.into_iter();
            let known = |(name, value): (String, u64)| {
                Some((coalesce_attribute(&name)?, u32::try_from(value).ok()?))
            };
            Ok(all.filter_map(known).collect())
        };
        Self { target, words: COALESCE, command: COALESCE_SET, read }
    }

    /// Parses a text; `None` if it is invalid.
    fn numbers(&self, text: &str) -> Option<Numbers> {
        // The longest has ten words with their numbers.
        let parts: Vec<&str> = text.split(' ').take(2 * self.words.len() + 1).collect();
        let mut numbers = Numbers::new();
        for pair in parts.chunks(2) {
            let [word, value] = pair else { return None };
            let (place, known) = self.words.iter().enumerate().find(|(_, w)| w.word == *word)?;
            let number = match (known.flag, *value) {
                (true, "on") => 1,
                (true, "off") => 0,
                (true, _) => return None,
                (false, digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                    digits.parse().ok()?
                }
                (false, _) => return None,
            };
            if numbers.iter().any(|(named, _)| *named == place) {
                return None;
            }
            numbers.push((place, number));
        }
        numbers.sort_unstable();
        (!numbers.is_empty()).then_some(numbers)
    }

    /// The text of some numbers.
    fn text(&self, numbers: &[(usize, u32)]) -> String {
        let one = |(place, number): &(usize, u32)| {
            let known = self.words.get(*place)?;
            Some(match (known.flag, number) {
                (true, 0) => format!("{} off", known.word),
                (true, _) => format!("{} on", known.word),
                (false, number) => format!("{} {number}", known.word),
            })
        };
        numbers.iter().filter_map(one).collect::<Vec<_>>().join(" ")
    }

    /// Drops values that the driver sets itself in adaptive mode.
    fn chosen(&self, mut numbers: Numbers) -> Numbers {
        let adapts = |numbers: &Numbers, flag: &str| {
            numbers.iter().any(|(place, number)| {
                *number != 0 && self.words.get(*place).is_some_and(|known| known.word == flag)
            })
        };
        for (adaptive, prefix) in [("adaptive-rx", "rx-"), ("adaptive-tx", "tx-")] {
            if adapts(&numbers, adaptive) {
                numbers.retain(|(place, _)| {
                    self.words.get(*place).is_some_and(|known| !known.word.starts_with(prefix))
                });
            }
        }
        numbers
    }
}

impl Setting for NumbersSetting<'_> {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        let words: Vec<&str> = self.words.iter().map(|known| known.word).collect();
        self.numbers(value).map(drop).ok_or_else(|| {
            let words = words.join(", ");
            TuneError::Refused(format!(
                "{}: {value:?} must consist of some of {words}",
                self.target
            ))
        })
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let mut device = failure::open(self.target, "reading")?;
        let Some(all) = failure::answer(self.target, (self.read)(&mut device))? else {
            return Ok(None);
        };
        let place = |(kind, number): (u16, u32)| {
            let place = self.words.iter().position(|known| known.attribute == kind)?;
            Some((place, number))
        };
        let mut numbers: Numbers = all.into_iter().filter_map(place).collect();
        numbers.sort_unstable();
        Ok(Some(self.text(&numbers)))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        self.check(value)?;
        let attributes =
            self.numbers(value).unwrap_or_default().into_iter().filter_map(|(place, n)| {
                let known = self.words.get(place)?;
                Some(match known.flag {
                    true => attribute(known.attribute, &[u8::from(n != 0)]),
                    false => attribute(known.attribute, &n.to_ne_bytes()),
                })
            });
        let attributes: Vec<Vec<u8>> = attributes.collect();
        let mut device = failure::open(self.target, "setting")?;
        let step = format!("setting {} to {value}", self.target);
        device
            .send(self.command, &attributes)
            .map_err(|error| failure::of_value(step.clone(), &error, device.words()))?;
        // Drivers round to the granularity of their hardware.
        match self.read()?.map(|now| self.part(&now, value)) {
            Some(now) if !self.same(&now, value) => Err(TuneError::ValueNotTaken {
                step,
                reason: format!("the driver set it to {now}"),
            }),
            _ => Ok(()),
        }
    }

    fn same(&self, a: &str, b: &str) -> bool {
        match (self.numbers(a), self.numbers(b)) {
            (Some(a), Some(b)) => self.chosen(a) == self.chosen(b),
            _ => a == b,
        }
    }

    fn is_rounded(&self, now: &str, written: &str) -> bool {
        let (Some(now), Some(written)) = (self.numbers(now), self.numbers(written)) else {
            return false;
        };
        let near = |(place, now): &(usize, u32), (other, written): &(usize, u32)| {
            let flag = self.words.get(*place).is_some_and(|known| known.flag);
            let (low, high) = (*now.min(written), *now.max(written));
            place == other && (low == high || (!flag && high <= low.saturating_mul(ROUNDED)))
        };
        now.len() == written.len()
            && now.iter().zip(&written).all(|(now, written)| near(now, written))
    }

    fn part(&self, now: &str, of: &str) -> String {
        let (Some(now), Some(of)) = (self.numbers(now), self.numbers(of)) else {
            return now.to_owned();
        };
        let named = |(place, _): &&(usize, u32)| of.iter().any(|(p, _)| p == place);
        self.text(&now.iter().filter(named).copied().collect::<Numbers>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(text: &str) -> NicSetting {
        NicSetting::parse(text, None).unwrap()
    }

    #[test]
    fn words_in_any_order_are_the_same_value() {
        let target = target("ethtool nic0 coalesce");
        let its = NumbersSetting::coalesce(&target);
        assert!(its.same("rx-usecs 8 adaptive-rx off", "adaptive-rx off rx-usecs 8"));
        assert!(!its.same("rx-usecs 8", "rx-usecs 9"));
        assert!(!its.same("rx-usecs 8", "rx-usecs 8 tx-usecs 8"));
        // Adaptive values belong to the driver.
        assert!(its.same("adaptive-rx on rx-usecs 8", "adaptive-rx on rx-usecs 64"));
        assert!(!its.same("adaptive-rx on rx-usecs 8", "adaptive-rx off rx-usecs 8"));
        assert!(!its.same("adaptive-tx on rx-usecs 8", "adaptive-tx on rx-usecs 9"));
    }

    #[test]
    fn a_value_covers_only_the_words_it_names() {
        let target = target("ethtool nic0 channels");
        let its = NumbersSetting::channels(&target);
        assert_eq!(its.part("rx 0 tx 0 other 1 combined 4", "combined 2"), "combined 4");
        assert_eq!(its.part("combined 4", "rx 1"), "");
        assert!(its.is_rounded("combined 4", "combined 3"));
        assert!(
            !its.is_rounded("combined 8", "combined 3") && !its.is_rounded("rx 3", "combined 3")
        );
        for bad in ["", "combined", "combined x", "combined 4 combined 4", "combined -1", "all 3"] {
            assert!(its.check(bad).is_err(), "{bad}");
        }
        assert!(its.check("combined 4 other 1").is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_parsed(text in "[a-z-]{0,12}( [0-9a-z]{0,12}){0,4}") {
            let target = target("ethtool nic0 rings");
            let its = NumbersSetting::rings(&target);
            if let Some(numbers) = its.numbers(&text) {
                prop_assert!(its.same(&its.text(&numbers), &text));
            }
        }
    }
}
