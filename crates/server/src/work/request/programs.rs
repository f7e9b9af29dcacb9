//! The programs of a box: its root, and the operator's packages.

use std::path::{Path, PathBuf};

use tare_engine::spec::command::Variable;
use tare_engine::spec::defaults::PATH;
use tare_engine::spec::{Access, Root, Spec, Volume};

use crate::config::boxes::Programs;

/// The directory in a box that shows the operator's packages.
pub const PACKAGES: &str = "/opt/packages";
/// The variables that name directories of packages, and these directories. `bin` and `.bin` have
/// the programs that pip and npm installed with packages.
const SEARCHED: [(&str, &[&str]); 3] = [
    ("PATH", &PACKAGE_PROGRAMS),
    ("PYTHONPATH", &["/opt/packages/python"]),
    ("NODE_PATH", &["/opt/packages/node_modules"]),
];
const PACKAGE_PROGRAMS: [&str; 2] = ["/opt/packages/bin", "/opt/packages/node_modules/.bin"];

impl Programs<'_> {
    /// Puts the root and the packages into a box. Its environment names the packages last.
    pub fn add_to(self, spec: &mut Spec) {
        if let Some(rootfs) = self.rootfs {
            spec.root = Root::Directory(rootfs.to_owned());
        }
        let Some(packages) = self.packages else {
            return;
        };
        spec.volumes.push(Volume {
            host: packages.to_owned(),
            target: PathBuf::from(PACKAGES),
            access: Access::ReadOnly,
        });
        for (key, directories) in SEARCHED {
            append(&mut spec.env, key, &directories.join(":"));
        }
    }

    /// Whether a box finds this program, by its path or by its name.
    pub fn have(self, program: &str) -> bool {
        if program.starts_with('/') {
            self.path(program).exists()
        } else {
            PATH.split(':')
                .chain(PACKAGE_PROGRAMS)
                .any(|directory| self.path(&format!("{directory}/{program}")).exists())
        }
    }

    /// The path on the host of a path in the box.
    fn path(self, in_box: &str) -> PathBuf {
        let below = |directory: &Path, rest: &str| directory.join(rest.trim_start_matches('/'));
        match (in_box.strip_prefix(PACKAGES), self.packages) {
            (Some(rest), Some(packages)) => below(packages, rest),
            (_, _) => below(self.rootfs.unwrap_or(Path::new("/")), in_box),
        }
    }
}

fn append(env: &mut Vec<Variable>, key: &str, directories: &str) {
    match env.iter_mut().find(|(name, _)| name == key) {
        Some((_, value)) => {
            value.push(":");
            value.push(directories);
        }
        None => env.push((key.into(), directories.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_seen_in_one_place_and_searched_last() {
        let mut spec = Spec::of(Vec::new());
        spec.env.push(("PYTHONPATH".into(), "/mnt/data".into()));
        let own = Path::new("/srv/shared");
        Programs { rootfs: None, packages: Some(own) }.add_to(&mut spec);
        let [packages] = spec.volumes.as_slice() else { panic!("{:?}", spec.volumes) };
        assert_eq!((packages.host.as_path(), packages.access), (own, Access::ReadOnly));
        assert_eq!(packages.target, Path::new("/opt/packages"));
        let value = |key: &str| {
            let found = spec.env.iter().find(|(name, _)| name == key);
            found.and_then(|(_, value)| value.to_str()).expect("set")
        };
        assert_eq!(value("PYTHONPATH"), "/mnt/data:/opt/packages/python");
        assert_eq!(value("NODE_PATH"), "/opt/packages/node_modules");
        assert!(value("PATH").ends_with("/bin:/opt/packages/bin:/opt/packages/node_modules/.bin"));
    }
}
