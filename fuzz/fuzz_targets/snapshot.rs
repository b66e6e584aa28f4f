//! Fuzzes snapshot files, and reading the whole host from them.
//!
//! Input that is not a zstd frame is used as the tar archive inside one, so that the fuzzer gets past
//! the compression and its checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_model::Host;
use nearpath_host::{Root, Wanted};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

fuzz_target!(|bytes: &[u8]| {
    let opened = if bytes.starts_with(&ZSTD_MAGIC) {
        Root::snapshot_from_bytes(bytes, "fuzz")
    } else {
        let packed = compress_to_vec(bytes, CompressionLevel::Uncompressed);
        Root::snapshot_from_bytes(&packed, "fuzz")
    };
    if let Ok(root) = opened {
        let _ = nearpath_host::read(&root, &Wanted { sockets: true, memory_of: vec![1] });
    }
});
