//! Compiles the programs of this folder and writes a skeleton of each to `OUT_DIR`. Part of the build scripts
//! of the crates that load them.

use libbpf_cargo::SkeletonBuilder;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Writes `NAME.skel.rs` for each `NAME.bpf.c`.
pub fn build(programs: &[&str]) {
    // Read at run time: a copied target folder contains the build script compiled for another tree.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let folder = Path::new(&package).join("../../bpf");
    println!("cargo:rerun-if-changed={}", folder.display());
    println!("cargo:rerun-if-env-changed=CI");
    // A warning added by a later clang must not break a user's build.
    let strict = std::env::var_os("CI").map(|_| "-Werror");
    // v3 has 32-bit arithmetic; every kernel since 5.10 supports it.
    let args = ["-mcpu=v3", "-Wall", "-Wextra", "-Wno-unused-parameter"];
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for program in programs {
        let [object, skeleton] = ["o", "skel.rs"].map(|ext| out.join(format!("{program}.{ext}")));
        SkeletonBuilder::new()
            .source(folder.join(format!("{program}.bpf.c")))
            .obj(&object)
            .clang_args(args.into_iter().chain(strict))
            .build_and_generate(&skeleton)
            .unwrap_or_else(|error| panic!("bpf/{program}.bpf.c: {error:#}"));
        compress(&object, &skeleton);
    }
}

/// Compresses the object in a skeleton: to a fifth, which matters in a binary that is sent to a fleet. It is unpacked when
/// the skeleton is first opened.
fn compress(object: &Path, skeleton: &Path) {
    let bytes = fs::read(object).expect("the object was written");
    let compressed = compress_to_vec(&bytes[..], CompressionLevel::Fastest);
    let mut unpacked = Vec::with_capacity(bytes.len());
    let mut decoder = StreamingDecoder::new(&compressed[..]).expect("a frame");
    decoder.read_to_end(&mut unpacked).expect("it was just packed");
    // So that it cannot fail where nearpath runs.
    assert!(unpacked == bytes, "{}: packing has damaged it", object.display());
    let packed = object.with_extension("o.zst");
    fs::write(&packed, compressed).expect("OUT_DIR is writable");
    let text = fs::read_to_string(skeleton).expect("the skeleton was written");
    let (start, end) = static_object(&text).expect("a skeleton holds its object");
    let data = format!(
        "static DATA: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {{
        let packed = include_bytes!({packed:?});
        let mut object = Vec::with_capacity({});
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(&packed[..]).expect(\"a frame\");
        std::io::Read::read_to_end(&mut decoder, &mut object).expect(\"packed by the build\");
        object
    }});",
        bytes.len()
    );
    fs::write(skeleton, [&text[..start], &data, &text[end..]].concat())
        .expect("OUT_DIR is writable");
}

/// Where the object is in a skeleton, from its attribute to its semicolon. A skeleton is formatted only where there is a
/// rustfmt.
fn static_object(text: &str) -> Option<(usize, usize)> {
    let section = text.find("\".bpf.objs\"")?;
    let start = text[..section].rfind('#')?;
    let value = section + text[section..].find("DATA")?;
    let mut end = value;
    // Of the declaration `DATA: [u8; N] = [0, 1];`
    for token in ['=', ']', ';'] {
        end += text[end..].find(token)? + 1;
    }
    Some((start, end))
}
