//! The eBPF program that selects a socket (`bpf/steer.bpf.c`): loads it with its maps, and empties the socket map
//! when the program is detached.

use super::group::hex;
use crate::TuneError;
use crate::bpf_programs::{by_id, info};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nearpath_instruments::{listening, reason};
use nearpath_model::Choice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

#[allow(missing_docs, warnings, clippy::all, clippy::pedantic, reason = "generated")]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));
}

/// Name of the socket map in `bpf/steer.bpf.c`.
const SOCKETS: &str = "sockets";

/// A loaded program. It is freed when this is dropped, unless it is attached to a group by then.
pub struct Loaded {
    /// The program.
    pub program: OwnedFd,
    /// Its id.
    pub id: u32,
    /// Its tag.
    pub tag: String,
}

/// Loads the program for these sockets.
///
/// # Errors
/// The kernel refused.
pub fn load(sockets: &[OwnedFd], choices: &[Choice]) -> Result<Loaded, TuneError> {
    listening(|| load_with(sockets, choices))
}

fn load_with(sockets: &[OwnedFd], choices: &[Choice]) -> Result<Loaded, TuneError> {
    let refused = |step: &str| {
        let step = format!("{step} the steering program");
        move |error: libbpf_rs::Error| TuneError::Kernel { step, reason: reason(&error) }
    };
    let (parts, nearest) = tables(choices);
    let mut place = MaybeUninit::uninit();
    let mut open =
        skeleton::SteerSkelBuilder::default().open(&mut place).map_err(refused("opening"))?;
    let length = |n: usize| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    let maps = &mut open.maps;
    maps.sockets
        .set_max_entries(length(sockets.len()))
        .and_then(|()| maps.parts.set_max_entries(length(parts.len())))
        .and_then(|()| maps.nearest.set_max_entries(length(nearest.len())))
        .map_err(refused("cannot size the maps of"))?;
    let loaded = open.load().map_err(refused("loading"))?;
    for (slot, socket) in (0u32..).zip(sockets) {
        let value = u64::from(socket.as_raw_fd().unsigned_abs()).to_ne_bytes();
        let put = loaded.maps.sockets.update(&slot.to_ne_bytes(), &value, MapFlags::ANY);
        put.map_err(|error| TuneError::Kernel {
            step:
                "cannot add a socket to the map of the steering program (busy while the socket is in \
                   another program's map)"
                    .to_owned(),
            reason: error.to_string(),
        })?;
    }
    for (cpu, [first, count]) in (0u32..).zip(&parts) {
        let value = [first.to_ne_bytes(), count.to_ne_bytes()].concat();
        let put = loaded.maps.parts.update(&cpu.to_ne_bytes(), &value, MapFlags::ANY);
        put.map_err(refused("cannot fill the maps of"))?;
    }
    for (at, slot) in (0u32..).zip(&nearest) {
        let put = loaded.maps.nearest.update(&at.to_ne_bytes(), &slot.to_ne_bytes(), MapFlags::ANY);
        put.map_err(refused("cannot fill the maps of"))?;
    }
    let program = loaded.progs.nearpath_steer.as_fd();
    let program = program.try_clone_to_owned();
    let program = program.map_err(|e| TuneError::kernel("cannot keep the steering program", e))?;
    let info = info(program.as_fd(), &mut [])?;
    Ok(Loaded { program, id: info.id, tag: hex(&info.tag) })
}

/// The first slot and the number of slots of each CPU, by CPU number; and the slots.
fn tables(choices: &[Choice]) -> (Vec<[u32; 2]>, Vec<u32>) {
    let cpus = choices.iter().flat_map(|choice| choice.cpus.iter()).map(|cpu| cpu.0 as usize);
    let mut parts = vec![[0, 0]; cpus.max().map_or(0, |last| last + 1)];
    let mut nearest: Vec<u32> = Vec::new();
    for choice in choices {
        let slots = choice.workers.iter().filter_map(|&worker| u32::try_from(worker).ok());
        let first = u32::try_from(nearest.len()).unwrap_or(u32::MAX);
        nearest.extend(slots);
        let count = u32::try_from(choice.workers.len()).unwrap_or(0);
        for cpu in choice.cpus.iter() {
            if let Some(part) = parts.get_mut(cpu.0 as usize) {
                *part = [first, count];
            }
        }
    }
    (parts, nearest)
}

/// The socket map of a loaded program.
#[derive(Debug)]
pub struct Sockets(MapHandle);

impl Sockets {
    /// That of the program with this id and tag; `None` if it no longer exists.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn of(id: u32, tag: &str) -> Result<Option<Self>, TuneError> {
        let Some(program) = by_id(id)? else { return Ok(None) };
        let mut maps = [0; 8];
        let info = info(program.as_fd(), &mut maps)?;
        if hex(&info.tag) != tag {
            return Ok(None);
        }
        for map in maps.iter().take(info.nr_map_ids as usize) {
            let map = MapHandle::from_map_id(*map)
                .map_err(|e| TuneError::kernel("cannot open the map of the steering program", e))?;
            if map.name() == SOCKETS {
                return Ok(Some(Self(map)));
            }
        }
        Ok(None)
    }

    /// Removes the sockets. The kernel frees a program some time after it is detached, and until then a socket in
    /// its map cannot be added to another one.
    pub fn clear(&self) {
        for slot in 0..self.0.max_entries() {
            // The slot of a closed socket is empty.
            let _ = self.0.delete(&slot.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::CpuSet;

    #[test]
    fn tables_hold_each_cpus_slots() {
        let choice = |cpus, workers: &[usize]| Choice {
            cpus: CpuSet::from_list(cpus).unwrap(),
            workers: workers.to_vec(),
            nearness: None,
        };
        let (parts, nearest) = tables(&[choice("0,3", &[1]), choice("1", &[0, 2])]);
        assert_eq!(parts, [[0, 1], [1, 2], [0, 0], [0, 1]]);
        assert_eq!(nearest, [1, 0, 2]);
    }
}
