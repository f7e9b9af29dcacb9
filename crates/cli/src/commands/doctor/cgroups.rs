//! Which control groups there are: pure v2, hybrid, v1, none.
//!
//! Read, not tried: the engine probes by doing when it makes a box.

use crate::commands::doctor::host::Host;
use crate::commands::doctor::{Check, Status};

/// What tare's limits need.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The mount point of cgroup2 and the controllers there.
    unified: Option<(String, Vec<String>)>,
    /// Mount points of v1 hierarchies, with the options that name controllers.
    legacy: Vec<(String, Vec<String>)>,
}

pub fn check(host: &Host) -> Check {
    let layout = Layout::of(host);
    let name = layout.name();
    let limits: Vec<&str> = CONTROLLERS
        .into_iter()
        .filter(|controller| layout.writable_place(host, controller))
        .collect();
    let found = if limits.is_empty() {
        format!("{name}, no controller for boxes")
    } else {
        format!("{name}, {} can be limited", limits.join(", "))
    };
    if limits.len() == CONTROLLERS.len() {
        let how = "every limit is enforced by the kernel";
        return Check::new("cgroups", Status::Ok, found, how);
    }
    let how = "a limit that is asked for and cannot be enforced is refused; \
               the PID namespace still ends every box whole";
    Check::new("cgroups", Status::Warn, found, how)
}

/// The most processes that this process's own group allows.
pub fn pids_max(host: &Host) -> Option<u64> {
    let layout = Layout::of(host);
    let (mount, controller) = match layout.legacy_place("pids") {
        Some(mount) => (mount, "pids"),
        None => (layout.unified.as_ref()?.0.as_str(), ""),
    };
    let groups = host.read("/proc/self/cgroup")?;
    let group = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let names = parts.next()?;
        names.split(',').any(|name| name == controller).then_some(parts.next()?)
    })?;
    host.number(&format!("{mount}{}/pids.max", group.trim_end_matches('/')))
}

impl Layout {
    pub fn of(host: &Host) -> Self {
        let mut layout = Self::default();
        for line in host.read("/proc/self/mountinfo").unwrap_or_default().lines() {
            layout.add_mount(host, line);
        }
        layout
    }

    /// proc_pid_mountinfo(5): the mount point is the fifth field; type, source
    /// and options follow a lone dash.
    fn add_mount(&mut self, host: &Host, line: &str) {
        let Some((before, after)) = line.split_once(" - ") else {
            return;
        };
        let Some(mount) = before.split(' ').nth(4) else {
            return;
        };
        let mut after = after.split(' ');
        let kind = after.next();
        let options = after.nth(1).unwrap_or_default().split(',');
        match kind {
            Some("cgroup2") => {
                let controllers = host.read(&format!("{mount}/cgroup.controllers"));
                let controllers = controllers.unwrap_or_default();
                let controllers = controllers.split_whitespace().map(str::to_owned).collect();
                self.unified = Some((mount.to_owned(), controllers));
            }
            Some("cgroup") => {
                let options = options.map(str::to_owned).collect();
                self.legacy.push((mount.to_owned(), options));
            }
            Some(_) | None => {}
        }
    }

    fn name(&self) -> &'static str {
        match (&self.unified, self.legacy.is_empty()) {
            (Some(_), true) => "pure v2",
            (Some(_), false) => "hybrid (v1 controllers beside v2)",
            (None, false) => "v1 only",
            (None, true) => "none",
        }
    }

    fn legacy_place(&self, controller: &str) -> Option<&str> {
        let has = |options: &[String]| options.iter().any(|option| option == controller);
        let place = self.legacy.iter().find(|(_, options)| has(options));
        place.map(|(mount, _)| mount.as_str())
    }

    /// A box has its identity and its end in v2, and no limit without.
    fn writable_place(&self, host: &Host, controller: &str) -> bool {
        let can_write = |mount: &str| host.can_write(&host.path(mount));
        let Some((mount, controllers)) = self.unified.as_ref().filter(|(at, _)| can_write(at))
        else {
            return false;
        };
        match self.legacy_place(controller) {
            Some(legacy) => can_write(legacy),
            None => {
                controllers.iter().any(|name| name == controller)
                    && hands_down(host, mount, controller)
            }
        }
    }
}

/// Whether boxes get the controller from the cgroup at the mount. One with processes
/// of its own, as in a container, hands down only what it does already; but for the
/// first one, which alone has no `cgroup.type` (cgroup-v2.rst, "No Internal Process").
fn hands_down(host: &Host, mount: &str, controller: &str) -> bool {
    let read = |file: &str| host.read(&format!("{mount}/{file}"));
    let switched_on = read("cgroup.subtree_control").unwrap_or_default();
    switched_on.split_whitespace().any(|name| name == controller)
        || read("cgroup.type").is_none()
        || read("cgroup.procs").is_some_and(|pids| pids.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::tests::FakeHost;

    const V2: &str = "31 23 0:28 / /cg rw,relatime shared:4 - cgroup2 cgroup2 rw";
    const V1: &str = "35 31 0:32 / /cg/memory rw,relatime - cgroup cgroup rw,memory\n\
                      39 31 0:36 / /cg/pids rw,relatime - cgroup cgroup rw,pids";

    #[test]
    fn layouts_are_told_apart() {
        let hybrid = format!("{V1}\n{V2}");
        for (name, mounts, expected) in [
            ("cg-pure", V2, "pure v2"),
            ("cg-v1", V1, "v1 only"),
            ("cg-hybrid", hybrid.as_str(), "hybrid (v1 controllers beside v2)"),
            ("cg-none", "1 1 0:1 / / rw - ext4 /dev/vda rw", "none"),
        ] {
            let fake = FakeHost::new(name, &[("proc/self/mountinfo", mounts)]);
            assert_eq!(Layout::of(&fake.host).name(), expected);
        }
    }

    #[test]
    fn controllers_are_found_where_they_are() {
        let fake = FakeHost::new(
            "cg-limits",
            &[
                ("proc/self/mountinfo", V2),
                ("cg/cgroup.controllers", "cpuset cpu io memory pids"),
                ("proc/self/cgroup", "0::/user.slice"),
                ("cg/user.slice/pids.max", "500"),
            ],
        );
        let check = check(&fake.host);
        assert_eq!(check.status, Status::Ok);
        assert_eq!(check.found, "pure v2, memory, pids, cpu can be limited");
        assert_eq!(pids_max(&fake.host), Some(500));
    }

    /// The first process of a container is in the cgroup that the container sees.
    #[test]
    fn a_group_with_processes_of_its_own_hands_down_only_what_it_did() {
        let limits = |name: &str, pids: &str, switched_on: &str| {
            let files = [
                ("proc/self/mountinfo", V2),
                ("cg/cgroup.controllers", "cpu memory pids"),
                ("cg/cgroup.type", "domain"),
                ("cg/cgroup.procs", pids),
                ("cg/cgroup.subtree_control", switched_on),
            ];
            check(&FakeHost::new(name, &files).host).found
        };
        let none = "pure v2, no controller for boxes";
        assert_eq!(limits("cg-busy", "1\n7", ""), none);
        let pids = "pure v2, pids can be limited";
        assert_eq!(limits("cg-partly", "1\n7", "pids"), pids);
        let all = "pure v2, memory, pids, cpu can be limited";
        assert_eq!(limits("cg-handed", "", ""), all);
    }

    #[test]
    fn without_v2_nothing_is_limited() {
        let fake = FakeHost::new(
            "cg-v1-alone",
            &[("proc/self/mountinfo", V1), ("cg/memory/tasks", ""), ("cg/pids/tasks", "")],
        );
        let found = check(&fake.host).found;
        assert_eq!(found, "v1 only, no controller for boxes");
    }

    #[test]
    fn a_host_without_groups_is_a_warning() {
        let fake = FakeHost::new("cg-bare", &[("proc/self/mountinfo", "")]);
        assert_eq!(check(&fake.host).status, Status::Warn);
        assert_eq!(pids_max(&fake.host), None);
    }
}
