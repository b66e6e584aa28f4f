//! Probes: programs and what each is attached to.
//!
//! A probe at a tracepoint is a pair of programs (`PROBE` in `bpf/probe.h`), `NAME_btf` and
//! `NAME_raw`, and may have others at functions for kernels that lack its tracepoint. A probe at a
//! function is `NAME_entry` (fentry) and `NAME_kprobe`, or `NAME_exit` (fexit) and, if it wants only the
//! result, `NAME_exit_ret` (kretprobe).

/// Where a probe is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Name of the programs without their suffix.
    pub program: &'static str,
    /// The tracepoint, as in `btf_trace_NAME`; `None` for a probe at a function.
    pub tracepoint: Option<&'static str>,
    /// The kernel function that calls it, or is probed itself.
    pub function: &'static str,
    /// Functions that are probed, all of them together, where there is no such tracepoint.
    pub points: &'static [Point],
    /// Whether the functions come first, by fentry and fexit, and the tracepoint stands in for them.
    pub prefers_functions: bool,
    /// Names of what it observes, of both directions; empty for a probe that only keeps what others
    /// need.
    pub stages: &'static [&'static str],
    /// Names of stages that cannot be observed, or not be told from others, without it.
    pub keeps_for: &'static [&'static str],
    /// Whether budgets rest on it, so that it is attached for them whichever stages are observed.
    pub history: bool,
}

/// A program at a kernel function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The program's name behind that of the probe.
    pub suffix: &'static str,
    /// Its entry (fentry, or a kprobe by the program with the suffix `kprobe`), or its exit (fexit).
    pub at: At,
    /// The function.
    pub function: &'static str,
    /// The module that has it, when it is not the kernel itself.
    pub module: Option<&'static str>,
    /// Whether its first argument points to a pointer, which programs of fentry may not read.
    pub indirect: bool,
    /// Whether the program at its exit has another for a kretprobe, which sees nothing but the result.
    pub result_only: bool,
}

/// Which end of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Where it begins.
    Entry,
    /// Where it returns.
    Exit,
}

/// A probe at a tracepoint, which the function calls.
pub const fn probe(
    program: &'static str,
    tracepoint: &'static str,
    function: &'static str,
    stages: &'static [&'static str],
) -> Probe {
    Probe {
        program,
        tracepoint: Some(tracepoint),
        function,
        points: &[],
        prefers_functions: false,
        stages,
        keeps_for: &[],
        history: false,
    }
}

/// The same, and functions for kernels without the tracepoint.
pub const fn or_at(probe: Probe, points: &'static [Point]) -> Probe {
    Probe { points, ..probe }
}

/// The same where functions are better: the tracepoint stands in for them.
pub const fn better_at(probe: Probe, points: &'static [Point]) -> Probe {
    Probe { points, prefers_functions: true, ..probe }
}

/// A probe at the entry of a function without tracepoint, which the stage is named after.
pub const fn at(points: &'static [Point; 1], stages: &'static [&'static str; 1]) -> Probe {
    let [program] = stages;
    Probe { stages, ..keeper(points, program) }
}

/// The same, of what others need.
pub const fn keeper(points: &'static [Point; 1], program: &'static str) -> Probe {
    let [point] = points;
    let probe = probe(program, "", point.function, &[]);
    Probe { tracepoint: None, points, ..probe }
}

/// A probe at the return of a function, which keeps what others need.
pub const fn returns(program: &'static str, points: &'static [Point; 1]) -> Probe {
    let [point] = points;
    Probe { tracepoint: None, points, ..probe(program, "", point.function, &[]) }
}

/// The entry of a function.
pub const fn entry(function: &'static str) -> Point {
    Point {
        suffix: "entry",
        at: At::Entry,
        function,
        module: None,
        indirect: false,
        result_only: false,
    }
}

/// The entry of a function, by the program with that suffix.
pub const fn entry_by(suffix: &'static str, function: &'static str) -> Point {
    Point { suffix, ..entry(function) }
}

/// The return of a function, by the program with that suffix.
pub const fn exit(suffix: &'static str, function: &'static str) -> Point {
    Point { suffix, at: At::Exit, ..entry(function) }
}

/// The return of a function of which only the result is wanted.
pub const fn result(suffix: &'static str, function: &'static str) -> Point {
    Point { result_only: true, ..exit(suffix, function) }
}

/// A function of a module.
pub const fn of(module: &'static str, point: Point) -> Point {
    Point { module: Some(module), ..point }
}

/// A function whose first argument points to a pointer.
pub const fn pointed_to(point: Point) -> Point {
    Point { indirect: true, ..point }
}
