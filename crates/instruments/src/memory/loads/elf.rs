//! The functions of a program or a library, by their offset in its file: from its symbols, if it has any.

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

/// Maximum number of symbols read.
const SYMBOLS: usize = 1 << 20;
/// Maximum length of a name; the rest is cut off.
const NAME: usize = 256;

/// Functions, ascending by offset.
#[derive(Debug, Default)]
pub struct Functions(Vec<(u64, u64, String)>);

impl Functions {
    /// The function at an offset.
    pub fn name(&self, offset: u64) -> Option<String> {
        let after = self.0.partition_point(|(start, ..)| *start <= offset);
        let (start, size, name) = self.0.get(after.checked_sub(1)?)?;
        (offset - start < (*size).max(1)).then(|| name.clone())
    }
}

/// The functions of a file; none if it is no ELF file, or has no symbols.
pub fn functions(bytes: &[u8]) -> Functions {
    let Ok(file) = object::File::parse(bytes) else { return Functions::default() };
    let segments: Vec<(u64, u64, u64)> = file
        .segments()
        .map(|segment| (segment.address(), segment.size(), segment.file_range().0))
        .collect();
    let offset = |address: u64| {
        let within = |(start, size, _): &&(u64, u64, u64)| {
            address.checked_sub(*start).is_some_and(|at| at < *size)
        };
        let (start, _, offset) = segments.iter().find(within)?;
        offset.checked_add(address - start)
    };
    let printable =
        |name: &str| name.chars().filter(|c| !c.is_control()).take(NAME).collect::<String>();
    let mut all: Vec<(u64, u64, String)> = file
        .symbols()
        .chain(file.dynamic_symbols())
        .take(SYMBOLS)
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.address() != 0)
        .filter_map(|its| Some((offset(its.address())?, its.size(), printable(its.name().ok()?))))
        .collect();
    all.sort();
    all.dedup_by_key(|(start, ..)| *start);
    Functions(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_offset_within_a_function_has_its_name() {
        let functions = Functions(vec![(16, 8, "first".to_owned()), (32, 0, "second".to_owned())]);
        let names = [15, 16, 23, 24, 32, 33].map(|at| functions.name(at));
        let names: Vec<Option<&str>> = names.iter().map(Option::as_deref).collect();
        assert_eq!(names, [None, Some("first"), Some("first"), None, Some("second"), None]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = functions(&bytes);
            // The beginning of an ELF file of 64 bits.
            let header = [0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0x3e, 0, 1, 0, 0, 0];
            let _ = functions(&[&header[..], &bytes[..]].concat());
        }
    }
}
