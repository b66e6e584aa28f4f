//! A list with columns: sorted, filtered, with a selected row.

use super::style::Palette;
use super::view::View;
use ratatui::text::{Line, Span};

/// Rows of a list that are looked at.
const ROWS_MAX: usize = 2_000;

/// A value.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    text: String,
    /// What it is sorted by; text by itself.
    number: Option<f64>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    pub(super) fn number(number: f64, text: String) -> Self {
        Self { text, number: Some(number) }
    }
}

/// A list; the last column gets what is left of the width.
pub(super) struct Grid {
    /// The heading of each column.
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
    /// The column that it is sorted by at first, for the next one to sort by.
    pub sorted_by: usize,
    /// What there is to say without rows.
    pub empty: &'static str,
}

impl Grid {
    /// Whether a column has numbers.
    pub(super) fn is_number(&self, column: usize) -> bool {
        let cells = || self.rows.iter().filter_map(|row| row.get(column));
        cells().any(|cell| cell.number.is_some())
    }

    /// Positions of the rows that pass the filter, in the order of the view.
    pub(super) fn rows(&self, view: &View) -> Vec<usize> {
        let filter = view.filter.to_lowercase();
        let passes = |row: &Vec<Cell>| {
            let has = |cell: &Cell| cell.text.to_lowercase().contains(&filter);
            filter.is_empty() || row.iter().any(has)
        };
        let rows = self.rows.iter().take(ROWS_MAX).enumerate();
        let mut rows: Vec<usize> = rows.filter(|(_, row)| passes(row)).map(|(at, _)| at).collect();
        let sort = view.sort.get(view.tab as usize).copied().flatten();
        if let Some((column, ascending)) = sort {
            let cell = |at: usize| self.rows.get(at).and_then(|row| row.get(column));
            rows.sort_by(|&a, &b| {
                let (Some(a), Some(b)) = (cell(a), cell(b)) else {
                    return std::cmp::Ordering::Equal;
                };
                let numbers = |cell: &Cell| cell.number.unwrap_or(f64::NEG_INFINITY);
                let order = match (a.number, b.number) {
                    (None, None) => a.text.cmp(&b.text),
                    _ => numbers(a).total_cmp(&numbers(b)),
                };
                if ascending { order } else { order.reverse() }
            });
        }
        rows
    }

    /// The list in so many lines, with its heading.
    pub(super) fn lines(&self, view: &View, width: usize, height: usize) -> Vec<Line<'static>> {
        let rows = self.rows(view);
        let columns = self.layout();
        let mut lines = vec![self.heading(view, &columns, width)];
        if rows.is_empty() {
            let empty = if self.rows.is_empty() { self.empty } else { "no row passes the filter" };
            lines.push(Line::styled(empty, view.palette.faint()));
            return lines;
        }
        let room = height.saturating_sub(1).max(1);
        let selected = view.selected.min(rows.len() - 1);
        let first = selected.saturating_sub(room - 1);
        for (at, &row) in rows.iter().enumerate().skip(first).take(room) {
            let Some(cells) = self.rows.get(row) else { continue };
            let line = columns.line(cells, width);
            let chosen = at == selected;
            lines.push(if chosen { line.style(view.palette.selected()) } else { line });
        }
        lines
    }

    fn layout(&self) -> Columns {
        let cell = |row: &Vec<Cell>, at: usize| row.get(at).map_or(0, |cell| width_of(&cell.text));
        let of = |(at, name): (usize, &&str)| {
            // Room for the mark of sorting.
            let rows = self.rows.iter().take(ROWS_MAX).map(|row| cell(row, at)).max().unwrap_or(0);
            (width_of(name) + 1).max(rows).min(46)
        };
        let numbers = (0..self.columns.len()).map(|at| self.is_number(at)).collect();
        Columns { widths: self.columns.iter().enumerate().map(of).collect(), numbers }
    }

    fn heading(&self, view: &View, columns: &Columns, width: usize) -> Line<'static> {
        let sort = view.sort.get(view.tab as usize).copied().flatten();
        let name = |(at, name): (usize, &&str)| match sort {
            Some((column, true)) if column == at => format!("{name}↑"),
            Some((column, false)) if column == at => format!("{name}↓"),
            _ => (*name).to_owned(),
        };
        let cells: Vec<Cell> =
            self.columns.iter().enumerate().map(|column| Cell::text(name(column))).collect();
        columns.line(&cells, width).style(Palette::heading(view.palette))
    }
}

/// Widths of columns, and which have numbers.
struct Columns {
    widths: Vec<usize>,
    numbers: Vec<bool>,
}

impl Columns {
    fn line(&self, cells: &[Cell], width: usize) -> Line<'static> {
        let mut spans = Vec::new();
        let mut left = width;
        let last = cells.len().saturating_sub(1);
        for (at, (cell, column)) in cells.iter().zip(&self.widths).enumerate() {
            let room = if at == last { left } else { (*column).min(left) };
            let text = cut(&cell.text, room);
            let pad = room.saturating_sub(width_of(&text));
            let text = match (self.numbers.get(at).copied().unwrap_or(false), at == last) {
                (true, false) => format!("{}{text}", " ".repeat(pad)),
                (_, true) => text,
                (false, false) => format!("{text}{}", " ".repeat(pad)),
            };
            left = left.saturating_sub(room + 2);
            spans.push(Span::raw(text));
            if at != last {
                spans.push(Span::raw("  "));
            }
        }
        Line::from(spans)
    }
}

/// Cells of a terminal that the text takes.
pub(super) fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in so many cells, with an ellipsis if it is longer.
pub(super) fn cut(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        let mut with = out.clone();
        with.push(c);
        if width_of(&with) + 1 > width {
            break;
        }
        out = with;
    }
    if width > 0 {
        out.push('…');
    }
    out
}
