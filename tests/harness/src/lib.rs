//! The leak oracle: runs `tare` from outside and proves that the host is as it was before.
//!
//! A test starts with [`tare!`], which records what the host looks like and creates a private state
//! root. When the value is dropped, the host must look the same again. Every difference is printed
//! and fails the test. The oracle has its own tests (`tests/oracle.rs`) that leak one object of
//! each class on purpose, because an oracle that sees nothing finds nothing.
//!
//! Nothing here knows the engine: every observation comes from the kernel.

mod boxes;
mod capture;
mod clock;
mod file_server;
pub mod fixture;
mod footprint;
mod freezer;
mod keeper;
mod orphans;
pub mod random;
pub mod record;
mod running;
pub mod scene;
mod scope;
mod server;
mod signer;
pub mod skip;
mod snapshot;
mod tare;
mod temporary;
mod terminal;
mod vitals;
mod wait;
pub mod witness;

pub use clock::{unix_now, unix_seconds};
pub use file_server::FileServer;
pub use footprint::{Footprint, names_in};
pub use freezer::Freezer;
pub use keeper::private_bytes;
pub use random::Random;
pub use running::{Output, Running};
pub use scope::Scope;
pub use server::{Answer, Server, listening_on};
pub use signer::{Signer, jwks};
pub use snapshot::Snapshot;
pub use snapshot::cgroup::hierarchies;
pub use snapshot::mount::unified_hierarchy;
pub use snapshot::process::{Process, box_processes, in_boxes, processes};
pub use tare::Tare;
pub use temporary::TemporaryDirectory;
pub use terminal::{TerminalSize, UnderTerminal};
pub use vitals::{Vitals, assert_no_slope};
pub use wait::{PATIENCE, eventually, eventually_within, let_pass, poll};

/// A [`Tare`] on the binary under test; `tare!(unprivileged)` runs it as a user
/// without any privilege.
#[macro_export]
macro_rules! tare {
    () => {
        $crate::Tare::start(env!("CARGO_BIN_EXE_tare"))
    };
    (unprivileged) => {
        $crate::Tare::start_unprivileged(env!("CARGO_BIN_EXE_tare"))
    };
}

/// Like [`tare!`], for a user without privileges: skips if the host does not let users create
/// namespaces.
#[macro_export]
macro_rules! unprivileged {
    () => {{
        if !$crate::skip::user_namespaces_are_allowed() {
            $crate::skip!("this host forbids user namespaces to users");
        }
        $crate::tare!(unprivileged)
    }};
}

/// Ends the test and reports it as skipped, because the host cannot run it.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        fn here() {}
        $crate::skip::announce(::std::any::type_name_of_val(&here), &format!($($why)*));
        return;
    }};
}
