//! Compiles the programs of the changes.

#[path = "../../bpf/skeletons.rs"]
mod skeletons;

fn main() {
    skeletons::build(&["priority", "steer"]);
}
