//! Starts a command and waits for its end. This is what a bench measures.
//!
//! A [`Starter`] does it either in this process or in a child that was put
//! somewhere else first (crun wants other mounts than this host has). Both run
//! the same code, so that no subject gets another clock than the rest.

use crate::failure::{Context, Failure};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What every subject gets as its environment, and a box shows its command:
/// the caller's own would make some starts dearer than others.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"),
    ("HOME", "/tmp"),
    ("LANG", "C.UTF-8"),
];

/// Proves that a subject runs what it is given: one that fails quickly must not
/// look fast.
pub const CONTROL: &[&str] = &["/bin/sh", "-c", "exit 37"];
pub const CONTROL_ENDING: Ending = Ending::Exited(37);

/// How much of the stderr of a failed command is kept.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// A command line, ready to be started any number of times.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launch {
    pub program: String,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Launch {
    pub fn new<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Self {
        let mut words = words.into_iter().map(Into::into);
        Self {
            program: words.next().unwrap_or_default(),
            arguments: words.collect(),
            environment: Vec::new(),
        }
    }

    pub fn with_environment(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// The command without streams, and without the caller's environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(ENVIRONMENT)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Measures from before the spawn until the process is reaped.
    fn timed(&self) -> Life {
        let mut command = self.command();
        let start = Instant::now();
        let ended = command.spawn().and_then(|mut child| child.wait());
        let duration = start.elapsed();
        Life { duration, ending: Ending::of(ended), complaint: String::new() }
    }

    /// Like [`Self::timed`], but keeps stderr, for runs whose errors matter more than the time.
    fn listened_to(&self) -> Life {
        let start = Instant::now();
        let ended = self.command().stderr(Stdio::piped()).spawn().and_then(|mut child| {
            let mut bytes = Vec::new();
            if let Some(stderr) = child.stderr.take() {
                stderr.take(COMPLAINT_BYTES_MAX).read_to_end(&mut bytes)?;
            }
            Ok((child.wait()?, bytes))
        });
        let duration = start.elapsed();
        let (status, bytes) = match ended {
            Ok((status, bytes)) => (Ok(status), bytes),
            Err(error) => (Err(error), Vec::new()),
        };
        let complaint = String::from_utf8_lossy(&bytes).trim().to_owned();
        Life { duration, ending: Ending::of(status), complaint }
    }
}

/// One command from start to end.
#[derive(Debug, Serialize, Deserialize)]
pub struct Life {
    pub duration: Duration,
    pub ending: Ending,
    /// The stderr, if it was kept.
    pub complaint: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    Exited(i32),
    Killed(i32),
    NotStarted(String),
}

impl Ending {
    fn of(ended: std::io::Result<ExitStatus>) -> Self {
        match ended {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => Self::Exited(code),
                (None, signal) => Self::Killed(signal.unwrap_or_default()),
            },
            Err(error) => Self::NotStarted(error.to_string()),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::NotStarted(why) => write!(f, "cannot be started: {why}"),
        }
    }
}

/// Whether a run is for its time or for its stderr.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum LaunchPurpose {
    Time,
    Listen,
}

/// The process that starts the commands.
pub enum Starter {
    Here,
    /// A child of ours that lives somewhere else and answers line by line.
    Elsewhere(Child, BufReader<ChildStdout>),
}

#[derive(Debug, Serialize, Deserialize)]
struct LaunchRequest {
    launch: Launch,
    purpose: LaunchPurpose,
}

impl Starter {
    /// `wrapper` gets the words of our own starter appended, and has to end in it.
    pub fn elsewhere(wrapper: &[&str]) -> Result<Self, Failure> {
        let own = std::env::current_exe().context(|| "cannot find this program".into())?;
        let mut child = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .arg(own)
            .args(["bench", "starter"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(|| format!("cannot start {}", wrapper[0]))?;
        let answers = child.stdout.take().expect("its stdout was asked to be a pipe");
        Ok(Self::Elsewhere(child, BufReader::new(answers)))
    }

    pub fn start(&mut self, launch: &Launch, purpose: LaunchPurpose) -> Result<Life, String> {
        match self {
            Self::Here => Ok(match purpose {
                LaunchPurpose::Time => launch.timed(),
                LaunchPurpose::Listen => launch.listened_to(),
            }),
            Self::Elsewhere(child, answers) => ask(child, answers, launch, purpose)
                .map_err(|why| last_words(child).unwrap_or_else(|| why.to_string())),
        }
    }

    /// One run for its time; only a success has one.
    pub fn time(&mut self, launch: &Launch) -> Result<Duration, String> {
        let life = self.start(launch, LaunchPurpose::Time)?;
        match life.ending {
            Ending::Exited(0) => Ok(life.duration),
            ending @ (Ending::Exited(_) | Ending::Killed(_) | Ending::NotStarted(_)) => {
                Err(ending.to_string())
            }
        }
    }

    /// One run that has to end in this way.
    pub fn expect(&mut self, launch: &Launch, ending: &Ending) -> Result<(), Failure> {
        let life = self.start(launch, LaunchPurpose::Listen).map_err(Failure::new)?;
        match (life.ending == *ending, life.complaint.lines().next()) {
            (true, _) => Ok(()),
            (false, None) => Err(Failure::new(format!("{}, not {ending}", life.ending))),
            (false, Some(why)) => Err(Failure::new(format!("{}: {why}", life.ending))),
        }
    }

    /// Ends the child, if there is one, by closing the pipe it reads from.
    pub fn end(self) -> Result<(), Failure> {
        match self {
            Self::Here => Ok(()),
            Self::Elsewhere(mut child, _) => {
                drop(child.stdin.take());
                child.wait().map(drop).context(|| "cannot wait for the starter".into())
            }
        }
    }
}

fn ask(
    child: &mut Child,
    answers: &mut BufReader<ChildStdout>,
    launch: &Launch,
    purpose: LaunchPurpose,
) -> std::io::Result<Life> {
    let request = LaunchRequest { launch: launch.clone(), purpose };
    let mut line = serde_json::to_string(&request)?;
    line.push('\n');
    let Some(requests) = &mut child.stdin else {
        return Err(std::io::Error::other("the starter is gone"));
    };
    requests.write_all(line.as_bytes())?;
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

/// The stderr of a starter that no longer answers.
fn last_words(child: &mut Child) -> Option<String> {
    // Without requests it ends, if it has not, and so does its stderr.
    drop(child.stdin.take());
    let mut bytes = Vec::new();
    child.stderr.take()?.take(COMPLAINT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let words = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!words.is_empty()).then_some(words)
}

/// The other end of [`Starter::Elsewhere`]: until stdin closes, start what is asked.
pub fn serve_as_starter() -> Result<(), Failure> {
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.context(|| "cannot read a request".into())?;
        let request: LaunchRequest =
            serde_json::from_str(&line).context(|| "cannot understand a request".into())?;
        let life = match request.purpose {
            LaunchPurpose::Time => request.launch.timed(),
            LaunchPurpose::Listen => request.launch.listened_to(),
        };
        let answer = serde_json::to_string(&life).context(|| "cannot write an answer".into())?;
        writeln!(answers, "{answer}").context(|| "cannot answer".into())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Launch {
        Launch::new(["/bin/sh", "-c", script])
    }

    #[test]
    fn the_ending_tells_code_signal_and_absence_apart() {
        assert_eq!(shell("exit 37").timed().ending, Ending::Exited(37));
        assert_eq!(shell("kill -9 $$").timed().ending, Ending::Killed(9));
        let absent = Launch::new(["/nonexistent/program"]).timed().ending;
        assert!(matches!(absent, Ending::NotStarted(_)), "{absent:?}");
    }

    #[test]
    fn a_command_gets_only_the_environment_of_the_bench() {
        let launch = shell("test -z \"$CARGO\" && test \"$LANG\" = C.UTF-8 && test \"$X\" = y");
        assert_eq!(launch.timed().ending, Ending::Exited(1));
        assert_eq!(launch.with_environment("X", "y").timed().ending, Ending::Exited(0));
    }

    #[test]
    fn the_errors_of_a_command_are_read_on_request() {
        let life = shell("echo out; echo no such thing >&2; exit 2").listened_to();
        assert_eq!((life.ending, life.complaint.as_str()), (Ending::Exited(2), "no such thing"));
    }

    #[test]
    fn a_subject_that_does_not_run_its_command_is_found_out() {
        let quick = Launch::new(["/bin/true"]);
        let failure = Starter::Here.expect(&quick, &CONTROL_ENDING).unwrap_err();
        assert_eq!(failure.to_string(), "exit code 0, not exit code 37");
        let plain = Launch::new(CONTROL.iter().copied());
        Starter::Here.expect(&plain, &CONTROL_ENDING).unwrap();
    }

    #[test]
    fn a_subject_that_complains_is_quoted() {
        let launch = Launch::new(["/bin/sh", "-c", "echo cgroups in hybrid mode >&2; exit 1"]);
        let failure = Starter::Here.expect(&launch, &Ending::Exited(0)).unwrap_err();
        assert_eq!(failure.to_string(), "exit code 1: cgroups in hybrid mode");
    }

    #[test]
    fn the_duration_spans_the_whole_life() {
        let life = shell("exec sleep 0.05").timed();
        assert!(life.duration >= Duration::from_millis(50), "{:?}", life.duration);
    }

    #[test]
    fn a_starter_that_dies_first_is_quoted() {
        let mut starter =
            Starter::elsewhere(&["/bin/sh", "-c", "echo cannot mount >&2; exit 1"]).unwrap();
        let why = starter.start(&shell("exit 0"), LaunchPurpose::Time).unwrap_err();
        assert_eq!(why, "cannot mount");
        starter.end().unwrap();
    }
}
