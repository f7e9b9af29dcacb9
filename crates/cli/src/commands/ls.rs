//! `tare ls`: the boxes of a state root.

use clap::Args;
use tare_engine::{BoxFilter, Cause, Condition, Error, RUN_LABEL, State, Status, Timestamp};

use crate::context::{Context, Purpose};
use crate::error::to_json_line;
use crate::exit::DONE;
use crate::output::format;
use crate::output::table::{self, Column};
use crate::output::watch::{self, Times};

const EXAMPLES: &str = "\
Examples:
  tare ls
  tare ls -a --filter label=team=blue --filter state=exited
  tare ls --json | jq -r '.[] | select(.memory_bytes > 1e9) | .id'
  tare ls -q --filter name=web | xargs -r tare rm -f";

const COLUMNS: [Column; 9] = [
    Column::whole("ID"),
    Column::cut("NAME", 12),
    Column::cut("KEY", 12),
    Column::whole("STATE"),
    Column::whole("AGE"),
    Column::whole("LEASE"),
    Column::cut("COMMAND", 16),
    Column::whole("PROCESSES"),
    Column::whole("MEMORY"),
];

/// List boxes, the oldest first
///
/// The state of a box is starting, warm, running, paused, stopping, exited or stuck. --all shows
/// boxes that have ended, until they are removed or their retention passes, boxes that wait in a pool
/// of a server (warm), and the API key that each box belongs to; boxes of the command line have none.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LsArgs {
    /// Include boxes that have ended or wait in a pool, and show the API key of each box
    #[arg(short, long)]
    all: bool,

    /// Print ids only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,

    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,

    /// Show boxes that match name=NAME, label=KEY, label=KEY=VALUE or
    /// state=STATE; may be repeated, and all must match
    #[arg(short, long, value_name = "FILTER", value_parser = Condition::parse)]
    filter: Vec<Condition>,

    /// Repeat every second, until interrupted
    #[arg(long)]
    watch: bool,
}

pub fn run(args: &LsArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    watch::show(Times::watch(args.watch), || {
        let boxes = engine.list()?;
        let waiting = boxes.iter().filter(|status| status.state == State::Warm).count();
        let text = render(args, &select(args, boxes));
        let shows_all = args.all || args.quiet || args.json || !args.filter.is_empty();
        Ok(Some(if shows_all { text } else { text + &pooled(waiting) }))
    })?;
    Ok(DONE)
}

/// The line that counts boxes in pools, which the list does not show.
fn pooled(waiting: usize) -> String {
    match waiting {
        0 => String::new(),
        1 => "1 warm box waits in a pool (tare ls -a shows it)\n".to_owned(),
        count => format!("{count} warm boxes wait in pools (tare ls -a shows them)\n"),
    }
}

fn select(args: &LsArgs, mut boxes: Vec<Status>) -> Vec<Status> {
    let filter = BoxFilter { all: args.all, conditions: args.filter.clone() };
    boxes.retain(|status| filter.matches(status));
    boxes
}

fn render(args: &LsArgs, boxes: &[Status]) -> String {
    match (args.json, args.quiet) {
        (true, _) => to_json_line(&boxes),
        (false, true) => boxes.iter().map(|status| format!("{}\n", status.id)).collect(),
        (false, false) => {
            let now = Timestamp::now();
            let rows = boxes.iter().map(|status| row(status, now));
            let width = table::columns_of_stdout();
            if args.all {
                table::render(&COLUMNS, &rows.collect::<Vec<_>>(), width)
            } else {
                let rows: Vec<_> = rows.map(without_key).collect();
                table::render(&without_key(COLUMNS), &rows, width)
            }
        }
    }
}

/// A damaged record does not say when its box was created.
fn age(status: &Status, now: Timestamp) -> String {
    if status.created_at == Timestamp::from_ms(0) {
        return format::EMPTY_CELL.to_owned();
    }
    format::time(now.since(status.created_at))
}

fn row(status: &Status, now: Timestamp) -> [String; 9] {
    [
        status.id.to_string(),
        format::text(status.name.as_deref()),
        format::text(status.key.as_deref()),
        state(status),
        age(status, now),
        lease(status, now),
        command(status),
        format::count(status.pids),
        format::size(status.memory_bytes),
    ]
}

fn without_key<T>(cells: [T; 9]) -> [T; 8] {
    let [id, name, _key, state, age, lease, command, processes, memory] = cells;
    [id, name, state, age, lease, command, processes, memory]
}

/// The command, or for a box without one the program that a server runs in it.
fn command(status: &Status) -> String {
    match status.labels.get(RUN_LABEL) {
        Some(program) if status.command.is_empty() => format!("({program})"),
        Some(_) | None => format::command(&status.command),
    }
}

/// The state, and how the box ended or what it waits for: `exited(0)`, `exited(124, timeout)`,
/// `warm(python)`, `starting(its machine boots)`.
fn state(status: &Status) -> String {
    match (status.exit_code, status.cause) {
        (Some(code), None | Some(Cause::Exited)) => format!("{}({code})", status.state),
        (Some(code), Some(cause)) => format!("{}({code}, {cause})", status.state),
        (None, _) => match &status.pool {
            Some(pool) => format!("{}({pool})", status.state),
            None if status.booting => format!("{}(its machine boots)", status.state),
            None => status.state.to_string(),
        },
    }
}

/// The time that is left of the lease. A box that has ended has none, and neither has an attached
/// box.
fn lease(status: &Status, now: Timestamp) -> String {
    match status.lease_ends_at {
        _ if status.state == State::Exited => format::EMPTY_CELL.to_owned(),
        Some(end) => format::time_left(end.since(now)),
        None if status.attached => format::EMPTY_CELL.to_owned(),
        None => "never".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::time::Duration;
    use tare_engine::BoxId;

    pub fn status(id: &str, name: Option<&str>, state: State) -> Status {
        let live = state != State::Exited;
        Status {
            name: name.map(str::to_owned),
            state,
            created_at: now().before(Duration::from_secs(300)),
            lease_ends_at: Some(now().after(Duration::from_secs(7200))),
            command: vec!["sleep".into(), "1 h".into()],
            labels: [("team".to_owned(), "blue".to_owned())].into(),
            pids: live.then_some(2),
            memory_bytes: live.then_some(3 << 20),
            exit_code: (!live).then_some(137),
            cause: (!live).then_some(Cause::Killed),
            ..Status::unknown(BoxId::parse(id).unwrap())
        }
    }

    fn now() -> Timestamp {
        Timestamp::parse("2026-11-15T22:00:00Z").unwrap()
    }

    fn boxes() -> Vec<Status> {
        vec![
            status("aaaaaaaaaaaa", Some("web"), State::Running),
            status("bbbbbbbbbbbb", None, State::Exited),
            status("cccccccccccc", None, State::Stuck),
        ]
    }

    fn selected(words: &[&str]) -> Vec<String> {
        let line = ["tare", "ls"].iter().chain(words);
        let Command::Ls(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not ls");
        };
        let boxes = select(&args, boxes());
        let initials = boxes.iter().map(|status| status.id.as_str()[..1].to_owned());
        initials.collect()
    }

    #[test]
    fn ls_lists_only_live_boxes_by_default() {
        assert_eq!(selected(&[]), ["a", "c"]);
        assert_eq!(selected(&["-a"]), ["a", "b", "c"]);
        assert_eq!(selected(&["--filter", "state=exited"]), ["b"]);
    }

    #[test]
    fn all_filters_must_match() {
        assert_eq!(selected(&["-f", "name=web", "-f", "label=team"]), ["a"]);
        assert_eq!(selected(&["-f", "name=web", "-f", "label=team=red"]), [""; 0]);
    }

    #[test]
    fn the_key_column_is_shown_only_with_all() {
        let mut boxes = boxes();
        boxes[1].key = Some("ci".to_owned());
        boxes[2].created_at = Timestamp::from_ms(0);
        let rows: Vec<_> = boxes.iter().map(|status| row(status, now())).collect();
        let expected = "\
ID            NAME  KEY  STATE                AGE  LEASE  COMMAND      PROCESSES  MEMORY
aaaaaaaaaaaa  web   -    running              5m   2h     sleep '1 h'  2          3 MiB
bbbbbbbbbbbb  -     ci   exited(137, killed)  5m   -      sleep '1 h'  -          -
cccccccccccc  -     -    stuck                -    2h     sleep '1 h'  2          3 MiB
";
        assert_eq!(table::render(&COLUMNS, &rows, None), expected);
        let rows: Vec<_> = rows.into_iter().map(without_key).collect();
        let expected = "\
ID            NAME  STATE                AGE  LEASE  COMMAND      PROCESSES  MEMORY
aaaaaaaaaaaa  web   running              5m   2h     sleep '1 h'  2          3 MiB
bbbbbbbbbbbb  -     exited(137, killed)  5m   -      sleep '1 h'  -          -
cccccccccccc  -     stuck                -    2h     sleep '1 h'  2          3 MiB
";
        assert_eq!(table::render(&without_key(COLUMNS), &rows, None), expected);
    }

    #[test]
    fn a_box_without_a_command_shows_what_a_server_runs_in_it() {
        let mut status = status("aaaaaaaaaaaa", None, State::Running);
        let label = (RUN_LABEL.to_owned(), "python3".to_owned());
        status.labels.extend([label]);
        assert_eq!(command(&status), "sleep '1 h'");
        status.command.clear();
        assert_eq!(command(&status), "(python3)");
        status.labels.clear();
        assert_eq!(command(&status), "-");
    }

    #[test]
    fn a_box_without_a_lease_lives_for_ever_or_as_long_as_its_caller() {
        let mut status = status("aaaaaaaaaaaa", None, State::Running);
        status.lease_ends_at = None;
        assert_eq!(lease(&status, now()), "never");
        status.attached = true;
        assert_eq!(lease(&status, now()), "-");
    }

    #[test]
    fn the_json_is_complete() {
        let json = serde_json::to_value(boxes()).unwrap();
        for key in [
            "id",
            "name",
            "key",
            "state",
            "created_at",
            "lease_ends_at",
            "command",
            "labels",
            "pids",
            "memory_bytes",
            "exit_code",
            "attached",
            "ended_at",
            "ended_after",
            "cause",
            "oom",
            "stuck_on",
        ] {
            assert!(json[0].get(key).is_some(), "{key}");
        }
    }
}
