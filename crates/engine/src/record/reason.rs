//! Why a box is ended or removed by whoever does it.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its creator could not make it whole, or has seen its end.
    Own,
    /// Somebody wants it so.
    Asked,
    /// Its creator is gone, and it was not to live on.
    Abandoned,
    /// Its lease has passed, and its keeper did not end it.
    Overdue,
    /// It is over, and has been kept for as long as it was to be.
    Expired,
    /// It is over, and nothing of it was to be kept.
    NotKept,
    /// The host was started again.
    Rebooted,
}
