//! What is shown, and how keys change it.

use super::lists;
use super::style::Palette;
use nearpath_model::frame::Frame;
use nearpath_model::{Finding, Outlier};

/// Longest filter.
const FILTER_MAX: usize = 64;
const PAGE: usize = 10;

/// A part of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    /// All at a glance.
    Overview,
    /// Latencies of paths and spans.
    Path,
    /// Slow packets.
    Late,
    /// CPUs.
    Cpus,
    /// Interrupts of queues.
    Queues,
    /// TCP connections.
    Connections,
    /// Threads that poll.
    Workers,
    /// Findings.
    Findings,
    /// Virtual machines.
    Vms,
}

impl Tab {
    /// All, by their keys.
    pub const ALL: [Self; 9] = [
        Self::Overview,
        Self::Path,
        Self::Late,
        Self::Cpus,
        Self::Queues,
        Self::Connections,
        Self::Workers,
        Self::Findings,
        Self::Vms,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Path => "path",
            Self::Late => "late",
            Self::Cpus => "CPUs",
            Self::Queues => "queues",
            Self::Connections => "connections",
            Self::Workers => "workers",
            Self::Findings => "findings",
            Self::Vms => "VMs",
        }
    }
}

/// A key, whatever the terminal's library calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// ↑
    Up,
    /// ↓
    Down,
    /// ←
    Left,
    /// →
    Right,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Home.
    Home,
    /// End.
    End,
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// Tab.
    Tab,
    /// Shift and Tab.
    BackTab,
}

/// What a key asks of whoever has the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing: the view may have changed.
    None,
    /// End.
    Quit,
    /// Stand still, or go on.
    Freeze,
    /// Earlier by so many steps.
    Back(u32),
    /// Later by so many steps.
    Forward(u32),
    /// The first moment.
    First,
    /// The last moment.
    Last,
    /// Another length of the window.
    Window,
}

/// Where frames come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Now, of this host.
    Live,
    /// A moment of this host, at which it was frozen.
    Frozen,
    /// A moment of a recording.
    Recorded {
        /// Whether it goes on by itself.
        playing: bool,
    },
}

/// How the host is observed.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Where frames come from.
    pub mode: Mode,
    /// CPU time of this process as a share of one CPU, with the instruments' reading; `None` of a recording.
    pub own_share: Option<f64>,
    /// The last thing to report.
    pub notice: Option<String>,
}

/// What is shown in place of a list: as it was when it was chosen.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Detail {
    Packet(Box<Outlier>),
    Finding(Box<Finding>),
}

/// What is chosen.
#[derive(Debug, Clone)]
pub struct View {
    pub(super) tab: Tab,
    /// By tab: the column that rows are sorted by, and whether ascending; `None` is the list's own order.
    pub(super) sort: [Option<(usize, bool)>; Tab::ALL.len()],
    pub(super) selected: usize,
    pub(super) filter: String,
    pub(super) typing: bool,
    pub(super) detail: Option<Detail>,
    pub(super) scroll: usize,
    pub(super) help: bool,
    pub(super) palette: Palette,
}

impl View {
    /// The overview.
    pub fn new(palette: Palette) -> Self {
        Self {
            tab: Tab::Overview,
            sort: [None; Tab::ALL.len()],
            selected: 0,
            filter: String::new(),
            typing: false,
            detail: None,
            scroll: 0,
            help: false,
            palette,
        }
    }

    /// Takes a key.
    pub fn press(&mut self, key: Key, frame: &Frame) -> Action {
        if self.typing {
            self.type_filter(key);
            return Action::None;
        }
        if self.help {
            self.help = false;
            return if key == Key::Char('q') { Action::Quit } else { Action::None };
        }
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char(' ') => return Action::Freeze,
            Key::Char('w') => return Action::Window,
            Key::Left | Key::Char('b') => return Action::Back(1),
            Key::Right | Key::Char('f') => return Action::Forward(1),
            Key::Char('[') => return Action::Back(6),
            Key::Char(']') => return Action::Forward(6),
            Key::Char('{') => return Action::First,
            Key::Char('}') => return Action::Last,
            Key::Char('?' | 'h') => self.help = true,
            Key::Char('/') => (self.typing, self.detail) = (true, None),
            Key::Char(digit @ '1'..='9') => self.go((digit as usize) - ('1' as usize)),
            Key::Tab => self.go((self.tab as usize + 1) % Tab::ALL.len()),
            Key::BackTab => self.go((self.tab as usize + Tab::ALL.len() - 1) % Tab::ALL.len()),
            Key::Escape => self.escape(),
            Key::Enter => self.enter(frame),
            Key::Char('<') => self.sort_by(frame, false),
            Key::Char('>') => self.sort_by(frame, true),
            Key::Char('r') => {
                if let Some((_, ascending)) = self.sort_mut() {
                    *ascending = !*ascending;
                }
            }
            Key::Up | Key::Char('k') => self.step(|at| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.step(|at| at.saturating_add(1)),
            Key::PageUp => self.step(|at| at.saturating_sub(PAGE)),
            Key::PageDown => self.step(|at| at.saturating_add(PAGE)),
            Key::Home => self.step(|_| 0),
            Key::End => self.step(|_| usize::MAX),
            Key::Char(_) | Key::Backspace => {}
        }
        let rows = lists::of(self.tab, frame).map_or(0, |grid| grid.rows(self).len());
        self.selected = self.selected.min(rows.saturating_sub(1));
        Action::None
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => (self.typing, self.filter) = (false, String::new()),
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(c) if self.filter.chars().count() < FILTER_MAX && !c.is_control() => {
                self.filter.push(c);
            }
            _ => {}
        }
        self.selected = 0;
    }

    fn go(&mut self, tab: usize) {
        if let Some(tab) = Tab::ALL.get(tab) {
            (self.tab, self.selected, self.scroll, self.detail) = (*tab, 0, 0, None);
        }
    }

    /// Back by one: from a detail, then from a filter, then to the overview.
    fn escape(&mut self) {
        if self.detail.take().is_some() {
            self.scroll = 0;
        } else if !self.filter.is_empty() {
            self.filter.clear();
        } else {
            self.go(0);
        }
    }

    /// Into a row; from the overview to what it says first.
    fn enter(&mut self, frame: &Frame) {
        if self.tab == Tab::Overview {
            let late = frame.diagnosis.measurement.as_ref().is_some_and(|m| !m.outliers.is_empty());
            self.go(if late && frame.diagnosis.findings.is_empty() { 2 } else { 7 });
            return;
        }
        let Some(grid) = lists::of(self.tab, frame) else { return };
        let Some(&row) = grid.rows(self).get(self.selected) else { return };
        self.detail = match self.tab {
            Tab::Late => {
                lists::late(frame).get(row).map(|o| Detail::Packet(Box::new((*o).clone())))
            }
            Tab::Findings => {
                let finding = frame.diagnosis.findings.get(row);
                finding.map(|finding| Detail::Finding(Box::new(finding.clone())))
            }
            _ => None,
        };
        self.scroll = 0;
    }

    fn sort_mut(&mut self) -> Option<&mut (usize, bool)> {
        self.sort.get_mut(self.tab as usize)?.as_mut()
    }

    /// Sorts by the column to the left or the right of the current one.
    fn sort_by(&mut self, frame: &Frame, right: bool) {
        let Some(grid) = lists::of(self.tab, frame) else { return };
        let columns = grid.columns.len();
        let Some(sort) = self.sort.get_mut(self.tab as usize) else { return };
        let next = match *sort {
            None => grid.sorted_by,
            Some((at, _)) if right => (at + 1) % columns,
            Some((at, _)) => (at + columns - 1) % columns,
        };
        // The largest number first, text from A.
        *sort = Some((next, !grid.is_number(next)));
    }

    fn step(&mut self, to: impl Fn(usize) -> usize) {
        let at = if self.detail.is_some() { &mut self.scroll } else { &mut self.selected };
        *at = to(*at);
    }
}
