//! The changes of nearpath on this host in exportable form. Input: the journal. Output: changes of a plan.

use super::LeftOut;
use nearpath_model::{Change, ChangeState, ChangeStatus, InterfaceId, PlannedChange, Target};

/// The changes in effect, each setting once: with the value before its first change and the value of its last.
/// And the others, with the reason why they are not exported.
pub fn applied(statuses: &[ChangeStatus]) -> (Vec<PlannedChange>, Vec<LeftOut>) {
    let (mut changes, mut left_out): (Vec<PlannedChange>, Vec<LeftOut>) = Default::default();
    for status in statuses {
        let change = &status.entry.change;
        let id = format!("change-{}", status.entry.id);
        match planned(change, &id).and_then(|planned| here(status).map(|()| planned)) {
            Ok(planned) => match changes.iter_mut().find(|c| c.target == planned.target) {
                Some(earlier) => {
                    *earlier = PlannedChange { before: earlier.before.clone(), ..planned };
                }
                None => changes.push(planned),
            },
            Err(reason) => {
                left_out.push(LeftOut { id, target: change.target.to_string(), reason });
            }
        }
    }
    (changes, left_out)
}

fn here(status: &ChangeStatus) -> Result<(), String> {
    match status.state {
        Some(ChangeState::Applied) => Ok(()),
        // Nobody chose the current value.
        Some(ChangeState::Drifted) if status.unplugged => Ok(()),
        Some(ChangeState::Drifted) => Err("changed externally (drift)".to_owned()),
        Some(ChangeState::Lost | ChangeState::Undone) => {
            Err("not in effect on this host".to_owned())
        }
        None => Err("not visible from this network namespace".to_owned()),
    }
}

fn planned(change: &Change, id: &str) -> Result<PlannedChange, String> {
    if change.target.group().is_some() {
        return Err("a BPF program ends with its sockets".to_owned());
    }
    let target = place(&change.target);
    Ok(PlannedChange {
        id: id.to_owned(),
        reboot: target.takes_reboot(),
        optional: target.may_be_refused(),
        target,
        before: change.before.clone(),
        after: change.after.clone(),
        why: change.why.clone(),
        finding: None,
        persist: vec![],
        predicted: None,
    })
}

/// The same setting, regardless of the instance and namespace it was made on.
fn place(target: &Target) -> Target {
    let mut target = target.clone().in_netns(None);
    if let Some(interface) = target.interface_of() {
        *interface.id = InterfaceId::default();
    }
    match &mut target {
        Target::File(file) => (file.instance, file.cpus) = (None, None),
        Target::Thread(thread) => thread.cpus = None,
        _ => {}
    }
    target
}
