//! The leak catalogue: failures that other sandboxes shipped, each as a test that tare passes.
//!
//! One file per letter. Each test opens with the number of its case, who had it, and what went
//! wrong there. docs/leaks.md contains the same as a table, and `cargo xtask tidy` checks that
//! table and tests agree.
//!
//! A test that repeats its case does so often enough to show a leak, and with `TARE_LONG=1` as
//! often as the original report needed.

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
mod p;
mod vm;
mod w;
