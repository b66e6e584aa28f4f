//! The states of a connection.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of a connection (include/net/tcp_states.h), named as in ss(8).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "RFC 9293")]
pub enum TcpState {
    #[default]
    #[serde(rename = "estab")]
    Established,
    SynSent,
    SynRecv,
    #[serde(rename = "fin-wait-1")]
    FinWait1,
    #[serde(rename = "fin-wait-2")]
    FinWait2,
    TimeWait,
    #[serde(rename = "unconn")]
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    NewSynRecv,
}

/// Number and name of each state.
const STATES: [(TcpState, u8, &str); 12] = [
    (TcpState::Established, 1, "ESTAB"),
    (TcpState::SynSent, 2, "SYN-SENT"),
    (TcpState::SynRecv, 3, "SYN-RECV"),
    (TcpState::FinWait1, 4, "FIN-WAIT-1"),
    (TcpState::FinWait2, 5, "FIN-WAIT-2"),
    (TcpState::TimeWait, 6, "TIME-WAIT"),
    (TcpState::Close, 7, "UNCONN"),
    (TcpState::CloseWait, 8, "CLOSE-WAIT"),
    (TcpState::LastAck, 9, "LAST-ACK"),
    (TcpState::Listen, 10, "LISTEN"),
    (TcpState::Closing, 11, "CLOSING"),
    (TcpState::NewSynRecv, 12, "SYN-RECV"),
];

impl TcpState {
    /// States of connections that are not over: they have a `tcp_info`.
    pub const LIVE: &[Self] = &[
        Self::Established,
        Self::SynSent,
        Self::SynRecv,
        Self::FinWait1,
        Self::FinWait2,
        Self::CloseWait,
        Self::LastAck,
        Self::Closing,
    ];

    /// Its number in the kernel.
    pub fn number(self) -> u8 {
        STATES.iter().find(|(state, ..)| *state == self).map_or(0, |(_, number, _)| *number)
    }

    /// The state with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        STATES.iter().find(|(_, n, _)| *n == number).map(|(state, ..)| *state)
    }
}

impl fmt::Display for TcpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = STATES.iter().find(|(state, ..)| state == self).map_or("?", |(.., name)| name);
        f.pad(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_kernels_numbers() {
        for number in 1..=12 {
            let state = TcpState::from_number(number).unwrap();
            assert_eq!(state.number(), number);
        }
        assert_eq!(TcpState::from_number(0).or(TcpState::from_number(13)), None);
        assert_eq!(serde_json::to_string(&TcpState::FinWait1).unwrap(), "\"fin-wait-1\"");
    }
}
