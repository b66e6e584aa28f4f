//! Colours: few, each with a meaning that is also in words or shapes, as NO_COLOR takes them away.

use nearpath_model::{Severity, ShareKind};
use ratatui::style::{Color, Modifier, Style};

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Palette {
    /// Without it, only bold, dim and reverse.
    pub colours: bool,
}

impl Palette {
    fn fg(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// Headings.
    pub(super) fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// What is there for orientation.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The selected row, and the current list.
    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Latencies.
    pub(super) fn bar(self) -> Style {
        self.fg(Color::Blue)
    }

    /// A finding.
    pub(super) fn severity(self, severity: Severity) -> Style {
        match severity {
            Severity::Critical => self.fg(Color::Red).add_modifier(Modifier::BOLD),
            Severity::Warning => self.fg(Color::Yellow),
            Severity::Info => Style::new(),
        }
    }

    /// Nothing is wrong.
    pub(super) fn good(self) -> Style {
        self.fg(Color::Green)
    }

    /// A cause; alike for alike causes.
    pub(super) fn cause(self, kind: ShareKind) -> Style {
        self.fg(match kind {
            ShareKind::Own | ShareKind::Unknown | ShareKind::RemoteMemoryBound => Color::Gray,
            ShareKind::Irq | ShareKind::Softirq | ShareKind::NetRxAhead => Color::Blue,
            ShareKind::Task | ShareKind::Runqueue | ShareKind::Migration => Color::Red,
            ShareKind::Disabled | ShareKind::SocketLocked => Color::Magenta,
            ShareKind::Idle | ShareKind::Ipi | ShareKind::Offline => Color::Cyan,
            ShareKind::Throttled | ShareKind::Stolen => Color::LightRed,
            ShareKind::Asleep | ShareKind::SocketFull | ShareKind::Upcall | ShareKind::Held => {
                Color::Yellow
            }
            ShareKind::Qdisc | ShareKind::DeviceQueue | ShareKind::Nic | ShareKind::TcpGap => {
                Color::Green
            }
        })
    }

    /// A step of the heat map, 0 (cold) to 8 (hottest).
    pub(super) fn heat(self, step: usize) -> Style {
        self.fg(match step {
            0 => Color::DarkGray,
            1..=3 => Color::Blue,
            4..=6 => Color::Yellow,
            _ => Color::Red,
        })
    }
}
