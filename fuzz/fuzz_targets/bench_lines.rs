//! Fuzzes what the benchmarks read from others: lines of the control connection of `bench packets`,
//! its packets, and the output of iperf3. The first byte selects the parser.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_trial::background::parse_iperf3;
use nearpath_trial::packets::{Header, parse_answer, parse_request};

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, rest)) = bytes.split_first() else { return };
    match which % 4 {
        0 => {
            // Writing and parsing again gives the same value.
            if let Some(request) = parse_request(rest) {
                let again = serde_json::to_vec(&request).unwrap_or_default();
                assert_eq!(parse_request(&again), Some(request));
            }
        }
        1 => drop(parse_answer(rest)),
        2 => {
            if let Some(header) = Header::parse(rest) {
                let mut again = [0; 16];
                header.write(&mut again);
                assert_eq!(rest.get(..16), Some(&again[..]));
            }
        }
        _ => drop(parse_iperf3(rest)),
    }
});
