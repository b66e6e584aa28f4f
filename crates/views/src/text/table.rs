//! One plain table: columns aligned by what they hold, no boxes, no wrapping.
//!
//! In go rows of cells, out come lines without trailing spaces. Cells are shown with control
//! characters escaped, and cut where they are too long to read. A column that is `-` in every row may be left out.

use super::units::printable;
use comfy_table::{CellAlignment, presets};

/// Characters that a cell shows; the JSON has the whole value.
const CELL_WIDTH: usize = 120;

/// What stands in a cell for which there is no value.
pub(super) const NONE: &str = "-";

/// A column: its heading, its alignment, and whether it is left out when no row has a value.
#[derive(Clone, Copy)]
pub(super) struct Column {
    heading: &'static str,
    right: bool,
    optional: bool,
}

/// A column of words.
pub(super) const fn left(heading: &'static str) -> Column {
    Column { heading, right: false, optional: false }
}

/// A column of numbers.
pub(super) const fn right(heading: &'static str) -> Column {
    Column { heading, right: true, optional: false }
}

impl Column {
    /// The same column, left out when it is `-` in every row.
    pub(super) const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }
}

/// Rows under columns.
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
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

    /// The lines, each ended by a newline; nothing when there is no row.
    pub(super) fn render(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&i| {
                let has_value = |row: &Vec<String>| row.get(i).is_some_and(|cell| cell != NONE);
                !self.columns[i].optional || self.rows.iter().any(has_value)
            })
            .collect();
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
}
