//! The state of the changes in the journal, compared with the host.
//!
//! Input: entries of the journal and the current values. Output: the state of each. Only configuration files
//! survive a reboot, so any other change of an earlier boot is lost, whatever the host has now: the same interrupt
//! number may belong to another interrupt.

use crate::live::interface_gone;
use crate::{Live, ObservedValue, journal::now_s};
use nearpath_model::{ChangeState, ChangeStatus, Entry, Pending, State};
use std::collections::BTreeMap;
use std::slice;

/// The state of each change, in the order of the journal. Their targets have the current names of their interfaces.
pub fn change_status(entries: &[Entry], live: &Live, boot: &str) -> Vec<ChangeStatus> {
    let mut entries = entries.to_vec();
    let mut renamed = BTreeMap::new();
    let mut absent = BTreeMap::new();
    for entry in entries.iter_mut().filter(|entry| !entry.lost_by_reboot(boot)) {
        match live.follow(&entry.change.target) {
            Ok(Some(now)) => {
                let was = std::mem::replace(&mut entry.change.target, now);
                if was.to_string() != entry.change.target.to_string() {
                    renamed.insert(entry.id, was);
                }
            }
            // Their names may be those of other interfaces.
            Ok(None) => drop(absent.insert(entry.id, Ok(interface_gone(&entry.change.target)))),
            Err(error) => drop(absent.insert(entry.id, Err(error.to_string()))),
        }
    }
    let observed = |entry: &Entry| match absent.get(&entry.id) {
        Some(Ok(reason)) => Ok(ObservedValue::Gone { reason: String::clone(reason) }),
        Some(Err(reason)) => Err(String::clone(reason)),
        None => live.look(&entry.change).map_err(|error| error.to_string()),
    };
    let (away, here): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| absent.contains_key(&entry.id));
    let mut all = statuses(&here, boot, observed);
    all.extend(away.iter().flat_map(|entry| statuses(slice::from_ref(entry), boot, observed)));
    all.sort_by_key(|status| status.entry.id);
    for status in &mut all {
        if let Some(was) = renamed.get(&status.entry.id) {
            let reason = status.reason.get_or_insert_default();
            let separator = if reason.is_empty() { "" } else { "; " };
            *reason = format!("made as {was}: the interface was renamed{separator}{reason}");
        }
    }
    all
}

fn statuses(
    entries: &[Entry],
    boot: &str,
    look: impl Fn(&Entry) -> Result<ObservedValue, String>,
) -> Vec<ChangeStatus> {
    let of = |(place, entry): (usize, &Entry)| {
        let further = |later: &&Entry| {
            let same = later.change.target.same_place(&entry.change.target);
            // While it is being re-applied, only the host shows which of both is in effect.
            !later.lost_by_reboot(boot) && same && later.replaces != Some(entry.id)
        };
        let later = entries.iter().skip(place + 1).find(further);
        let (mut set_back, mut unplugged) = (false, false);
        let (state, reason) = match later {
            _ if entry.lost_by_reboot(boot) => {
                (Some(ChangeState::Lost), Some("the host was rebooted since".to_owned()))
            }
            Some(later) => {
                (Some(ChangeState::Applied), Some(format!("superseded by change {}", later.id)))
            }
            None => match look(entry) {
                Ok(observed) => {
                    set_back = observed == ObservedValue::Before && entry.state == State::Done;
                    unplugged = matches!(observed, ObservedValue::Unplugged { .. });
                    change_state(entry.state, observed)
                }
                Err(reason) => (None, Some(reason)),
            },
        };
        let reason = reason.or_else(|| Some(undecided(entry.pending?)));
        ChangeStatus { entry: entry.clone(), state, reason, set_back, unplugged }
    };
    entries.iter().enumerate().map(of).collect()
}

/// What becomes of a change that is pending.
fn undecided(pending: Pending) -> String {
    match pending {
        Pending::Trial => "on trial; undone when the trial ends, unless it helps".to_owned(),
        Pending::ConfirmBy(time_s) => match time_s.saturating_sub(now_s()) {
            0 => "not confirmed in time; 'nearpath tune rollback' undoes it".to_owned(),
            left_s => format!("undone in {left_s} s, unless 'nearpath tune confirm' is run"),
        },
    }
}

fn change_state(state: State, observed: ObservedValue) -> (Option<ChangeState>, Option<String>) {
    let (state, reason) = match (observed, state) {
        (ObservedValue::After, _) => return (Some(ChangeState::Applied), None),
        (ObservedValue::Before, State::Begun)
        | (ObservedValue::Unplugged { is_before: true, .. }, State::Begun) => {
            (ChangeState::Undone, "interrupted before anything was written".to_owned())
        }
        (ObservedValue::Before, State::Done) => {
            (ChangeState::Lost, "the original value is back".to_owned())
        }
        (ObservedValue::InPart { lacks }, _) => (
            ChangeState::Drifted,
            format!(
                "the original value is back, but settings reset by the change are not: {lacks}; 'nearpath tune rollback' restores them"
            ),
        ),
        (ObservedValue::Unplugged { now, .. }, _) => (
            ChangeState::Drifted,
            format!(
                "a CPU went offline, and the kernel or the driver moved it to {now}; 'nearpath tune rollback' \
                 restores the original value"
            ),
        ),
        (ObservedValue::Other { now }, _) => {
            (ChangeState::Drifted, format!("changed externally to {now:?}"))
        }
        (ObservedValue::Gone { reason }, _) => (ChangeState::Lost, reason),
    };
    (Some(state), Some(reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::change;

    fn entry(id: u64, port: u16, state: State, boot: &str) -> Entry {
        Entry {
            id,
            time_s: 5,
            boot: boot.to_owned(),
            state,
            change: change(port),
            replaces: None,
            pending: None,
        }
    }

    fn state_of(
        entries: &[Entry],
        observed: Result<ObservedValue, String>,
    ) -> Vec<Option<ChangeState>> {
        let statuses = statuses(entries, "now", |_| observed.clone());
        statuses.into_iter().map(|status| status.state).collect()
    }

    #[test]
    fn the_host_determines_the_state() {
        let done = [entry(1, 80, State::Done, "now")];
        let begun = [entry(1, 80, State::Begun, "now")];
        let other = || ObservedValue::Other { now: "x".to_owned() };
        let gone = || ObservedValue::Gone { reason: "x".to_owned() };
        let unplugged = |is_before| ObservedValue::Unplugged { now: "0-2".to_owned(), is_before };
        for (entries, observed, state) in [
            (&done, ObservedValue::After, ChangeState::Applied),
            (&begun, ObservedValue::After, ChangeState::Applied),
            (&done, ObservedValue::Before, ChangeState::Lost),
            (&begun, ObservedValue::Before, ChangeState::Undone),
            (&done, other(), ChangeState::Drifted),
            (&begun, other(), ChangeState::Drifted),
            (&done, unplugged(false), ChangeState::Drifted),
            // What the driver sets may be what was there before.
            (&done, unplugged(true), ChangeState::Drifted),
            (&begun, unplugged(true), ChangeState::Undone),
            (&done, gone(), ChangeState::Lost),
        ] {
            assert_eq!(state_of(entries, Ok(observed.clone())), [Some(state)], "{observed:?}");
        }
        assert_eq!(state_of(&done, Err("not from here".to_owned())), [None]);
    }

    #[test]
    fn a_reboot_loses_every_change() {
        let old = [entry(1, 80, State::Done, "before")];
        assert_eq!(state_of(&old, Ok(ObservedValue::After)), [Some(ChangeState::Lost)]);
    }

    #[test]
    fn a_later_change_of_ours_is_not_drift() {
        let twice = [entry(1, 80, State::Done, "now"), entry(2, 80, State::Done, "now")];
        let other = ObservedValue::Other { now: "x".to_owned() };
        assert_eq!(
            state_of(&twice, Ok(other)),
            [Some(ChangeState::Applied), Some(ChangeState::Drifted)]
        );
    }
}
