//! `/bin/true` in something that is already there: one more process in a live
//! box, beside a process on the host and one more in a peer's container.
//!
//! The containers show the same of the host as the box does. They are started
//! once, untimed, under the bench's own name, where the janitor finds them.

use super::super::crun::{PURE_CGROUP2, Profile, write_bundle};
use super::super::launch::{CONTROL, CONTROL_ENDING, Ending, Launch, Starter};
use super::super::peers::{ASK_FOR_MOUNTS, View, is_installed};
use super::super::report::{Comparison, Hope};
use super::super::{Outcome, RunOnce, interleave};
use super::library;
use super::tare::{IDLE, Tare};
use crate::failure::Failure;
use std::fs;
use std::path::{Path, PathBuf};

const COMMAND: &[&str] = &["/bin/true"];

const HOPES: [Hope; 2] = [("library", 2.0, "plain"), ("tare", 0.5, "crun")];

/// Rows in the order of the table.
const PLAIN: &str = "plain";
const LIBRARY: &str = "library";
const TARE: &str = "tare";
const CRUN: &str = "crun";
const PODMAN: &str = "podman";

pub fn measure(tare: &mut Tare, name: &str, rounds: usize) -> Result<Comparison, Failure> {
    eprintln!("exec: {rounds} rounds");
    let (id, _) = tare.run_detached()?;
    let ask = tare.launch(&[&["run", "--quiet", "--"][..], &ASK_FOR_MOUNTS].concat());
    let view = View::ask(&ask);
    let library = library::subject(tare.state_root(), &id, COMMAND);
    let peers = [
        (PLAIN, ExecPeer::ready(Live::plain())),
        (TARE, ExecPeer::ready(Live::tare(tare, &id))),
        (CRUN, Live::crun(tare.directory(), name, &view).and_then(ExecPeer::ready)),
        (PODMAN, Live::podman(tare.directory(), name, &view).and_then(ExecPeer::ready)),
    ];
    let outcomes = compare(library, peers.into(), rounds)?;
    tare.remove_all()?;
    tare.expect_gone(&[id])?;
    let command = format!("exec {} into what is already there", COMMAND.join(" "));
    Ok(Comparison::new(command, outcomes, &[PLAIN, CRUN], &HOPES))
}

type Named<T> = (&'static str, T);

/// All that is ready, in turn; what is not keeps its row. The library's row is
/// the second.
fn compare(
    library: Result<RunOnce<'static>, Failure>,
    mut peers: Vec<Named<Result<ExecPeer, Failure>>>,
    rounds: usize,
) -> Result<Vec<Named<Outcome>>, Failure> {
    let mut subjects: Vec<RunOnce<'_>> = Vec::new();
    for peer in peers.iter_mut().filter_map(|it| it.1.as_mut().ok()) {
        subjects.push(Box::new(|| peer.starter.time(&peer.exec)));
    }
    let library_absent = library.map(|it| subjects.push(it)).err();
    let mut measured = interleave(&mut subjects, rounds).into_iter();
    drop(subjects);
    let mut next = || measured.next().expect("interleave gives one outcome each");
    let mut outcomes = Vec::new();
    for (name, peer) in peers {
        let outcome = match peer {
            Ok(peer) => peer.end().map(|()| next())?,
            Err(why) => absent(&why),
        };
        outcomes.push((name, outcome));
    }
    let library = library_absent.map_or_else(next, |why| absent(&why));
    outcomes.insert(1, (LIBRARY, library));
    Ok(outcomes)
}

fn absent(why: &Failure) -> Outcome {
    let reason = why.to_string();
    Outcome::Absent { reason }
}

/// The command that starts it, and the file with its errors.
struct Start {
    launch: Launch,
    log: PathBuf,
}

/// A running box or container, and the command that starts another process in it.
struct Live {
    starter: Starter,
    start: Option<Start>,
    /// The words before the command.
    exec: Launch,
    end: Option<Launch>,
}

impl Live {
    /// The host itself: the least work.
    fn plain() -> Self {
        Self { starter: Starter::Here, start: None, exec: Launch::new([""; 0]), end: None }
    }

    fn tare(tare: &Tare, id: &str) -> Self {
        Self { exec: tare.launch(&["exec", id, "--"]), ..Self::plain() }
    }

    fn crun(directory: &Path, name: &str, view: &View) -> Result<Self, Failure> {
        installed(CRUN)?;
        let bundle = directory.join("crun-idle");
        write_bundle(&bundle, &IDLE, &format!("{name}/crun"), view, Profile::Bare)?;
        let (root, log) = (directory.join("crun-state"), directory.join("crun-log"));
        let (root, bundle) = (root.to_string_lossy(), bundle.to_string_lossy());
        let crun = |words: &[&str]| {
            let base = ["crun", "--root", &root, "--cgroup-manager=cgroupfs"];
            Launch::new([&base, words].concat())
        };
        let logged = format!("--log={}", log.display());
        let launch = crun(&[&logged, "run", "--detach", "--bundle", &bundle, name]);
        Ok(Self {
            starter: Starter::elsewhere(&PURE_CGROUP2)?,
            start: Some(Start { launch, log }),
            exec: crun(&["exec", name]),
            end: Some(crun(&["delete", "--force", name])),
        })
    }

    /// On a root like crun's, through whichever runtime it has. All its storage is
    /// in our directory and its cgroups are under our name. It keeps no log.
    fn podman(directory: &Path, name: &str, view: &View) -> Result<Self, Failure> {
        installed(PODMAN)?;
        let bundle = directory.join("podman-idle");
        write_bundle(&bundle, &IDLE, name, view, Profile::Bare)?;
        let path = |part: &str| directory.join(part).to_string_lossy().into_owned();
        let (storage, run) = (path("podman-storage"), path("podman-run"));
        let base = ["podman", "--root", &storage, "--runroot", &run];
        let base = [&base[..], &["--storage-driver=vfs", "--cgroup-manager=cgroupfs"]].concat();
        let podman = |words: &[&str]| Launch::new([&base, words].concat());
        let root = path("podman-idle/rootfs");
        let parent = format!("--cgroup-parent=/{name}/podman");
        let volumes: Vec<String> = view.binds.iter().map(|it| format!("-v{it}:{it}:ro")).collect();
        let mut start = vec!["run", "--detach", "--name", name, "--network=none", &parent];
        start.extend(volumes.iter().map(String::as_str));
        start.extend(["--rootfs", &root]);
        start.extend(IDLE);
        Ok(Self {
            starter: Starter::elsewhere(&PURE_CGROUP2)?,
            start: Some(Start { launch: podman(&start), log: PathBuf::new() }),
            exec: podman(&["exec", name]),
            end: Some(podman(&["rm", "--force", "--time=0", name])),
        })
    }

    fn exec(&self, command: &[&str]) -> Launch {
        let mut launch = self.exec.clone();
        let mut words = command.iter().map(|it| (*it).to_owned());
        if launch.program.is_empty() {
            launch.program = words.next().unwrap_or_default();
        }
        launch.arguments.extend(words);
        launch
    }
}

fn installed(program: &str) -> Result<(), Failure> {
    if is_installed(program) {
        Ok(())
    } else {
        Err(Failure::new(format!("not installed ({program} is not in PATH)")))
    }
}

/// A subject that has run a test command.
struct ExecPeer {
    starter: Starter,
    exec: Launch,
    end: Option<Launch>,
}

impl ExecPeer {
    fn ready(live: Live) -> Result<Self, Failure> {
        let (control, exec) = (live.exec(CONTROL), live.exec(COMMAND));
        let mut peer = Self { starter: live.starter, exec, end: live.end };
        match peer.check(live.start.as_ref(), &control) {
            Ok(()) => Ok(peer),
            Err(why) => peer.end().and(Err(why)),
        }
    }

    fn check(&mut self, start: Option<&Start>, control: &Launch) -> Result<(), Failure> {
        if let Some(start) = start {
            // Timed, not listened to: what is detached keeps the pipe that it
            // would be listened to by.
            self.starter.time(&start.launch).map_err(|ending| {
                let said = fs::read_to_string(&start.log).unwrap_or_default();
                let said = said.lines().next().unwrap_or(&ending);
                Failure::new(format!("cannot start a container: {said}"))
            })?;
        }
        self.starter.expect(control, &CONTROL_ENDING)?;
        self.starter.expect(&self.exec, &Ending::Exited(0))
    }

    fn end(mut self) -> Result<(), Failure> {
        if let Some(end) = &self.end {
            // What stays is in a cgroup of our name, and that is the janitor's.
            let _ = self.starter.time(end);
        }
        self.starter.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_command_comes_after_the_words_that_lead_to_it() {
        let tare = Tare::new("/t/tare".into(), "/d".into(), "/d/state".into());
        let launch = Live::tare(&tare, "7f3q").exec(COMMAND);
        assert_eq!(launch.program, "/t/tare");
        assert_eq!(launch.arguments, ["exec", "7f3q", "--", "/bin/true"]);
        let launch = Live::plain().exec(CONTROL);
        assert_eq!(launch.program, "/bin/sh");
        assert_eq!(launch.arguments, ["-c", "exit 37"]);
    }

    #[test]
    fn each_row_keeps_its_own_figure_when_others_are_absent() {
        let library: RunOnce<'static> = Box::new(|| Ok(Duration::from_secs(7)));
        let peers = vec![
            (PLAIN, ExecPeer::ready(Live::plain())),
            (TARE, Err(Failure::new("no exec"))),
            (CRUN, ExecPeer::ready(Live::plain())),
        ];
        let outcomes = compare(Ok(library), peers, 2).unwrap();
        let names: Vec<&str> = outcomes.iter().map(|it| it.0).collect();
        assert_eq!(names, [PLAIN, LIBRARY, TARE, CRUN]);
        assert_eq!(outcomes[1].1.p50_us(), Some(7e6));
        assert!(matches!(&outcomes[2].1, Outcome::Absent { reason } if reason == "no exec"));
        assert!(outcomes[3].1.p50_us().is_some_and(|it| it < 5e6));
    }

    #[test]
    fn what_does_not_run_its_command_is_not_ready() {
        let mut live = Live::plain();
        live.exec = Launch::new(["/bin/true"]);
        let failure = ExecPeer::ready(live).err().map(|it| it.to_string());
        assert_eq!(failure.as_deref(), Some("exit code 0, not exit code 37"));
    }
}
