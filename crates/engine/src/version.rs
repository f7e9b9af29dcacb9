//! Which tare this is: its version, and the commit that it was built from.

/// The version of the package.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// The short hash of the commit. `unknown` in a debug build, and in a build of sources that are
/// neither a git repository nor an archive of one.
pub const COMMIT: &str = env!("TARE_COMMIT");

/// What `tare --version` prints after the name: `0.1.0 (9eb87a8, 2026-11-18)`.
pub const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("TARE_BUILT_FROM"), ")");

#[cfg(test)]
#[path = "../build.rs"]
#[allow(dead_code, clippy::print_stdout)]
mod build_script;

#[cfg(test)]
mod tests {
    use super::build_script::{of_archive, of_repository};
    use std::path::Path;
    use std::process::Command;
    use tare_harness::TemporaryDirectory;

    const COMMIT_TREE: &str = "
        git init -q . && mkdir -p crates/engine && cp \"$1\"/.gitattributes .
        cp \"$1\"/crates/engine/commit crates/engine/ && git add . &&
        git -c user.name=t -c user.email=t@t commit -q -m t --date 2026-01-02T03:04:05Z";

    fn shell(directory: &Path, script: &str) -> String {
        let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", script, "sh", repository]).current_dir(directory);
        shell.env("GIT_COMMITTER_DATE", "2026-01-02T03:04:05Z");
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn a_repository_and_an_archive_of_it_are_of_the_same_commit() {
        let (repository, archive) = (TemporaryDirectory::new(), TemporaryDirectory::new());
        shell(repository.path(), COMMIT_TREE);
        let commit = shell(repository.path(), "git rev-parse --short=7 HEAD");
        let archived = archive.path().join("crates/engine");
        shell(
            repository.path(),
            &format!("git archive HEAD | tar -x -C {}", archive.path().display()),
        );

        let expected = Some(format!("{commit} 2026-01-02"));
        assert_eq!(of_repository(&repository.path().join("crates/engine")), expected);
        assert_eq!(of_archive(&archived), expected);
        assert_eq!(of_archive(&repository.path().join("crates/engine")), None);
    }

    #[test]
    fn sources_that_were_copied_into_another_repository_are_of_no_commit() {
        let other = TemporaryDirectory::new();
        shell(other.path(), COMMIT_TREE);
        let copied = other.path().join("vendor/tare/crates/engine");
        std::fs::create_dir_all(&copied).unwrap();
        assert_eq!(of_repository(&copied), None);
    }
}
