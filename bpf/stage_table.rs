//! Writes the table of stages in Rust from the one in `stages.h`, for the crate that loads the programs.

use std::path::{Path, PathBuf};

/// Writes the table of stages, `stages_table.rs`, from the one in `bpf/stages.h`.
pub fn write() {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let header = Path::new(&package).join("../../bpf/stages.h");
    let text = std::fs::read_to_string(&header).expect("bpf/stages.h is there");
    let rows: Vec<String> = text.lines().filter_map(stage_row).collect();
    assert!(!rows.is_empty(), "bpf/stages.h has no line STAGE(…)");
    let define = text.lines().find_map(|line| line.strip_prefix("#define STAGES_MAX "));
    let max: usize = define.and_then(|n| n.trim().parse().ok()).expect("STAGES_MAX is a number");
    let table = format!(
        "/// All stages in the order of the path; the number of a stage is its index plus one.\n\
         pub const STAGES: &[Stage] = &[\n{}];\n\
         /// Most stages that the programs have room for.\n\
         pub const STAGES_MAX: usize = {max};\n",
        rows.concat()
    );
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(out.join("stages_table.rs"), table).expect("OUT_DIR can be written to");
}

/// The row of a line `STAGE(direction, name, detail, end)`; `None` for any other line.
fn stage_row(line: &str) -> Option<String> {
    let (inside, _) = line.trim().strip_prefix("STAGE(")?.split_once(')')?;
    let mut words = inside.split(',').map(str::trim);
    let [direction, name, detail, end] = [(); 4].map(|()| words.next().unwrap_or_default());
    let direction = match direction {
        "RX" => "Rx",
        "TX" => "Tx",
        other => panic!("bpf/stages.h: direction {other:?} of {line:?}"),
    };
    let detail = match detail {
        "COARSE" => "Coarse",
        "PATH" => "Path",
        "FULL" => "Full",
        other => panic!("bpf/stages.h: detail {other:?} of {line:?}"),
    };
    let last = match end {
        "LAST" => true,
        "INNER" => false,
        other => panic!("bpf/stages.h: end {other:?} of {line:?}"),
    };
    let name = name.to_lowercase();
    Some(format!(
        "    Stage {{ direction: Direction::{direction}, name: {name:?}, \
         detail: Detail::{detail}, last: {last} }},\n"
    ))
}
