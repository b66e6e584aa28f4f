//! Probes: programs and their attach points.
//!
//! A probe at a tracepoint is a pair of programs (`PROBE` in `bpf/probe.h`), `NAME_btf` and
//! `NAME_raw`, and may have others at functions for kernels that lack its tracepoint. A probe at a
//! function is `NAME_entry` (fentry) and `NAME_kprobe`, or `NAME_exit` (fexit) and, if it wants only the
//! result, `NAME_exit_ret` (kretprobe).

/// A probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Name of the programs without suffix.
    pub program: &'static str,
    /// The tracepoint, as in `btf_trace_NAME`; `None` for a probe at a function.
    pub tracepoint: Option<&'static str>,
    /// The kernel function that calls the tracepoint, or that is probed.
    pub function: &'static str,
    /// Functions that are probed, all together, if the tracepoint does not exist.
    pub points: &'static [Point],
    /// Whether the functions are preferred, by fentry and fexit, and the tracepoint is the fallback.
    pub prefers_functions: bool,
    /// Names of what it observes, in both directions; empty for a probe that only supports others.
    pub stages: &'static [&'static str],
    /// Names of stages that cannot be observed, or not be distinguished from others, without it.
    pub keeps_for: &'static [&'static str],
    /// Whether budgets need it, so that it is attached for them whatever stages are observed.
    pub history: bool,
    /// Whether it watches every packet, also while the others are paused.
    pub watch: bool,
}

/// A program at a kernel function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Suffix of the program's name.
    pub suffix: &'static str,
    /// Entry (fentry, or a kprobe by the program with the suffix `kprobe`), or exit (fexit).
    pub at: At,
    /// The function.
    pub function: &'static str,
    /// The module that contains it, if it is not in the kernel itself.
    pub module: Option<&'static str>,
    /// Whether it needs a kprobe, as fentry does not work for it.
    pub needs_kprobe: bool,
    /// Whether there is another program for a kretprobe, which sees only the result.
    pub result_only: bool,
}

/// Entry or exit of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// At its entry.
    Entry,
    /// At its return.
    Exit,
}

/// A probe at a tracepoint, which is called by the function.
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
        watch: false,
    }
}

/// The same, with functions for kernels without the tracepoint.
pub const fn or_at(probe: Probe, points: &'static [Point]) -> Probe {
    Probe { points, ..probe }
}

/// The same if the functions are preferred and the tracepoint is the fallback.
pub const fn better_at(probe: Probe, points: &'static [Point]) -> Probe {
    Probe { points, prefers_functions: true, ..probe }
}

/// A probe at the entry of a function without a tracepoint, with the name of the stage.
pub const fn at(points: &'static [Point; 1], stages: &'static [&'static str; 1]) -> Probe {
    let [program] = stages;
    Probe { stages, ..helper_probe(points, program) }
}

/// The same, in support of other probes.
pub const fn helper_probe(points: &'static [Point; 1], program: &'static str) -> Probe {
    let [point] = points;
    let probe = probe(program, "", point.function, &[]);
    Probe { tracepoint: None, points, ..probe }
}

/// A probe at the return of a function, in support of other probes.
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
        needs_kprobe: false,
        result_only: false,
    }
}

/// The entry of a function, with the program of that suffix.
pub const fn entry_by(suffix: &'static str, function: &'static str) -> Point {
    Point { suffix, ..entry(function) }
}

/// The return of a function, with the program of that suffix.
pub const fn exit(suffix: &'static str, function: &'static str) -> Point {
    Point { suffix, at: At::Exit, ..entry(function) }
}

/// The return of a function, of which only the result is used.
pub const fn result(suffix: &'static str, function: &'static str) -> Point {
    Point { result_only: true, ..exit(suffix, function) }
}

/// A function of a module.
pub const fn of(module: &'static str, point: Point) -> Point {
    Point { module: Some(module), ..point }
}

/// A function whose first argument is a pointer to a pointer, which fentry programs may not read.
pub const fn pointed_to(point: Point) -> Point {
    Point { needs_kprobe: true, ..point }
}

/// A function that the kernel attaches fentry programs to without ever calling them.
pub const fn by_kprobe(point: Point) -> Point {
    Point { needs_kprobe: true, ..point }
}
