//! SIGKILL to tare, to a keeper, to both or to the whole process group, at any moment of any
//! command. After the next command, no process and no object is left without a box, and boxes that
//! should live are complete.

mod calls;
mod instants;
mod machines;
