//! Compiles the programs of the instruments.

#[path = "../../bpf/skeletons.rs"]
mod skeletons;

fn main() {
    skeletons::build(&["accepts", "histogram", "irqs", "locality", "reuseport", "stages"]);
}
