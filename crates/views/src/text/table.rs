//! One plain table: columns aligned by what they hold, no boxes, no wrapping.
//!
//! Input: rows of cells. Output: lines without trailing spaces. Control characters in cells are escaped, and long cells
//! are truncated. Columns that are `-` in every row can be hidden, and so can columns that do not fit a narrow terminal.

use super::units::printable;
use super::verdict::stands_out;
use comfy_table::{CellAlignment, presets};

/// Characters that a cell shows; the JSON has the whole value.
const CELL_WIDTH: usize = 120;

/// The text of a cell without a value.
pub(super) const NONE: &str = "-";

/// A column: its heading, its alignment, whether it is left out when no row has a value, and its
/// turn to be left out where there is no room (the lowest first).
#[derive(Clone, Copy)]
pub(super) struct Column {
    heading: &'static str,
    right: bool,
    optional: bool,
    gives_way: Option<u8>,
}

/// A column of words.
pub(super) const fn left(heading: &'static str) -> Column {
    Column { heading, right: false, optional: false, gives_way: None }
}

/// A column of numbers.
pub(super) const fn right(heading: &'static str) -> Column {
    Column { heading, right: true, optional: false, gives_way: None }
}

impl Column {
    /// The same column, left out when it is `-` in every row.
    pub(super) const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// The same column, left out in its turn where there is no room for all.
    pub(super) const fn gives_way(self, turn: u8) -> Self {
        Self { gives_way: Some(turn), ..self }
    }
}

/// Rows under columns.
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    shares_stand_out: bool,
}

impl Table {
    pub(super) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), shares_stand_out: false }
    }

    /// The same table with shares coloured that are a tenth or more, where a large share is bad news.
    pub(super) fn shares_stand_out(self) -> Self {
        Self { shares_stand_out: true, ..self }
    }

    /// Adds a row; empty cells are shown as `-`.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| match printable(&cell) {
            cell if cell.is_empty() => NONE.to_owned(),
            cell if cell.chars().count() > CELL_WIDTH => {
                cell.chars().take(CELL_WIDTH - 1).chain(['…']).collect()
            }
            cell => cell,
        });
        self.rows.push(cells.collect());
    }

    /// Adds a title over the rows that follow, in the first column.
    pub(super) fn title(&mut self, title: &str) {
        let mut row = vec![String::new(); self.columns.len()];
        if let Some(first) = row.first_mut() {
            *first = printable(title);
        }
        self.rows.push(row);
    }

    /// The lines, each ended by a newline; nothing when there is no row.
    pub(super) fn render(&self) -> String {
        if self.rows.is_empty() {
            String::new()
        } else {
            self.coloured(self.lines(&self.with_values()))
        }
    }

    /// The same in at most `width` terminal columns, if hiding optional columns is enough; and the headings of the
    /// hidden columns.
    pub(super) fn render_within(&self, width: usize) -> (String, Vec<&'static str>) {
        let mut shown = self.with_values();
        let mut left_out = Vec::new();
        loop {
            let lines = self.lines(&shown);
            let next = shown.iter().filter_map(|&i| Some((self.columns[i].gives_way?, i))).min();
            match next {
                Some((_, i)) if lines.lines().any(|line| line.chars().count() > width) => {
                    shown.retain(|&column| column != i);
                    left_out.push(self.columns[i].heading);
                }
                _ => return (self.coloured(lines), left_out),
            }
        }
    }

    /// The lines with the colours of shares, if wanted.
    fn coloured(&self, lines: String) -> String {
        if !self.shares_stand_out {
            return lines;
        }
        let word = |word: &str| {
            let (text, space) = word.split_at(word.trim_end().len());
            let share = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
            let style = stands_out(share.unwrap_or(0.0) / 100.0);
            format!("{style}{text}{style:#}{space}")
        };
        lines.split_inclusive(char::is_whitespace).map(word).collect()
    }

    /// The columns that are always shown or have a value.
    fn with_values(&self) -> Vec<usize> {
        let has_value =
            |row: &Vec<String>, i: usize| row.get(i).is_some_and(|c| !c.is_empty() && c != NONE);
        (0..self.columns.len())
            .filter(|&i| !self.columns[i].optional || self.rows.iter().any(|row| has_value(row, i)))
            .collect()
    }

    fn lines(&self, shown: &[usize]) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(shown.iter().map(|&i| self.columns[i].heading));
        for row in &self.rows {
            table.add_row(shown.iter().map(|&i| row.get(i).map_or(NONE, String::as_str)));
        }
        for (position, &i) in shown.iter().enumerate() {
            if let Some(column) = table.column_mut(position) {
                column.set_padding((0, 2));
                if self.columns[i].right {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// The value in words, or `-`.
pub(super) fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let mut table = Table::new(&[left("NAME"), right("MTU"), left("VF").optional()]);
        table.row(["eth0".into(), "1500".into(), String::new()]);
        table.row(["l\u{1b}[31mo".into(), "9".into(), NONE.into()]);
        assert_eq!(table.render(), "NAME           MTU\neth0          1500\nl\\u{1b}[31mo     9\n");
    }

    #[test]
    fn columns_are_hidden_in_order() {
        let columns = [left("A"), right("B").gives_way(2), right("C").gives_way(1), right("D")];
        let mut table = Table::new(&columns);
        table.title("of x");
        table.row(["a".into(), "1234".into(), "12".into(), "1".into()]);
        let whole = "A        B   C  D\nof x\na     1234  12  1\n";
        assert_eq!(table.render(), whole);
        assert_eq!(table.render_within(17), (whole.to_owned(), vec![]));
        let (narrower, left_out) = table.render_within(16);
        assert_eq!(narrower, "A        B  D\nof x\na     1234  1\n");
        assert_eq!(left_out, ["C"]);
        assert_eq!(table.render_within(1).1, ["C", "B"]);
    }
}
