//! The JSON documents of the commands, described field by field in docs/json.md.
//!
//! Each borrows what it is made from and is printed as it stands; an unknown value is `null`. The
//! JSON of `measure stages` and of `diagnose` is that of their own types.

mod interval;
mod locality;
mod locality_steps;
mod show;
mod snapshot;
mod stages;
mod steering;
mod tune;
mod tune_demo;

pub use interval::{
    Interval, StagesInterval, accepts_interval, drops_interval, irqs_interval, memory_interval,
    stages_interval, tcp_interval,
};
pub use locality::{LocalityInterval, locality_interval};
pub use locality_steps::{LOCALITY_STEPS_SCHEMA, LocalityStep, LocalitySteps, NotMade};
pub use show::*;
pub use snapshot::{Snapshot, snapshot};
pub use stages::{Stages, stages};
pub use steering::{Steered, steered};
pub use tune::*;
pub use tune_demo::{TUNE_DEMO_SCHEMA, TuneDemo};
