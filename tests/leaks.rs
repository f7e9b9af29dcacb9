//! The leak catalogue: failures that other sandboxes have shipped, each as a test that
//! tare passes. One file for each letter; each test opens with the number of its case,
//! who had it, and what went wrong there. The README has the same as a table, and
//! `cargo xtask tidy` holds the two together.
//!
//! A case that repeats itself does so often enough to show a leak; with
//! `TARE_LEAKS_WHOLE=1` as often as it was asked for.

#[path = "leaks/a.rs"]
mod a;
#[path = "leaks/b.rs"]
mod b;
#[path = "leaks/c.rs"]
mod c;
#[path = "leaks/case.rs"]
mod case;
#[path = "leaks/d.rs"]
mod d;
#[path = "leaks/e.rs"]
mod e;
#[path = "leaks/f.rs"]
mod f;
#[path = "leaks/g.rs"]
mod g;
#[path = "leaks/h.rs"]
mod h;
#[path = "leaks/i.rs"]
mod i;
mod library;
