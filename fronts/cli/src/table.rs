//! Columns of text that line up.

use std::fmt;

/// How the cells of a column stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table with a head. Printed with two spaces between the columns and none at the end of a line.
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    headed: bool,
}

impl Table {
    /// A table with these columns. A title that begins with `>` makes a column of numbers.
    pub fn new(titles: &[&str]) -> Self {
        let column = |title: &&str| match title.strip_prefix('>') {
            Some(title) => (title.to_owned(), Align::Right),
            None => ((*title).to_owned(), Align::Left),
        };
        Self { columns: titles.iter().map(column).collect(), rows: Vec::new(), headed: true }
    }

    /// The same without printing the head.
    pub fn headless(self) -> Self {
        Self { headed: false, ..self }
    }

    /// Adds a row with a cell per column.
    pub fn row<const CELLS: usize>(&mut self, cells: [String; CELLS]) {
        self.row_of(cells.into());
    }

    /// The same where the number of columns is known only here.
    pub fn row_of(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "cells of a row against columns of the table");
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |index: usize, (title, _): &(String, Align)| {
            let head = if self.headed { title.chars().count() } else { 0 };
            self.rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0).max(head)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(|(index, column)| width(index, column)).collect();
        let titles: Vec<String> = self.columns.iter().map(|(title, _)| title.clone()).collect();
        for row in self.headed.then_some(&titles).into_iter().chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&self.columns).map(|((cell, &width), (_, align))| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NODE", ">BYTES", "WHERE"]);
        table.row(["n00".into(), "5".into(), "here".into()]);
        table.row(["node é".into(), "12345678".into(), String::new()]);
        assert_eq!(
            table.to_string(),
            "NODE       BYTES  WHERE\n\
             n00            5  here\n\
             node é  12345678\n"
        );
        let table = table.headless();
        assert_eq!(table.to_string(), "n00            5  here\nnode é  12345678\n");
    }

    #[test]
    #[should_panic(expected = "cells of a row")]
    fn a_row_with_a_missing_cell_is_a_bug() {
        Table::new(&["A", "B"]).row([String::new()]);
    }
}
