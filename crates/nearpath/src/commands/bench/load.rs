//! `--load` of the benchmarks: iperf3 beside the probes. Input: options. Output: running clients, which end
//! with the benchmark.

use crate::failure::Failure;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use nearpath_trial::background::{
    Background, BackgroundError, BackgroundReport, LOAD_PORT, Loading, MAX_STREAMS, Protocol,
};
use std::net::IpAddr;
use std::time::Duration;

/// Extra run time of a load, for connecting and for the warm-up of the probes.
const AROUND: Duration = Duration::from_secs(2);

/// Options of the load.
#[derive(Debug, Args)]
#[command(next_help_heading = "Background load (iperf3, to 'bench reflect --load')")]
pub(in crate::commands) struct Load {
    /// Load the path during the measurement: tcp or udp; repeatable
    #[arg(long, value_name = "PROTOCOL", value_parser = protocol)]
    load: Vec<Protocol>,
    /// Streams per protocol
    #[arg(long, value_name = "N", default_value_t = 1, requires = "load")]
    #[arg(value_parser = RangedU64ValueParser::<u16>::new().range(1..=u64::from(MAX_STREAMS)))]
    load_streams: u16,
    /// Bits per second per stream: 500M, 2.5G [default: unlimited]
    #[arg(long, value_name = "BITS", value_parser = bits, requires = "load")]
    load_rate: Option<u64>,
    /// Send the load from the reflector to this host
    #[arg(long, requires = "load")]
    load_reverse: bool,
    /// Port of the iperf3 server for TCP; UDP uses the next port
    #[arg(long, value_name = "PORT", default_value_t = LOAD_PORT, requires = "load")]
    #[arg(value_parser = load_port())]
    load_port: u16,
}

/// A port that has a successor.
pub(super) fn load_port() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=65_534)
}

/// Running loads. They end when this is dropped.
pub(super) struct Loads(Vec<Loading>);

impl Load {
    /// Whether any load was requested.
    pub(in crate::commands) fn is_wanted(&self) -> bool {
        !self.load.is_empty()
    }

    /// Starts the load for a benchmark of this duration.
    pub(super) fn start(&self, target: IpAddr, time: Duration) -> Result<Loads, Failure> {
        Ok(Loads(self.streams(target, time).map_err(anyhow::Error::from)?))
    }

    /// Like [`Load::start`], but returns the individual streams.
    pub(in crate::commands) fn streams(
        &self,
        target: IpAddr,
        time: Duration,
    ) -> Result<Vec<Loading>, BackgroundError> {
        let mut loads = Vec::new();
        for &protocol in &self.load {
            let load = Background {
                base_port: self.load_port,
                streams: self.load_streams,
                bits_per_s: self.load_rate,
                reverse: self.load_reverse,
                ..Background::new(protocol, target)
            };
            loads.push(Loading::start(&load, time + AROUND)?);
        }
        Ok(loads)
    }
}

impl Loads {
    /// Waits for them to finish, or with `early` stops them now.
    pub(super) fn finish(self, early: bool) -> Vec<BackgroundReport> {
        self.0.into_iter().map(|load| load.finish(early)).collect()
    }
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        _ => Err("expected tcp or udp".to_owned()),
    }
}

/// Parses bits per second with a suffix of k, M or G (decimal).
pub(super) fn bits(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'g' | 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    match number.parse::<f64>().map(|number| number * unit) {
        Ok(bits) if (1e3..=1e12).contains(&bits) => Ok(bits.round() as u64),
        _ => Err("expected 1k to 1000G".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        assert_eq!(bits("1000"), Ok(1_000));
        assert_eq!(
            (bits("500M"), bits("2.5g"), bits("64k")),
            (Ok(500_000_000), Ok(2_500_000_000), Ok(64_000))
        );
        for bad in ["", "M", "1", "-5M", "NaN", "inf", "2000G", "5 M", "5µ"] {
            assert!(bits(bad).is_err(), "{bad}");
        }
    }
}
