//! `tare run --detach`: a box that keeps running. tare prints its id.

use std::os::fd::AsFd;

use serde::Serialize;
use tare_engine::spec::{Limit, defaults};
use tare_engine::{Actor, BoxId, Context as _, DetachOptions, End, Engine, Error, ErrorKind};
use tare_kernel::signals::SignalFd;

use crate::commands::lease;
use crate::commands::run::args::RunArgs;
use crate::commands::run::spec::RunPlan;
use crate::error::{print_json, print_note, print_result};
use crate::exit::DONE;
use crate::stdio;

/// The object that `--detach --json` prints.
#[derive(Debug, Serialize)]
struct DetachReport {
    id: String,
    name: Option<String>,
}

/// Starts a box and prints its id. If the user gives up before that, or if the id cannot be printed,
/// tare removes the box.
pub fn start(
    engine: &Engine,
    args: &RunArgs,
    plan: &RunPlan,
    signals: &SignalFd,
) -> Result<u8, Error> {
    let given_up = stdio::stop_requested()?;
    let started = engine.start_unless(&plan.spec, &options(args), given_up.as_fd());
    let asked = stdio::asked_to_stop(signals).context(|| "cannot read signals".to_owned())?;
    let started = match (started, asked) {
        (Ok(started), None) => started,
        (Ok(started), Some(signal)) => {
            engine.remove(&started.id, true, &Actor::command("tare run"))?;
            return Ok(End::of_command(signal).code());
        }
        // The engine has removed the box, unless a part of it is stuck.
        (Err(error), Some(signal)) if error.kind() != ErrorKind::Stuck => {
            return Ok(End::of_command(signal).code());
        }
        (Err(error), _) => return Err(error),
    };
    if !plan.quiet {
        started.notes.iter().for_each(|note| print_note(note));
    }
    if let Err(error) = print_id(&started.id, args, plan) {
        engine.remove(&started.id, true, &Actor::command("tare run"))?;
        return Err(error);
    }
    Ok(DONE)
}

fn print_id(id: &BoxId, args: &RunArgs, plan: &RunPlan) -> Result<(), Error> {
    let id = id.to_string();
    let name = plan.spec.name.as_ref().map(ToString::to_string);
    if args.labels.json {
        print_json(&DetachReport { id, name })
    } else {
        print_result(&format!("{id}\n"))
    }
}

fn options(args: &RunArgs) -> DetachOptions {
    let detached = &args.detached;
    DetachOptions {
        lease: detached.lease.unwrap_or(lease::DEFAULT).duration(),
        retention: detached.retention.unwrap_or(defaults::RETENTION),
        remove: detached.rm,
        keep: detached.keep,
        log_bytes_max: args
            .limits
            .output_limit
            .map_or(Limit::Default(defaults::LOG_BYTES), Limit::Asked),
        kill_past_log: args.limits.output_kill,
        stdin: args.process.interactive,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::run::spec::tests::args;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_detached_box_has_a_lease_and_a_bounded_log_without_being_asked() {
        let options = options(&args(&["-d"]));
        assert_eq!((options.lease, options.retention), (Some(HOUR * 24), HOUR * 24));
        assert_eq!(
            (options.log_bytes_max, options.kill_past_log),
            (Limit::Default(16 << 20), false)
        );
        assert!(!options.remove && !options.keep && !options.stdin);
    }

    #[test]
    fn options_of_a_detached_box_are_taken_from_the_arguments() {
        let words = ["-di", "--lease", "never", "--keep", "--retention", "1h"];
        let given = options(&args(&words));
        assert_eq!((given.lease, given.retention), (None, HOUR));
        assert!(given.keep && given.stdin);
        let words = ["-d", "--rm", "--output-limit", "1k", "--output-kill"];
        let given = options(&args(&words));
        assert!(given.remove && given.kill_past_log);
        assert_eq!(given.log_bytes_max, Limit::Asked(1024));
    }
}
