//! How the peers are told to show the same of the host as tare does.
//!
//! What that is, is not listed here: a box is asked for its own mounts, so the
//! peers keep up with tare. They get its binds and nothing for the files that
//! tare writes for each box (passwd, hosts), its masks or its limits.

use super::launch::Launch;
use std::process::Stdio;

/// The symbolic links in a root that shows the host's /usr.
pub const ROOT_LINKS: [(&str, &str); 4] = [
    ("bin", "usr/bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("sbin", "usr/sbin"),
];

/// Without this nothing runs, so it is shown even where tare cannot be asked.
const PROGRAMS: &str = "/usr";

/// Where a box has things of the host, as opposed to its own.
const HOST_PARTS: [&str; 3] = ["/usr", "/etc", "/sys"];

/// Prints its mounts when it is run in a box.
pub const ASK_FOR_MOUNTS: [&str; 2] = ["/bin/cat", "/proc/self/mountinfo"];

/// The host's files and directories that a box shows, the shortest path first.
pub fn host_binds(ask_in_box: &Launch) -> Vec<String> {
    let asked = ask_in_box.command().stdout(Stdio::piped()).output();
    let answer = asked.map(|it| it.stdout).unwrap_or_default();
    binds_in(&String::from_utf8_lossy(&answer))
}

pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The fifth field of a line of mountinfo is where something is mounted.
fn binds_in(mountinfo: &str) -> Vec<String> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let of_host = |point: &&str| {
        let part = |it: &&str| {
            point
                .strip_prefix(it)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        HOST_PARTS.iter().any(part)
    };
    let mut binds: Vec<String> = points.filter(of_host).map(str::to_owned).collect();
    binds.push(PROGRAMS.to_owned());
    binds.sort();
    binds.dedup();
    binds
}

pub fn bwrap(binds: &[String], command: &[&str]) -> Launch {
    let mut words = vec!["bwrap", "--unshare-all"];
    for path in binds {
        words.extend(["--ro-bind", path, path]);
    }
    let links: Vec<String> = ROOT_LINKS
        .iter()
        .map(|(link, _)| format!("/{link}"))
        .collect();
    for (link, (_, target)) in links.iter().zip(ROOT_LINKS) {
        words.extend(["--symlink", target, link]);
    }
    words.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    words.extend(["--new-session", "--die-with-parent", "--"]);
    Launch::new(words.into_iter().chain(command.iter().copied()))
}

/// The same namespaces with nothing in them but a fresh /proc: the least work.
pub fn unshare(command: &[&str]) -> Launch {
    let flags = [
        "unshare",
        "--user",
        "--map-root-user",
        "-mpinuC",
        "--fork",
        "--mount-proc",
        "--",
    ];
    Launch::new(flags.into_iter().chain(command.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_are_what_a_box_shows_of_the_host() {
        let mountinfo = "\
65 43 0:40 / / ro,nosuid - tmpfs none rw
66 65 0:40 /tmp /tmp rw - tmpfs none rw
71 65 254:0 /usr /usr ro - ext4 /dev/vda rw
74 65 254:0 /etc/ssl/certs /etc/ssl/certs ro - ext4 /dev/vda rw
81 65 0:22 /devices/system/cpu /sys/devices/system/cpu ro - sysfs sysfs rw
82 69 0:6 /null /dev/null ro - devtmpfs devtmpfs rw
90 89 0:40 /proc/file /proc/keys ro - tmpfs none rw
91 89 0:40 /x /etcetera ro - tmpfs none rw
";
        let expected = ["/etc/ssl/certs", "/sys/devices/system/cpu", "/usr"];
        assert_eq!(binds_in(mountinfo), expected);
    }

    #[test]
    fn where_no_box_answers_the_programs_are_still_bound() {
        assert_eq!(host_binds(&Launch::new(["/bin/false"])), ["/usr"]);
        assert_eq!(host_binds(&Launch::new(["/nonexistent/tare"])), ["/usr"]);
    }

    #[test]
    fn a_program_is_installed_only_when_it_is_in_path() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-sandbox"));
    }

    #[test]
    fn bwrap_gets_each_bind_once() {
        let launch = bwrap(&["/etc/x".into(), "/usr".into()], &["/bin/true"]);
        let words = launch.arguments.join(" ");
        assert!(
            words.contains("--ro-bind /etc/x /etc/x --ro-bind /usr /usr --symlink"),
            "{words}"
        );
        assert!(words.ends_with("--die-with-parent -- /bin/true"), "{words}");
    }
}
