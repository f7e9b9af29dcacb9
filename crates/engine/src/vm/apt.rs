//! Downloads kernel packages with apt, which checks their signatures.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::error::{Context, Error, ErrorKind};

/// The name of the newest generic kernel: a package that depends on it.
const NEWEST: [(&str, &str); 2] =
    [("debian", "linux-image-amd64"), ("ubuntu", "linux-image-generic")];

/// Returns the packages with the newest generic kernel of this host's distribution.
pub fn kernel_packages() -> Result<Vec<String>, Error> {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let id = system.lines().find_map(|line| line.strip_prefix("ID="));
    let id = id.unwrap_or("unknown").trim_matches('"').to_owned();
    let Some((_, newest)) = NEWEST.iter().find(|(known, _)| *known == id) else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("cannot fetch a kernel: this system is neither Debian nor Ubuntu, but {id}"),
        )
        .with_hint(
            "download the package linux-image-*-amd64 of Debian, and name it: \
             'tare vm kernel use FILE.deb'",
        ));
    };
    let image = dependencies(newest)?.into_iter().find(|it| it.starts_with("linux-image-"));
    let image = image.ok_or_else(|| {
        Error::failed(format!("cannot find the kernel that {newest} depends on"))
            .with_hint("'apt-get update' refreshes the list of packages")
    })?;
    // Ubuntu's modules are a package of their own.
    let modules = dependencies(&image)?.into_iter().filter(|it| it.starts_with("linux-modules-"));
    Ok([image.clone()].into_iter().chain(modules).collect())
}

/// Downloads packages into a directory and returns their files.
pub fn download(packages: &[String], directory: &Path) -> Result<Vec<PathBuf>, Error> {
    if geteuid().is_root()
        && let Some(user) = user_of_apt()
    {
        // As root, apt downloads as this user if the user can write to the directory.
        chown(directory, Some(user), None).context(|| "cannot prepare the download".to_owned())?;
    }
    // If tare is killed, the download ends too.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "apt-get", "-qq", "download"]);
    command.args(["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20"]);
    run(command.args(packages).current_dir(directory), "cannot download the kernel")?;
    let cannot = || format!("cannot list {}", directory.display());
    let entries = fs::read_dir(directory).context(cannot)?;
    let paths = entries.map(|entry| Ok(entry.context(cannot)?.path()));
    let is_package = |path: &PathBuf| path.extension().is_some_and(|it| it == "deb");
    let paths: Vec<PathBuf> = paths.collect::<Result<_, Error>>()?;
    let paths: Vec<PathBuf> = paths.into_iter().filter(is_package).collect();
    if paths.len() == packages.len() {
        Ok(paths)
    } else {
        Err(Error::failed("cannot download the kernel: apt-get left no package"))
    }
}

fn dependencies(package: &str) -> Result<Vec<String>, Error> {
    let mut command = Command::new("apt-cache");
    command.args(["show", "--no-all-versions", package]);
    Ok(parse_dependencies(&run(&mut command, &format!("cannot find the package {package}"))?))
}

/// Returns the first choice of each dependency.
fn parse_dependencies(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("Depends: "));
    let names = line.unwrap_or_default().split(',').filter_map(|it| it.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn run(command: &mut Command, failure: &str) -> Result<String, Error> {
    let hint = "is apt installed, and does 'apt-get update' work?";
    let output = command.stdin(Stdio::null()).env("LC_ALL", "C").output();
    let output = output.map_err(|error| Error::failed(failure).caused_by(error).with_hint(hint))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = said.lines().find(|line| line.starts_with("E:")).or(said.lines().next());
    let reason = first.map_or_else(|| output.status.to_string(), str::to_owned);
    Err(Error::failed(failure).caused_by(reason).with_hint(hint))
}

fn user_of_apt() -> Option<u32> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find_map(|line| line.strip_prefix("_apt:"))?;
    line.split(':').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_is_a_name_without_its_version_and_alternatives() {
        let text = "Package: linux-image-amd64\nDepends: linux-image-6.1.0-55-amd64 (= 6.1.192-1), \
                    kmod | module-init-tools\nSize: 1480\n";
        assert_eq!(parse_dependencies(text), ["linux-image-6.1.0-55-amd64", "kmod"]);
        assert!(parse_dependencies("Package: a\n").is_empty());
    }
}
