//! `measure locality`: a line per interval, and finally the distance between the CPU that allocates a packet and the
//! CPU that frees it.

use super::groups::what;
use super::measurement::{cost, measured};
use super::table::{Table, left, right};
use super::units::{percent, printable};
use super::{heading, line};
use crate::matrix::Matrix;
use nearpath_model::Direction;
use nearpath_model::locality::{Distances, Locality, Method};

/// Maximum number of CPUs in the matrix; beyond that it shows nodes.
const CPUS_SHOWN: usize = 16;

/// `rx= 99%  138kpps tx=100%  137kpps`: the share of packets that stayed on their CPU, and how many
/// there were, in `seconds`.
pub fn locality_rates(rx: &Distances, tx: &Distances, seconds: f64) -> String {
    format!("rx={} tx={}", rates(rx, seconds), rates(tx, seconds))
}

fn rates(distances: &Distances, seconds: f64) -> String {
    let share = distances.local().map_or_else(
        || "  -%".to_owned(),
        // Rounded so that a single packet on another CPU shows.
        |local| format!("{:3}%", (local * 100.0 + 1e-9).floor()),
    );
    let rate = if seconds > 0.0 { distances.packets as f64 / seconds } else { 0.0 };
    let rate =
        if rate < 9_999.5 { format!("{rate:.0}pps") } else { format!("{:.0}kpps", rate / 1e3) };
    format!("{share} {rate:>8}")
}

/// The whole measurement.
pub fn locality(m: &Locality) -> String {
    let mut out = String::new();
    heading(&mut out, &in_a_line(m));
    out.push_str(&header(m));
    line!(out);
    out.push_str(&distances(m));
    for (direction, title) in [(Direction::Rx, "received packets"), (Direction::Tx, "sent packets")]
    {
        let matrix = Matrix::of(m, direction, CPUS_SHOWN);
        if matrix.packets > 0 {
            line!(out);
            heading(&mut out, &format!("{title}: {} (down) and freed (across)", first(m)));
            out.push_str(&rows(&matrix));
        }
    }
    if let Some(first) = m.groups.first() {
        line!(out);
        heading(&mut out, &format!("by {}", what(first.per)));
        out.push_str(&groups(m));
    }
    out
}

/// `freed on the CPU that allocated them: 25.0% of 1000 received packets (50.0% on another node), 100% of 400 sent`.
fn in_a_line(m: &Locality) -> String {
    let part = |d: &Distances, what: &str| {
        let local = d.local()?;
        let share = |part: u64| percent(part as f64 / d.packets.max(1) as f64);
        let mut text = format!("{} of {} {what}", percent(local), d.packets);
        let elsewhere: Vec<String> =
            [(d.other_node, "on another node"), (d.unknown, "unknown how far away")]
                .into_iter()
                .filter(|(part, _)| *part > 0)
                .map(|(part, name)| format!("{} {name}", share(part)))
                .collect();
        if !elsewhere.is_empty() {
            text.push_str(&format!(" ({})", elsewhere.join(", ")));
        }
        Some(text)
    };
    let parts: Vec<String> = [part(&m.rx, "received packets"), part(&m.tx, "sent packets")]
        .into_iter()
        .flatten()
        .collect();
    if parts.is_empty() {
        return "no packet was freed".to_owned();
    }
    let first = match m.method {
        Method::Exact => "allocated them",
        Method::Tracepoints => "first saw them",
    };
    format!("freed on the CPU that {first}: {}", parts.join(", "))
}

/// The event on a packet's first CPU.
fn first(m: &Locality) -> &'static str {
    match m.method {
        Method::Exact => "allocated",
        Method::Tracepoints => "first seen",
    }
}

fn header(m: &Locality) -> String {
    let mut out = String::new();
    measured(&mut out, &m.filter, m.duration_s);
    line!(
        out,
        "method:       {}",
        match m.method {
            Method::Exact => "exact (allocation and freeing of sk_buffs)",
            Method::Tracepoints => "tracepoints (first and last sighting of packets)",
        }
    );
    if let Some(refused) = &m.fallback {
        line!(out, "not exact:    {}", printable(refused));
    }
    let p = &m.packets;
    let share = |part: u64| match p.started {
        0 => String::new(),
        all => format!(" ({})", percent(part as f64 / all as f64)),
    };
    let freed = p.completed.saturating_add(p.dropped);
    line!(
        out,
        "packets:      {} started, {freed} freed{}, of which {} dropped",
        p.started,
        share(freed),
        p.dropped
    );
    line!(
        out,
        "not followed: {} abandoned{}, {} collided, {} allocated before, {} sampled out; {} events lost",
        p.abandoned,
        share(p.abandoned),
        p.collided,
        p.not_allocated,
        p.sampled_out,
        m.events_lost
    );
    if p.returned > 0 {
        line!(
            out,
            "returned:     {} returned by the kernel to be freed on their own CPU",
            p.returned
        );
    }
    cost(&mut out, m.cost.as_ref(), &m.filter, p.started);
    out
}

fn distances(m: &Locality) -> String {
    let mut table = Table::new(&[
        left(""),
        right("PACKETS"),
        right("SAME-CPU"),
        right("SAME-CORE"),
        right("SAME-LLC"),
        right("SAME-NODE"),
        right("OTHER-NODE"),
        right("UNKNOWN").optional(),
    ]);
    for (name, d) in [("rx", &m.rx), ("tx", &m.tx)] {
        let share = |part: u64| match d.packets {
            0 => String::new(),
            all => percent(part as f64 / all as f64),
        };
        table.row([
            name.to_owned(),
            d.packets.to_string(),
            share(d.same_cpu),
            share(d.same_core),
            share(d.same_llc),
            share(d.same_node),
            share(d.other_node),
            if d.unknown > 0 { share(d.unknown) } else { String::new() },
        ]);
    }
    table.render()
}

fn groups(m: &Locality) -> String {
    let mut table = Table::new(&[
        left("GROUP"),
        right("RX-PACKETS"),
        right("SAME-CPU"),
        right("OTHER-NODE"),
        right("TX-PACKETS"),
        right("SAME-CPU"),
        right("OTHER-NODE"),
    ]);
    for group in &m.groups {
        let cells = |d: &Distances| {
            let share = |part: u64| match d.packets {
                0 => String::new(),
                all => percent(part as f64 / all as f64),
            };
            [d.packets.to_string(), share(d.same_cpu), share(d.other_node)]
        };
        table.row(
            std::iter::once(group.name.clone()).chain(cells(&group.rx)).chain(cells(&group.tx)),
        );
    }
    table.render()
}

/// Shares of all packets of the direction, with a point where there are none.
fn rows(matrix: &Matrix) -> String {
    const WIDTH: usize = 8;
    let names: Vec<String> = matrix.places.iter().map(|place| place.name()).collect();
    let wide = names.iter().map(String::len).fold(WIDTH, usize::max);
    let mut out = " ".repeat(wide);
    names.iter().for_each(|name| out.push_str(&format!("  {name:>wide$}")));
    line!(out);
    for (from, name) in names.iter().enumerate() {
        let mut row = format!("{name:<wide$}");
        for to in 0..names.len() {
            let cell = match matrix.counts.get(&(from, to)) {
                Some(&count) => percent(count as f64 / matrix.packets as f64),
                None => ".".to_owned(),
            };
            row.push_str(&format!("  {cell:>wide$}"));
        }
        line!(out, "{row}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances(packets: u64, same_cpu: u64) -> Distances {
        Distances { packets, same_cpu, other_node: packets - same_cpu, ..Distances::default() }
    }

    #[test]
    fn a_line_has_the_form_of_the_script() {
        let line = |rx: (u64, u64), tx: (u64, u64), seconds| {
            locality_rates(&distances(rx.0, rx.1), &distances(tx.0, tx.1), seconds)
        };
        assert_eq!(
            line((138_000, 137_990), (137_000, 137_000), 1.0),
            "rx= 99%  138kpps tx=100%  137kpps"
        );
        assert_eq!(line((1000, 100), (0, 0), 0.5), "rx= 10%  2000pps tx=  -%     0pps");
        assert_eq!(line((1, 0), (10_000, 5000), 1.0), "rx=  0%     1pps tx= 50%   10kpps");
        assert_eq!(line((1, 1), (1, 1), 0.0), "rx=100%     0pps tx=100%     0pps");
    }
}
