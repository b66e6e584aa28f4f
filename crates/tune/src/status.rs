//! What the journal has, beside what the host has: which changes are there, and which are not any
//! more.
//!
//! In go entries of the journal and what the host has of each; out comes the state of each. But for
//! files of configuration nothing outlasts a reboot, so any other change of an older boot is lost,
//! whatever the host has now: the same number may be another interrupt's.

use crate::{Live, Presence};
use nearpath_model::{ChangeStatus, Entry, Standing, State};

/// How the changes of the journal stand, in its order.
pub fn change_status(entries: &[Entry], live: &Live, boot: &str) -> Vec<ChangeStatus> {
    statuses(entries, boot, |entry| live.look(&entry.change).map_err(|error| error.to_string()))
}

fn statuses(
    entries: &[Entry],
    boot: &str,
    look: impl Fn(&Entry) -> Result<Presence, String>,
) -> Vec<ChangeStatus> {
    let of = |(place, entry): (usize, &Entry)| {
        let further = |later: &&Entry| {
            let same = later.change.target.same_place(&entry.change.target);
            // While it is being made again, the host alone tells of both.
            !later.lost_by_reboot(boot) && same && later.replaces != Some(entry.id)
        };
        let later = entries.iter().skip(place + 1).find(further);
        let mut set_back = false;
        let (standing, reason) = match later {
            _ if entry.lost_by_reboot(boot) => {
                (Some(Standing::Lost), Some("the machine was booted since".to_owned()))
            }
            Some(later) => {
                (Some(Standing::Applied), Some(format!("changed further by change {}", later.id)))
            }
            None => match look(entry) {
                Ok(presence) => {
                    set_back = presence == Presence::Before && entry.state == State::Done;
                    standing(entry.state, presence)
                }
                Err(reason) => (None, Some(reason)),
            },
        };
        ChangeStatus { entry: entry.clone(), standing, reason, set_back }
    };
    entries.iter().enumerate().map(of).collect()
}

fn standing(state: State, presence: Presence) -> (Option<Standing>, Option<String>) {
    let (standing, reason) = match (presence, state) {
        (Presence::After, _) => return (Some(Standing::Applied), None),
        (Presence::Before, State::Begun) => {
            (Standing::Undone, "nothing was written: it was interrupted before".to_owned())
        }
        (Presence::Before, State::Done) => {
            (Standing::Lost, "the value from before is there again".to_owned())
        }
        (Presence::InPart { lacks }, _) => (
            Standing::Drifted,
            format!(
                "the old value is back, but not what the change had reset: {lacks}; 'nearpath tune rollback' restores it"
            ),
        ),
        (Presence::Unplugged { now }, _) => (
            Standing::Drifted,
            format!(
                "its CPU was offline, and the kernel has moved it to {now}; 'nearpath tune rollback' puts back \
                 what was there before"
            ),
        ),
        (Presence::Other { now }, _) => {
            (Standing::Drifted, format!("somebody else has set it to {now:?}"))
        }
        (Presence::Gone { reason }, _) => (Standing::Lost, reason),
    };
    (Some(standing), Some(reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::change;

    fn entry(id: u64, port: u16, state: State, boot: &str) -> Entry {
        Entry { id, time_s: 5, boot: boot.to_owned(), state, change: change(port), replaces: None }
    }

    fn told(entries: &[Entry], presence: Result<Presence, String>) -> Vec<Option<Standing>> {
        let statuses = statuses(entries, "now", |_| presence.clone());
        statuses.into_iter().map(|status| status.standing).collect()
    }

    #[test]
    fn the_host_decides_how_a_change_stands() {
        let done = [entry(1, 80, State::Done, "now")];
        let begun = [entry(1, 80, State::Begun, "now")];
        let other = || Presence::Other { now: "x".to_owned() };
        let gone = || Presence::Gone { reason: "x".to_owned() };
        for (entries, presence, standing) in [
            (&done, Presence::After, Standing::Applied),
            (&begun, Presence::After, Standing::Applied),
            (&done, Presence::Before, Standing::Lost),
            (&begun, Presence::Before, Standing::Undone),
            (&done, other(), Standing::Drifted),
            (&begun, other(), Standing::Drifted),
            (&done, Presence::Unplugged { now: "0-2".to_owned() }, Standing::Drifted),
            (&done, gone(), Standing::Lost),
        ] {
            assert_eq!(told(entries, Ok(presence.clone())), [Some(standing)], "{presence:?}");
        }
        assert_eq!(told(&done, Err("not from here".to_owned())), [None]);
    }

    #[test]
    fn a_reboot_loses_all_whatever_the_host_has_now() {
        let old = [entry(1, 80, State::Done, "before")];
        assert_eq!(told(&old, Ok(Presence::After)), [Some(Standing::Lost)]);
    }

    #[test]
    fn what_was_changed_further_by_us_is_no_drift() {
        let twice = [entry(1, 80, State::Done, "now"), entry(2, 80, State::Done, "now")];
        let other = Presence::Other { now: "x".to_owned() };
        assert_eq!(told(&twice, Ok(other)), [Some(Standing::Applied), Some(Standing::Drifted)]);
    }
}
