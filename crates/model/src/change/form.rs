//! The kernel's format of a value, used to validate it before the write and to compare it afterwards.

use crate::CpuSet;

/// The format of a setting's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Queues, or CPUs that may be offline, as a hexadecimal mask in groups of 32 bits; it may be empty.
    Mask,
    /// CPUs as such a mask. The kernel drops those that are offline when it is written.
    CpuMask,
    /// CPUs as a cpulist; not empty.
    CpuList,
    /// This many numbers separated by white space.
    Numbers(usize),
    /// A number that the kernel rounds up to a power of two; 0 stays.
    PowerOfTwo,
    /// One of several words, the chosen one in brackets: `always [madvise] never`.
    Choice,
}

/// A value in normalized form.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    Cpus(CpuSet),
    Numbers(Vec<i64>),
    Word(String),
}

impl Form {
    /// Whether the text is a value of this format that may be written.
    ///
    /// # Errors
    /// What such a value must be.
    pub fn check(self, text: &str) -> Result<(), String> {
        match self.meaning(text) {
            Some(Meaning::Cpus(cpus)) if self == Self::CpuList && cpus.is_empty() => {
                Err("must name a CPU".to_owned())
            }
            Some(_) => Ok(()),
            None => Err(match self {
                Self::Mask | Self::CpuMask => "must be a hexadecimal mask".to_owned(),
                Self::CpuList => "must be a list of CPUs".to_owned(),
                Self::Numbers(1) | Self::PowerOfTwo => "must be a number".to_owned(),
                Self::Numbers(count) => format!("must be {count} numbers"),
                Self::Choice => "must be a word".to_owned(),
            }),
        }
    }

    /// Whether two texts mean the same value. A text of another format is equal only to itself.
    pub fn same(self, a: &str, b: &str) -> bool {
        match (self.meaning(a), self.meaning(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a.trim() == b.trim(),
        }
    }

    /// The text to write for a value, which may have been read from the kernel.
    pub fn written(self, text: &str) -> String {
        match (self, self.meaning(text)) {
            (Self::Choice, Some(Meaning::Word(word))) => word,
            _ => text.to_owned(),
        }
    }

    /// The value as the kernel stores it, in normalized form; `None` if the text has another format.
    pub fn kept(self, text: &str) -> Option<String> {
        Some(match self.meaning(text)? {
            Meaning::Cpus(_) if self != Self::CpuList => text.trim().to_ascii_lowercase(),
            Meaning::Cpus(cpus) => cpus.to_string(),
            Meaning::Numbers(numbers) => {
                numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            }
            Meaning::Word(word) => word,
        })
    }

    fn meaning(self, text: &str) -> Option<Meaning> {
        // The kernel's parsers stop at characters that they do not know; such text is not accepted.
        let plain = |b: u8| b.is_ascii_graphic() || b == b' ' || b == b'\t';
        if text.len() > MAX_TEXT || !text.trim_end().bytes().all(plain) {
            return None;
        }
        let text = text.trim();
        match self {
            Self::Mask | Self::CpuMask => CpuSet::from_mask(text).ok().map(Meaning::Cpus),
            Self::CpuList => CpuSet::from_list(text).ok().map(Meaning::Cpus),
            Self::Numbers(count) => {
                let numbers: Option<Vec<i64>> =
                    text.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
                numbers.filter(|numbers| numbers.len() == count).map(Meaning::Numbers)
            }
            Self::PowerOfTwo => {
                let number: u32 = text.parse().ok()?;
                let rounded = if number == 0 { 0 } else { number.checked_next_power_of_two()? };
                Some(Meaning::Numbers(vec![rounded.into()]))
            }
            Self::Choice => chosen(text).map(|word| Meaning::Word(word.to_owned())),
        }
    }
}

/// Longer than the mask or list of all CPUs of any kernel.
const MAX_TEXT: usize = 64 << 10;

/// The word in brackets, or the only one.
fn chosen(text: &str) -> Option<&str> {
    let in_brackets = |word: &&str| word.starts_with('[') && word.ends_with(']');
    if let Some(word) = text.split_ascii_whitespace().find(in_brackets) {
        let inner = word.get(1..word.len() - 1);
        return inner.filter(|word| !word.is_empty() && !word.contains(['[', ']']));
    }
    let mut words = text.split_ascii_whitespace();
    words.next().filter(|_| words.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORMS: [Form; 7] = [
        Form::Mask,
        Form::CpuMask,
        Form::CpuList,
        Form::Numbers(1),
        Form::Numbers(3),
        Form::PowerOfTwo,
        Form::Choice,
    ];

    #[test]
    fn different_spellings_are_equal() {
        for (form, a, b) in [
            (Form::Mask, "3", "00000000,00000003"),
            (Form::Mask, "0", "00000000"),
            (Form::CpuList, "0,1,2", "0-2\n"),
            (Form::Numbers(3), "4096 131072 6291456", "4096\t131072\t6291456"),
            (Form::PowerOfTwo, "1000", "1024"),
            (Form::Choice, "madvise", "always [madvise] never"),
        ] {
            assert!(form.same(a, b) && form.check(a).is_ok() && form.check(b).is_ok(), "{a} {b}");
        }
        assert!(!Form::Mask.same("3", "1") && !Form::PowerOfTwo.same("0", "1"));
        assert_eq!(Form::Choice.written("always [madvise] never"), "madvise");
        assert_eq!(Form::Mask.written("3"), "3");
        let kept = |form: Form, text: &str| form.kept(text).unwrap();
        assert_eq!(kept(Form::Mask, "F,0000000A\n"), "f,0000000a");
        assert_eq!(kept(Form::CpuList, "0,1,2"), "0-2");
        assert_eq!(kept(Form::Numbers(2), "+5\t07"), "5 7");
        assert_eq!(kept(Form::PowerOfTwo, "1000"), "1024");
        assert_eq!(kept(Form::Choice, "always [madvise] never"), "madvise");
    }

    #[test]
    fn other_formats_are_rejected() {
        for (form, text) in [
            (Form::Mask, ""),
            (Form::Mask, "0-3"),
            (Form::Mask, "3\n4"),
            (Form::CpuList, ""),
            (Form::CpuList, "all"),
            (Form::Numbers(1), "1 2"),
            (Form::Numbers(3), "1 2"),
            (Form::PowerOfTwo, "-1"),
            (Form::PowerOfTwo, "4294967295"),
            (Form::Choice, "a b"),
            (Form::Choice, "[]"),
            (Form::Choice, "a\u{1b}"),
        ] {
            assert!(form.check(text).is_err(), "{form:?} {text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_every_text_equals_itself(text in "\\PC{0,40}") {
            for form in FORMS {
                let _ = form.check(&text);
                prop_assert!(form.same(&text, &text));
                prop_assert!(form.same(&text, &form.written(&text)));
            }
        }
    }
}
