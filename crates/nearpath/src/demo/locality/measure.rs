//! Measures the scene. Both instruments run from start to end; the result of a step is the difference of
//! their counts between two looks.

use super::Scene;
use anyhow::{Context, Result};
use nearpath_host::Root;
use nearpath_instruments::accepts::{self, Accepts};
use nearpath_instruments::locality::{self, PacketLocality};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::accepts::AcceptMeasurement;
use nearpath_model::locality::{CpuPairCount, Locality};
use nearpath_model::{CpuId, Direction, Topology};
use nearpath_views::json::LocalityStep;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// The instruments, running.
pub struct Instruments<'a> {
    locality: PacketLocality,
    accepts: Accepts<'a>,
}

/// Their counts at one point in time.
pub struct Look {
    at: Instant,
    /// Packets.
    pub locality: Locality,
    accepts: AcceptMeasurement,
}

impl<'a> Instruments<'a> {
    /// Attaches them to the packets and connections of the scene's server.
    ///
    /// # Errors
    /// They cannot run here.
    pub fn start(
        scene: &Scene,
        root: &'a Root,
        topology: &Topology,
        btf: Option<&Path>,
    ) -> Result<Self> {
        let netns = u32::try_from(scene.server_netns_inode()).context("the namespace's inode")?;
        let filter = Filter { netns: Some(netns), ..Filter::default() };
        let btf_file = btf.map(Path::to_owned);
        let packets =
            locality::Options { filter, btf_file: btf_file.clone(), ..Default::default() };
        let port = Some(scene.address().port());
        let of_port = accepts::Options { netns: Some(netns), port, btf_file, ..Default::default() };
        let mut started = Self {
            locality: PacketLocality::new(topology, packets),
            accepts: Accepts::new(root, topology, of_port),
        };
        started.locality.start().context("cannot measure packets")?;
        started.accepts.start().context("cannot measure accepts")?;
        Ok(started)
    }

    /// Their counts so far.
    ///
    /// # Errors
    /// The instruments were stopped.
    pub fn look(&mut self) -> Result<Look> {
        let at = Instant::now();
        Ok(Look { at, locality: self.locality.read()?, accepts: self.accepts.read()? })
    }
}

impl Look {
    /// The difference to an earlier look, as a step without a name or changes.
    pub fn since(&self, earlier: &Self) -> LocalityStep {
        let (now, then) = (&self.locality, &earlier.locality);
        let unseen = |m: &Locality| {
            let p = &m.packets;
            p.abandoned + p.collided + p.not_allocated
        };
        let lost = |look: &Self| look.locality.events_lost + look.accepts.lost;
        let between = between(&then.places, &now.places);
        let accepts = places(&self.accepts).since(&places(&earlier.accepts));
        LocalityStep {
            duration_s: self.at.duration_since(earlier.at).as_secs_f64(),
            rx: now.rx.since(&then.rx),
            tx: now.tx.since(&then.tx),
            not_followed: unseen(now).saturating_sub(unseen(then)),
            events_lost: lost(self).saturating_sub(lost(earlier)),
            accepts,
            busiest_cpu: busiest(&between),
            places: between,
            ..LocalityStep::default()
        }
    }
}

/// All accepts of all listeners (there is only one).
fn places(m: &AcceptMeasurement) -> nearpath_model::accepts::DistanceCounts {
    let mut all = nearpath_model::accepts::DistanceCounts::default();
    m.listeners.iter().for_each(|listener| all += listener.places);
    all
}

/// The largest share of received packets that one CPU freed; `None` without packets.
fn busiest(places: &[CpuPairCount]) -> Option<f64> {
    let mut by_cpu: BTreeMap<CpuId, u64> = BTreeMap::new();
    for CpuPairCount { place, .. } in places.iter().filter(|p| p.direction == Direction::Rx) {
        *by_cpu.entry(place.to_cpu).or_default() += place.count;
    }
    let (most, all) = (by_cpu.values().max()?, by_cpu.values().sum::<u64>());
    Some(*most as f64 / all as f64)
}

/// The matrix of the packets between two looks.
fn between(then: &[CpuPairCount], now: &[CpuPairCount]) -> Vec<CpuPairCount> {
    let key = |p: &CpuPairCount| (p.direction, p.place.from_cpu, p.place.to_cpu);
    let then: BTreeMap<_, u64> = then.iter().map(|p| (key(p), p.place.count)).collect();
    let mut new = now.to_vec();
    for places in &mut new {
        let before = then.get(&key(places)).copied().unwrap_or(0);
        places.place.count = places.place.count.saturating_sub(before);
    }
    new.retain(|places| places.place.count > 0);
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Place;
    use nearpath_model::accepts::Listener;

    fn place(from: u32, to: u32, count: u64) -> CpuPairCount {
        let (from_cpu, to_cpu) = (CpuId(from), CpuId(to));
        let place = Place { from_cpu, to_cpu, from_node: None, to_node: None, count };
        CpuPairCount { direction: Direction::Rx, place }
    }

    fn accepted(accepts: u64) -> AcceptMeasurement {
        let places = nearpath_model::accepts::DistanceCounts {
            accepts,
            same_cpu: accepts,
            ..Default::default()
        };
        let local = "198.18.0.2:80".to_owned();
        let listener = Listener { local, netns: 1, places, workers: Vec::new() };
        AcceptMeasurement { listeners: vec![listener], lost: accepts / 10, ..Default::default() }
    }

    #[test]
    fn a_step_is_the_difference_of_two_looks() {
        let at = Instant::now();
        let look = |rx: Vec<CpuPairCount>, accepts| Look {
            at,
            locality: Locality { places: rx, ..Locality::default() },
            accepts,
        };
        let then = look(vec![place(0, 0, 5), place(0, 1, 2)], accepted(10));
        let now = look(vec![place(0, 0, 5), place(0, 1, 9), place(1, 0, 1)], accepted(34));
        let step = now.since(&then);
        assert_eq!(step.places, [place(0, 1, 7), place(1, 0, 1)]);
        assert_eq!((step.accepts.accepts, step.accepts.same_cpu), (24, 24));
        assert_eq!((step.busiest_cpu, step.events_lost), (Some(7.0 / 8.0), 2));
        assert_eq!(then.since(&then).busiest_cpu, None);
    }
}
