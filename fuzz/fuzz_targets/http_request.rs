//! Fuzzes what `monitor` reads from the network: the head of a request, in one piece and cut anywhere, and what a
//! scraper accepts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_monitor::exposition::negotiate;
use nearpath_monitor::http::{HEAD_MAX, parse};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(request)) = parse(bytes) {
        assert!(request.path.starts_with('/') && !request.path.contains('?'));
        assert!(request.path.len() <= HEAD_MAX && request.accept.len() <= HEAD_MAX);
        let _ = negotiate(&request.accept);
        // What is complete stays so, and its beginning is never another request.
        for end in 0..bytes.len().min(HEAD_MAX) {
            match parse(&bytes[..end]) {
                Ok(None) => {}
                Ok(Some(earlier)) => assert_eq!(earlier, request),
                Err(refusal) => panic!("{refusal:?} for the first {end} bytes"),
            }
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = negotiate(text);
    }
});
