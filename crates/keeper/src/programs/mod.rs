//! tare's own programs that run in a box: tar and single files.

use std::fmt::Display;
use std::io::{self, Write};

pub mod file;
pub mod tar;

/// The exit codes of these programs, beside `file_programs::LEFT_OUT`.
const DONE: u8 = 0;
const FAILED: u8 = 1;

/// Writes a status line. If the client is gone, the keeper ends this program.
fn say(status: &dyn Display) {
    writeln!(io::stderr(), "{status}").ok();
}
