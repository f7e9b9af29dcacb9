//! Tables. A column is as wide as its widest cell, or narrower if the terminal is not wide enough.

use rustix::stdio::stdout;
use rustix::termios::tcgetwinsize;
use tare_engine::spec::shown::escaped;

const GAP: &str = "  ";
const CUT: &str = "...";
const COLUMNS_DEFAULT: usize = 80;
/// A cell that may be cut is never longer, even if stdout is not a terminal: a command can have
/// megabytes, and every row is as wide as the widest.
const CUT_CELL_MAX: usize = 1000;

#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    /// The smallest width to which the column may be cut; `None`: it is never cut.
    pub narrow: Option<usize>,
}

impl Column {
    pub const fn whole(title: &'static str) -> Self {
        Self { title, narrow: None }
    }

    pub const fn cut(title: &'static str, narrow: usize) -> Self {
        Self { title, narrow: Some(narrow) }
    }
}

/// The width of the terminal, if stdout is one.
pub fn columns_of_stdout() -> Option<usize> {
    let columns = tcgetwinsize(stdout()).ok()?.ws_col;
    // A terminal that does not know its size reports 0.
    Some(if columns == 0 { COLUMNS_DEFAULT } else { usize::from(columns) })
}

/// Returns a line of titles and a line for each row. If they are wider than `width`, columns that
/// may be cut become narrower, the rightmost first. No cell can move a cursor or end a line.
pub fn render<const N: usize>(
    columns: &[Column; N],
    rows: &[[String; N]],
    width: Option<usize>,
) -> String {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| escaped(cell))).collect();
    let widths = widths(columns, &rows, width);
    let titles = columns.map(|column| column.title.to_owned());
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(&rows) {
        let cells = row.iter().zip(widths);
        let line: Vec<String> = cells.map(|(cell, width)| padded(cell, width)).collect();
        text += line.join(GAP).trim_end();
        text.push('\n');
    }
    text
}

fn widths<const N: usize>(
    columns: &[Column; N],
    rows: &[[String; N]],
    width: Option<usize>,
) -> [usize; N] {
    let mut widths = columns.map(|column| length(column.title));
    for row in rows {
        for ((width, cell), column) in widths.iter_mut().zip(row).zip(columns) {
            let most = column.narrow.map_or(usize::MAX, |_| CUT_CELL_MAX);
            *width = length(cell).min(most).max(*width);
        }
    }
    let line = widths.iter().sum::<usize>() + GAP.len() * N.saturating_sub(1);
    let mut excess = width.map_or(0, |width| line.saturating_sub(width));
    for (width, column) in widths.iter_mut().zip(columns).rev() {
        if let Some(narrow) = column.narrow {
            let room = width.saturating_sub(narrow.max(length(column.title)));
            let taken = room.min(excess);
            *width -= taken;
            excess -= taken;
        }
    }
    widths
}

fn padded(cell: &str, width: usize) -> String {
    if let Some(room) = width.checked_sub(length(cell)) {
        return cell.to_owned() + &" ".repeat(room);
    }
    let kept: String = cell.chars().take(width.saturating_sub(CUT.len())).collect();
    kept + CUT
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] =
        [Column::cut("NAME", 5), Column::cut("COMMAND", 8), Column::whole("PIDS")];

    fn rows() -> [[String; 3]; 2] {
        [["database", "postgres -D /work/data", "12"], ["web", "sleep 1", "-"]]
            .map(|row| row.map(str::to_owned))
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let expected = "\
NAME      COMMAND                 PIDS
database  postgres -D /work/data  12
web       sleep 1                 -
";
        assert_eq!(render(&COLUMNS, &rows(), None), expected);
        assert_eq!(render(&COLUMNS, &rows(), Some(38)), expected);
    }

    #[test]
    fn a_narrow_terminal_cuts_the_rightmost_column_first() {
        let expected = "\
NAME      COMMAND         PIDS
database  postgres -D...  12
web       sleep 1         -
";
        assert_eq!(render(&COLUMNS, &rows(), Some(30)), expected);
        let expected = "\
NAME    COMMAND   PIDS
dat...  postg...  12
web     sleep 1   -
";
        assert_eq!(render(&COLUMNS, &rows(), Some(22)), expected);
    }

    #[test]
    fn a_terminal_that_is_too_narrow_gets_lines_that_are_too_long() {
        let text = render(&COLUMNS, &rows(), Some(1));
        assert_eq!(text.lines().next().unwrap().len(), "NAME   COMMAND   PIDS".len());
    }

    #[test]
    fn no_cell_can_move_a_cursor_or_end_a_line() {
        let rows = [["a\nb", "\u{9b}2J", "1"].map(str::to_owned)];
        assert_eq!(render(&COLUMNS, &rows, None), "NAME  COMMAND   PIDS\na\\nb  \\u{9b}2J  1\n");
    }

    #[test]
    fn a_table_without_rows_has_its_titles() {
        assert_eq!(render(&COLUMNS, &[], None), "NAME  COMMAND  PIDS\n");
    }
}
