//! Compiles the programs of this folder and writes a skeleton of each to `OUT_DIR`. Part of the build scripts
//! of the crates that load them.

use libbpf_cargo::SkeletonBuilder;
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
        SkeletonBuilder::new()
            .source(folder.join(format!("{program}.bpf.c")))
            .clang_args(args.into_iter().chain(strict))
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .unwrap_or_else(|error| panic!("bpf/{program}.bpf.c: {error:#}"));
    }
}
