//! SIGKILL to tare, to a keeper, to both, to the whole process group, at any moment
//! of any command: after the next command nobody is alive and nothing is there that
//! no box accounts for, and boxes that should live are whole.

mod calls;
mod instants;
