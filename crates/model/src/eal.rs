//! The option `--lcores` of DPDK's EAL: lcore ids, and the CPUs on which their threads run.
//!
//! ```text
//! 0@1,1@2,(2-3)@(31-33),7-8     lcore 0 on CPU 1, 1 on 2, 2 and 3 float over 31-33, 7 on 7, 8 on 8
//! ```
//! Grammar and limits: `eal_parse_lcores` and `eal_parse_set` in DPDK's lib/eal/common/eal_common_options.c. Lcore ids
//! are below `RTE_MAX_LCORE` (128 as built for x86 and Arm servers), CPU numbers below `CPU_SETSIZE` (1,024).

use crate::{CpuId, CpuSet};
use std::collections::BTreeMap;

/// EAL's limit of lcore ids (`RTE_MAX_LCORE`, config/rte_config.h and meson's `max_lcores`).
pub const MAX_LCORES: u32 = 128;
/// EAL's limit of CPU numbers: the C library's `CPU_SETSIZE`.
pub const MAX_CPU: u32 = 1024;
/// Maximum length in bytes of an `--lcores` that is read; a command line has at most 128 KiB per argument.
const MAX_BYTES: usize = 128 << 10;

/// The lcores of a process, by id, each with the CPUs on which its thread may run.
pub type Lcores = BTreeMap<u32, CpuSet>;

/// Why EAL refuses an option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EalError {
    /// Not in EAL's grammar.
    #[error("--lcores is not of the form id@cpu,...: {0:?}")]
    Syntax(String),
    /// An lcore id that EAL cannot have.
    #[error("lcore {0}: EAL's ids end at {limit}", limit = MAX_LCORES - 1)]
    LcoreId(u32),
    /// A main lcore that is not one of the lcores.
    #[error("the main lcore {0} is not among the lcores {1}")]
    MainLcore(u32, String),
}

/// Parses `--lcores`.
///
/// # Errors
/// EAL would refuse it.
pub fn parse_lcores(text: &str) -> Result<Lcores, EalError> {
    let error = || EalError::Syntax(text.chars().take(80).collect());
    if text.len() > MAX_BYTES {
        return Err(error());
    }
    let mut lcores = Lcores::new();
    let mut rest = Cursor { bytes: text.as_bytes(), at: 0 };
    loop {
        rest.blanks();
        if rest.peek().is_none() {
            return Err(error());
        }
        let start = rest.at;
        if rest.peek() == Some(b'(') {
            rest.skip_until(b")");
            if rest.next().is_none() {
                return Err(error());
            }
        }
        rest.skip_until(b"@,");
        let ids_text = rest.bytes.get(start..rest.at).unwrap_or_default();
        let given = if rest.peek() == Some(b'@') {
            rest.at += 1;
            Some(set(&mut rest).ok_or_else(error)?)
        } else {
            None
        };
        if !matches!(rest.peek(), None | Some(b',')) {
            return Err(error());
        }
        let mut ids = Cursor { bytes: ids_text, at: 0 };
        let parsed = set(&mut ids).ok_or_else(error)?;
        // A plain range stands for one lcore per CPU, a group for lcores that share its CPUs.
        let is_range = !ids_text.contains(&b'(') && ids_text.contains(&b'-');
        if is_range && given.is_some() {
            return Err(error());
        }
        for id in parsed.iter() {
            if id.0 >= MAX_LCORES {
                return Err(EalError::LcoreId(id.0));
            }
            let cpus = match &given {
                Some(cpus) => cpus.clone(),
                None if is_range => [id].into_iter().collect(),
                None => parsed.clone(),
            };
            lcores.insert(id.0, cpus);
        }
        if rest.next().is_none() {
            return Ok(lcores);
        }
    }
}

/// The main lcore: the requested one, or the lowest.
///
/// # Errors
/// It is not one of the lcores.
pub fn main_lcore(lcores: &Lcores, requested: Option<u32>) -> Result<u32, EalError> {
    let main = requested.or_else(|| lcores.keys().next().copied()).unwrap_or_default();
    if lcores.contains_key(&main) {
        return Ok(main);
    }
    let ids: CpuSet = lcores.keys().map(|id| CpuId(*id)).collect();
    Err(EalError::MainLcore(main, ids.brief()))
}

/// The main lcore of a process by the words of its options: `--main-lcore` (`--master-lcore` in old DPDK), else the
/// lowest of `--lcores` or `-l`. `None` if they do not say it.
pub fn main_lcore_of_options(words: &[String]) -> Option<u32> {
    let value = |names: &[&str]| {
        let at = words.iter().position(|word| names.contains(&word.as_str()));
        let next = at.and_then(|at| words.get(at + 1)).map(String::as_str);
        let of = |name: &str, word: &'_ String| -> Option<usize> {
            word.strip_prefix(name)?.starts_with('=').then_some(name.len() + 1)
        };
        let joined = || {
            let word = |word| names.iter().find_map(|name| of(name, word)).map(|at| (word, at));
            let (word, at) = words.iter().find_map(word)?;
            word.get(at..)
        };
        next.or_else(joined)
    };
    let main = value(&["--main-lcore", "--master-lcore"]).and_then(|id| id.parse().ok());
    main.or_else(|| parse_lcores(value(&["--lcores", "-l"])?).ok()?.keys().next().copied())
}

/// Writes lcores as `--lcores` takes them.
pub fn write_lcores(lcores: &Lcores) -> String {
    let one = |(id, cpus): (&u32, &CpuSet)| match cpus.len() {
        1 => format!("{id}@{cpus}"),
        _ => format!("{id}@({cpus})"),
    };
    lcores.iter().map(one).collect::<Vec<_>>().join(",")
}

/// A number, a range, or a group of both in parentheses.
fn set(text: &mut Cursor<'_>) -> Option<CpuSet> {
    let mut found = CpuSet::new();
    text.blanks();
    if text.peek() != Some(b'(') {
        let first = text.number()?;
        text.blanks();
        let mut last = first;
        if text.peek() == Some(b'-') {
            text.at += 1;
            text.blanks();
            last = text.number()?;
            text.blanks();
            if !matches!(text.peek(), None | Some(b',')) {
                return None;
            }
        }
        if !matches!(text.peek(), None | Some(b',' | b'@')) {
            return None;
        }
        insert(&mut found, first, last);
        return Some(found);
    }
    text.at += 1;
    let mut range_from = None;
    loop {
        text.blanks();
        let number = text.number()?;
        text.blanks();
        match (text.next()?, range_from) {
            (b'-', None) => range_from = Some(number),
            (b'-', Some(_)) => return None,
            (end @ (b',' | b')'), from) => {
                insert(&mut found, from.unwrap_or(number), number);
                range_from = None;
                if end == b')' {
                    text.blanks();
                    return Some(found);
                }
            }
            _ => return None,
        }
    }
}

/// EAL takes a range in either direction.
fn insert(set: &mut CpuSet, a: u32, b: u32) {
    for cpu in a.min(b)..=a.max(b) {
        set.insert(CpuId(cpu));
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek();
        self.at += usize::from(byte.is_some());
        byte
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
    }

    fn skip_until(&mut self, ends: &[u8]) {
        while self.peek().is_some_and(|byte| !ends.contains(&byte)) {
            self.at += 1;
        }
    }

    /// A number below [`MAX_CPU`].
    fn number(&mut self) -> Option<u32> {
        let mut value: Option<u32> = None;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            value = Some(value.unwrap_or(0) * 10 + u32::from(digit - b'0'));
            if value >= Some(MAX_CPU) {
                return None;
            }
            self.at += 1;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        match parse_lcores(text) {
            Ok(lcores) => write_lcores(&lcores),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_example_in_dpdk_is_read_as_its_comment_says() {
        assert_eq!(
            parsed("1,2@(5-7),(3-5)@(0,2),(0,6),7-8"),
            "0@(0,6),1@1,2@(5-7),3@(0,2),4@(0,2),5@(0,2),6@(0,6),7@7,8@8"
        );
    }

    #[test]
    fn document_003s_options_are_read() {
        assert_eq!(parsed("0@1,1@2,2@3,3@4,4@5"), "0@1,1@2,2@3,3@4,4@5");
        assert_eq!(parsed("(1-3)@(31-33)"), "1@(31-33),2@(31-33),3@(31-33)");
        assert_eq!(parsed("0@200,1@1023"), "0@200,1@1023");
        // As EAL: a later entry replaces an earlier one, ranges go both ways, blanks are skipped.
        assert_eq!(parsed(" 0@1, 0@2 ,3-2 , 5 @ 6"), "0@2,2@2,3@3,5@6");
        assert_eq!(parsed("0@(1, 2-3 )"), "0@(1-3)");
    }

    #[test]
    fn what_eal_refuses_is_refused() {
        let refused = [
            "",
            " ",
            ",",
            "0,",
            "0@",
            "@1",
            "a",
            "0@1024",
            "1024",
            "(0",
            "0@(1",
            "(0-1-2)",
            "0@1;2",
            "()",
            "0@()",
            "0@-1",
            "-1",
            "0-",
            "1-2@3",
            "1-2@3-4x",
            "0@1@2",
            "99999999999999999999",
        ];
        for text in refused {
            assert!(matches!(parse_lcores(text), Err(EalError::Syntax(_))), "{text:?}");
        }
        assert_eq!(parse_lcores("128@1"), Err(EalError::LcoreId(128)));
        assert_eq!(
            parse_lcores(&"0,".repeat(MAX_BYTES)).map_err(|e| e.to_string().len() < 200),
            Err(true)
        );
    }

    #[test]
    fn the_main_lcore_is_read_from_a_command_line() {
        for (line, main) in [
            ("testpmd --lcores 3@0,2@1 -n 4", Some(2)),
            ("testpmd --lcores=3@0,2@1 --main-lcore 3", Some(3)),
            ("testpmd -l 4-7", Some(4)),
            ("testpmd --master-lcore=5 -l 4-7", Some(5)),
            ("testpmd -c f0", None),
            ("testpmd -l", None),
            ("", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(main_lcore_of_options(&words), main, "{line}");
        }
    }

    #[test]
    fn the_main_lcore_is_the_lowest_by_default() {
        let lcores = parse_lcores("3@1,2@5").unwrap();
        assert_eq!(main_lcore(&lcores, None), Ok(2));
        assert_eq!(main_lcore(&lcores, Some(3)), Ok(3));
        assert_eq!(
            main_lcore(&lcores, Some(1)).unwrap_err().to_string(),
            "the main lcore 1 is not among the lcores 2-3"
        );
    }
}
