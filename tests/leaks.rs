//! The leak catalogue: failures that other sandboxes have shipped, each as a test that
//! tare passes. One file for each letter; each test opens with the number of its case,
//! who had it, and what went wrong there. The README has the same as a table, and
//! `cargo xtask tidy` holds the two together.
//!
//! A case that repeats itself does so often enough to show a leak; with
//! `TARE_LONG=1` as often as it was asked for.

mod a;
mod b;
mod c;
mod case;
mod d;
mod e;
mod f;
mod g;
mod h;
mod i;
mod k;
mod n;
mod w;
