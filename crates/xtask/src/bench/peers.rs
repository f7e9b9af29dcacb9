//! Gives the peers the same view of the host as a box has.
//!
//! The view is read from the mounts of a box, so the peers follow tare. They do not get the files that
//! tare writes for each box (passwd, hosts), and no limits.

use super::launch::Launch;
use std::process::Stdio;

/// The symbolic links in a root that shows the host's /usr.
pub const ROOT_LINKS: [(&str, &str); 4] =
    [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("sbin", "usr/sbin")];

/// Every command needs this, so it is visible even if no box can be asked.
const PROGRAMS: &str = "/usr";

/// Directories of a box whose mounts come from the host.
const HOST_PARTS: [&str; 3] = ["/usr", "/etc", "/sys"];
const PROC: &str = "/proc";

/// Prints its mounts when it is run in a box.
pub const ASK_FOR_MOUNTS: [&str; 2] = ["/bin/cat", "/proc/self/mountinfo"];

/// The paths of the host that a box sees. In each list, the shortest path comes first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Files and directories that it shows.
    pub binds: Vec<String>,
    /// Names in /proc that it covers with nothing.
    pub masked: Vec<String>,
    /// Names in /proc that are read-only.
    pub read_only: Vec<String>,
}

impl View {
    pub fn ask(in_box: &Launch) -> Self {
        let asked = in_box.command().stdout(Stdio::piped()).output();
        let answer = asked.map(|it| it.stdout).unwrap_or_default();
        Self::of(&String::from_utf8_lossy(&answer))
    }

    fn of(mountinfo: &str) -> Self {
        let mut view = Self::default();
        for line in mountinfo.lines() {
            // What of its file system is mounted, and where.
            let mut fields = line.split(' ').skip(3);
            let (Some(part), Some(point)) = (fields.next(), fields.next()) else {
                continue;
            };
            if HOST_PARTS.iter().any(|it| is_in(point, it)) {
                view.binds.push(point.to_owned());
            } else if point != PROC && is_in(point, PROC) {
                let of_proc = point.strip_prefix(PROC) == Some(part);
                let list = if of_proc { &mut view.read_only } else { &mut view.masked };
                list.push(point.to_owned());
            }
        }
        view.binds.push(PROGRAMS.to_owned());
        for list in [&mut view.binds, &mut view.masked, &mut view.read_only] {
            list.sort();
            list.dedup();
        }
        view
    }
}

fn is_in(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

pub fn bwrap(binds: &[String], command: &[&str]) -> Launch {
    let mut words = vec!["bwrap", "--unshare-all"];
    for path in binds {
        words.extend(["--ro-bind", path, path]);
    }
    let links: Vec<String> = ROOT_LINKS.iter().map(|(link, _)| format!("/{link}")).collect();
    for (link, (_, target)) in links.iter().zip(ROOT_LINKS) {
        words.extend(["--symlink", target, link]);
    }
    words.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    words.extend(["--new-session", "--die-with-parent", "--"]);
    Launch::new(words.into_iter().chain(command.iter().copied()))
}

/// The same namespaces with nothing in them but a fresh /proc: the least work.
pub fn unshare(command: &[&str]) -> Launch {
    let flags = ["unshare", "--user", "--map-root-user", "-mpinuC", "--fork", "--mount-proc", "--"];
    Launch::new(flags.into_iter().chain(command.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_is_what_a_box_shows_of_the_host_and_what_it_hides() {
        let mountinfo = "\
65 43 0:40 / / ro,nosuid - tmpfs none rw
66 65 0:40 /tmp /tmp rw - tmpfs none rw
71 65 254:0 /usr /usr ro - ext4 /dev/vda rw
74 65 254:0 /etc/ssl/certs /etc/ssl/certs ro - ext4 /dev/vda rw
81 65 0:22 /devices/system/cpu /sys/devices/system/cpu ro - sysfs sysfs rw
82 69 0:6 /null /dev/null ro - devtmpfs devtmpfs rw
89 65 0:41 / /proc rw - proc none rw
90 89 0:40 /proc/file /proc/keys ro - tmpfs none rw
91 89 0:40 /proc/directory /proc/acpi ro - tmpfs none rw
92 89 0:41 /sys /proc/sys ro - proc none rw
93 89 0:40 /x /etcetera ro - tmpfs none rw
";
        let view = View::of(mountinfo);
        let expected = ["/etc/ssl/certs", "/sys/devices/system/cpu", "/usr"];
        assert_eq!(view.binds, expected);
        assert_eq!(view.masked, ["/proc/acpi", "/proc/keys"]);
        assert_eq!(view.read_only, ["/proc/sys"]);
    }

    #[test]
    fn where_no_box_answers_the_programs_are_still_bound() {
        let programs_only = View::of("");
        assert_eq!(programs_only.binds, ["/usr"]);
        assert_eq!(View::ask(&Launch::new(["/bin/false"])), programs_only);
        let absent = Launch::new(["/nonexistent/tare"]);
        assert_eq!(View::ask(&absent), programs_only);
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
        assert!(words.contains("--ro-bind /etc/x /etc/x --ro-bind /usr /usr --symlink"), "{words}");
        assert!(words.ends_with("--die-with-parent -- /bin/true"), "{words}");
    }
}
