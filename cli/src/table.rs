//! Tables for a terminal, and pictures in files.

use datapipes::Result;

use crate::columns;
use crate::outcome::print;
use crate::system::side_files::SideDraft;

/// Writes a picture, and says so on the standard error, for the output may be JSON.
pub(crate) fn save(file: SideDraft, picture: &str) -> Result<()> {
    let drawn = format!("drawn in {}\n", crate::outcome::shown_path(file.path()));
    file.write_text(picture)?;
    crate::outcome::note(&drawn);
    Ok(())
}

/// A table for a terminal: the first column to the left, the others to the right, as wide as what
/// is in them.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn row<I: IntoIterator<Item = S>, S: Into<String>>(&mut self, cells: I) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(crate) fn print(&self, indent: usize) -> Result<()> {
        print(&self.text(indent))
    }

    pub(crate) fn text(&self, indent: usize) -> String {
        let most = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |column: usize| self.rows.iter().filter_map(|r| r.get(column)).map(|c| columns::count(c)).max();
        let widths: Vec<usize> = (0..most).map(|c| wide(c).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match at {
                    0 => line += &columns::left(cell, *width),
                    _ => line += &format!("  {}", columns::right(cell, *width)),
                }
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::default();
        table.row(["", "A", "long"]);
        table.row(["µs", "10.5", "1"]);
        assert_eq!(table.text(2), "         A  long\n  µs  10.5     1\n");
        table.row(["\u{5b57}\u{5b57}", "1", "\u{5b57}"]);
        assert_eq!(table.text(0), "         A  long\nµs    10.5     1\n\u{5b57}\u{5b57}     1    \u{5b57}\n");
    }
}
