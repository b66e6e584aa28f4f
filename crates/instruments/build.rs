//! Compiles the programs of the instruments.

#[path = "../../bpf/skeletons.rs"]
mod skeletons;
#[path = "../../bpf/stage_table.rs"]
mod stage_table;

fn main() {
    stage_table::write();
    skeletons::build(&[
        "accepts",
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
