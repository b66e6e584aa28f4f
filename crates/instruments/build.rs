//! Compiles the programs of the instruments.

#[path = "../../bpf/constants.rs"]
mod constants;
#[path = "../../bpf/skeletons.rs"]
mod skeletons;
#[path = "../../bpf/stage_table.rs"]
mod stage_table;

fn main() {
    stage_table::write();
    constants::write(&[
        "CELLS_MAX",
        "CGROUP_LEVELS",
        "CGROUP_NAME",
        "GROUPS_MAX",
        "NICS_AND_UPPERS_MAX",
        "NICS_MAX",
        "NO_PROCESS",
        "PAUSES_MAX",
        "RATE_BITS",
        "SEEN_SLOT_BITS",
    ]);
    skeletons::build(&[
        "accepts",
        "answers",
        "damon",
        "drops",
        "histogram",
        "irqs",
        "locality",
        "memory",
        "reuseport",
        "stages",
        "tcp",
        "tcp_cpus",
        "tcp_samples",
        "workers",
        "vm",
    ]);
}
