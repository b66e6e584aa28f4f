//! Fuzzes messages of the latency benchmark: a message is parsed or rejected, and a parsed one must
//! survive a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_trial::latency::{Message, SIZE_MIN};

fuzz_target!(|bytes: &[u8]| {
    if let Some(message) = Message::parse(bytes) {
        let mut again = [0; SIZE_MIN];
        message.write(&mut again);
        assert_eq!(bytes.get(..SIZE_MIN), Some(&again[..]));
    }
});
