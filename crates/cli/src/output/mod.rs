//! Tables, their cells, and views that are printed again every second.

pub mod format;
pub mod table;
pub mod watch;
