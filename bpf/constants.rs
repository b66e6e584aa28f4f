//! Writes the numbers that programs and Rust share, as constants in Rust, from their `#define` in the headers.

use std::path::{Path, PathBuf};

/// Writes `constants.rs`: a `u64` of each name, as one of the headers of this folder defines it.
pub fn write(names: &[&str]) {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let folder = Path::new(&package).join("../../bpf");
    let files = std::fs::read_dir(&folder).expect("bpf is there").flatten().map(|file| file.path());
    let headers = files.filter(|path| path.extension().is_some_and(|ext| ext == "h"));
    let text: String =
        headers.map(|path| std::fs::read_to_string(path).expect("a header is text")).collect();
    let line = |name: &&str| {
        let value =
            defined(&text, name).unwrap_or_else(|| panic!("no header of bpf defines {name}"));
        format!("/// The same as in the programs.\npub const {name}: u64 = {value};\n")
    };
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let lines: String = names.iter().map(line).collect();
    std::fs::write(out.join("constants.rs"), lines).expect("OUT_DIR can be written to");
}

/// The value of `#define NAME 512` or `#define NAME (1ULL << 54)`.
fn defined(text: &str, name: &str) -> Option<u64> {
    let start = format!("#define {name} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&start))?.trim();
    match value.strip_prefix("(1ULL << ").and_then(|rest| rest.strip_suffix(')')) {
        Some(bits) => bits.parse().ok().map(|bits: u32| 1 << bits),
        None => value.parse().ok(),
    }
}
