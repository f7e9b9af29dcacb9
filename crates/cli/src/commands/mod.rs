//! Every command in its own file, with its arguments. No command uses another one.

pub mod attach;
pub mod audit;
pub mod completion;
pub mod cp;
pub mod doctor;
mod each;
pub mod exec;
pub mod explain;
pub mod help;
pub mod inspect;
pub mod kill;
mod lease;
pub mod logs;
pub mod ls;
pub mod pause;
mod process_args;
pub mod receipt;
pub mod rename;
pub mod resume;
pub mod rm;
pub mod run;
pub mod serve;
pub mod stats;
pub mod stop;
pub mod sweep;
pub mod update;
pub mod wait;
