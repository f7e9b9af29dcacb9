//! Command lines that a bench starts over and over: a plain command, and the same in bubblewrap.
//!
//! `std::process::Command` starts them with posix_spawn, which does not copy this process.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};

/// The environment of every command: the caller's own would make some starts more expensive than
/// others.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"),
    ("HOME", "/tmp"),
    ("LANG", "C.UTF-8"),
];

/// How much of the output of a failed command is quoted.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// A command line, ready to be started any number of times.
#[derive(Debug, Clone)]
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

    /// Returns the command without streams, and without the caller's environment.
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

    /// Runs the command without streams. It must exit with 0.
    pub fn run(&self) -> Result<(), String> {
        let status = self.command().status().map_err(|error| self.cannot_start(&error))?;
        self.check(status, "")
    }

    /// Runs the command and returns what it prints. It must exit with 0.
    ///
    /// The output is read until the command ends, so this is not for commands that leave a
    /// process behind.
    pub fn output(&self) -> Result<String, String> {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = command.output().map_err(|error| self.cannot_start(&error))?;
        let mut complaint = String::new();
        // Reading from memory fails only if the text is not UTF-8, and then it is not quoted.
        output.stderr.take(COMPLAINT_BYTES_MAX).read_to_string(&mut complaint).ok();
        self.check(output.status, &complaint)?;
        String::from_utf8(output.stdout).map_err(|error| format!("{}: {error}", self.program))
    }

    /// Runs the command. It must print this: a subject that fails quickly must not look fast.
    pub fn prints(&self, expected: &str) -> Result<(), String> {
        let printed = self.output()?;
        if printed == expected {
            Ok(())
        } else {
            Err(format!("{} printed {printed:?}, not {expected:?}", self.program))
        }
    }

    fn cannot_start(&self, error: &std::io::Error) -> String {
        format!("cannot start {}: {error}", self.program)
    }

    fn check(&self, status: ExitStatus, complaint: &str) -> Result<(), String> {
        let complaint = complaint.lines().next().unwrap_or("no message");
        if status.success() {
            Ok(())
        } else {
            Err(format!("{}: {status}: {complaint}", self.program))
        }
    }
}

/// The symbolic links in a root that shows the host's /usr.
const ROOT_LINKS: [(&str, &str); 4] =
    [("usr/bin", "/bin"), ("usr/lib", "/lib"), ("usr/lib64", "/lib64"), ("usr/sbin", "/sbin")];

/// Runs a command in bubblewrap with new namespaces and its shortest list of binds: /usr only.
/// `more` are further options.
pub fn bwrap(more: &[&str], command: &[&str]) -> Launch {
    let mut words = vec!["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr"];
    for (target, link) in ROOT_LINKS {
        words.extend(["--symlink", target, link]);
    }
    words.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    words.extend(["--new-session", "--die-with-parent"]);
    words.extend(more);
    words.push("--");
    words.extend(command);
    Launch::new(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Launch {
        Launch::new(["/bin/sh", "-c", script])
    }

    #[test]
    fn a_command_that_fails_is_quoted() {
        let failed = shell("echo no more pids >&2; exit 3").output().unwrap_err();
        assert_eq!(failed, "/bin/sh: exit status: 3: no more pids");
        assert!(shell("exit 3").run().unwrap_err().contains("exit status: 3"));
        let absent = Launch::new(["/nonexistent/program"]).run().unwrap_err();
        assert!(absent.starts_with("cannot start /nonexistent/program"), "{absent}");
    }

    #[test]
    fn a_command_that_prints_something_else_has_failed() {
        assert_eq!(shell("echo 1").prints("1\n"), Ok(()));
        let other = shell("true").prints("1\n").unwrap_err();
        assert_eq!(other, "/bin/sh printed \"\", not \"1\\n\"");
    }

    #[test]
    fn a_command_gets_only_the_environment_of_the_bench() {
        let launch = shell("test -z \"$CARGO\" && test \"$LANG\" = C.UTF-8 && test \"$X\" = y");
        assert!(launch.run().is_err());
        assert_eq!(launch.with_environment("X", "y").run(), Ok(()));
    }

    #[test]
    fn bwrap_binds_usr_alone_and_takes_further_options() {
        let words =
            bwrap(&["--ro-bind", "/p", "/opt/packages"], &["/bin/true"]).arguments.join(" ");
        assert!(words.starts_with("--unshare-all --ro-bind /usr /usr --symlink"), "{words}");
        assert!(words.ends_with("--ro-bind /p /opt/packages -- /bin/true"), "{words}");
    }
}
