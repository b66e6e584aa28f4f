//! Enumerations in the kernel's type information (BTF), which contain the names of drop reasons.
//!
//! Input: the bytes of `/sys/kernel/btf/vmlinux`, or of a module with those of the kernel. Output: names and
//! values. The format: Documentation/bpf/btf.rst. Malformed input gives no enumerations.

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;
const KIND_ENUM: u32 = 6;
const KIND_ENUM64: u32 = 19;

/// An enumeration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enumeration {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its names with the lower 32 bits of their values.
    pub values: Vec<(String, u32)>,
}

/// The sections of BTF.
struct Sections<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Sections<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let field = |at: usize| usize::try_from(word(bytes, at)?).ok();
        let header = field(4)?;
        if magic != MAGIC || header < HEADER_BYTES {
            return None;
        }
        let section = |offset: usize, length: usize| {
            let begin = header.checked_add(offset)?;
            bytes.get(begin..begin.checked_add(length)?)
        };
        Some(Self {
            types: section(field(8)?, field(12)?)?,
            strings: section(field(16)?, field(20)?)?,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Number of bytes after the header of a type; `None` for an unknown kind.
fn members(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC
        4 | 5 | 15 | KIND_ENUM64 => count.checked_mul(12)?,
        // FUNC_PROTO
        KIND_ENUM | 13 => count.checked_mul(8)?,
        _ => return None,
    })
}

/// All enumerations accepted by `wanted`, by name. `base` is the kernel's own BTF if `bytes` are those of a
/// module, which continue its strings.
pub fn enumerations(
    bytes: &[u8],
    base: Option<&[u8]>,
    wanted: impl Fn(&str) -> bool,
) -> Vec<Enumeration> {
    let Some(Sections { types, strings }) = Sections::of(bytes) else { return Vec::new() };
    let base = base.and_then(Sections::of).map_or(&[][..], |sections| sections.strings);
    let text = |offset: u32| {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = match offset.checked_sub(base.len()) {
            Some(own) => strings.get(own..),
            None => base.get(offset..),
        };
        let name = rest.unwrap_or_default().split(|&byte| byte == 0).next().unwrap_or_default();
        std::str::from_utf8(name).unwrap_or_default()
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(name), Some(info)) = (word(types, at), word(types, at + 4)) {
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let Some(length) = members(kind, count) else { break };
        let begin = at + TYPE_BYTES;
        let Some(body) = types.get(begin..begin.saturating_add(length)) else { break };
        if matches!(kind, KIND_ENUM | KIND_ENUM64) && wanted(text(name)) {
            let size = length / count.max(1);
            let value = |member: &[u8]| Some((text(word(member, 0)?).to_owned(), word(member, 4)?));
            let values = body.chunks_exact(size.max(1)).filter_map(value).collect();
            found.push(Enumeration { name: text(name).to_owned(), values });
        }
        at = begin + length;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// BTF of an int and an enumeration, whose strings follow those of a base of this many bytes.
    fn btf(base: u32) -> Vec<u8> {
        let strings = b"\0reasons\0FIRST\0SECOND\0";
        let at = |text: &str| {
            let found = strings.windows(text.len()).position(|w| w == text.as_bytes()).unwrap();
            base + found as u32
        };
        let words = [
            [0, 1 << 24, 4, 0x20].as_slice(),
            &[at("reasons"), 6 << 24 | 2, 4, at("FIRST"), 1, at("SECOND"), 0x3_0001],
        ]
        .concat();
        let types: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let header = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        bytes.extend(header.iter().flat_map(|w| w.to_ne_bytes()));
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn values_have_their_names() {
        let expected = [Enumeration {
            name: "reasons".to_owned(),
            values: vec![("FIRST".to_owned(), 1), ("SECOND".to_owned(), 0x3_0001)],
        }];
        assert_eq!(enumerations(&btf(0), None, |name| name == "reasons"), expected);
        assert_eq!(enumerations(&btf(0), None, |name| name == "others"), []);
        // A module: its strings continue those of the kernel.
        let base = btf(0);
        let strings = Sections::of(&base).unwrap().strings.len() as u32;
        assert_eq!(enumerations(&btf(strings), Some(&base), |_| true), expected);
    }

    #[test]
    fn the_running_kernel_has_names_for_its_reasons() {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else { return };
        let found = enumerations(&bytes, None, |name| name == "bpf_map_type");
        let values: Vec<_> = found.iter().flat_map(|e| &e.values).collect();
        assert!(values.contains(&&("BPF_MAP_TYPE_ARRAY".to_owned(), 2)), "{values:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(noise in prop::collection::vec(any::<u8>(), 0..80), at in 0usize..120) {
            let mut bytes = btf(0);
            let end = (at + noise.len()).min(bytes.len());
            let at = at.min(end);
            bytes.splice(at..end, noise.clone());
            enumerations(&bytes, Some(&noise), |_| true);
            enumerations(&noise, Some(&bytes), |_| true);
        }
    }
}
