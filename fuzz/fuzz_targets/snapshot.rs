//! Any bytes as the file of a snapshot, and the whole host read from it.
//!
//! Bytes that are no zstd frame are taken as the tar archive inside one: so the fuzzer gets past
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
