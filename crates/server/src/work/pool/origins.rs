//! What an interpreter was started from: inodes and modification times of the directories of
//! programs, of the standard library and of packages, of the list of shared libraries, and of imported
//! modules in packages. Nothing here reads a file. Every function may block its thread.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tare_engine::spec::{Root, Spec};

/// Paths of a root that package managers change. ldconfig replaces the cache after each change of a
/// shared library.
const PROGRAMS: [&str; 4] =
    ["usr/bin", "usr/local/bin", "usr/lib/python3/dist-packages", "etc/ld.so.cache"];
/// Directories of a root whose `python3.*` have the standard library and packages.
const LIBRARIES: [&str; 2] = ["usr/lib", "usr/local/lib"];

/// The directories, and how each looked when the interpreter was started.
#[derive(Debug)]
pub struct Origins(Vec<(PathBuf, Option<Seen>)>);

/// How a path looked. If it leads to another file or to a changed one, a field differs.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    file: (u64, u64),
    changed: (i64, i64),
}

impl Origins {
    /// Looks at the root and the packages of a box, and at these modules.
    pub fn look(spec: &Spec, modules: &[String]) -> Self {
        let root = match &spec.root {
            Root::HostView => Path::new("/"),
            Root::Directory(directory) => directory,
        };
        let mut paths = vec![root.to_owned()];
        paths.extend(PROGRAMS.iter().map(|it| root.join(it)));
        paths.extend(LIBRARIES.iter().flat_map(|it| package_directories(&root.join(it))));
        for volume in &spec.volumes {
            let packages = volume.host.join("python");
            for module in modules.iter().filter_map(|name| name.split('.').next()) {
                let directory = packages.join(module);
                paths.extend([directory.join("__init__.py"), directory.with_extension("py")]);
                paths.push(directory);
            }
            paths.extend([volume.host.clone(), packages]);
        }
        Self(paths.into_iter().map(|path| (path.clone(), seen(&path))).collect())
    }

    pub fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, before)| seen(path) != *before)
    }
}

fn package_directories(libraries: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(libraries).into_iter().flatten().flatten();
    let pythons = entries.filter(|it| it.file_name().to_string_lossy().starts_with("python3."));
    let parts = |it: fs::DirEntry| {
        ["", "lib-dynload", "site-packages", "dist-packages"].map(|name| it.path().join(name))
    };
    pythons.flat_map(parts).collect()
}

/// `None` for a path that does not exist.
fn seen(path: &Path) -> Option<Seen> {
    let of =
        |it: Metadata| Seen { file: (it.dev(), it.ino()), changed: (it.mtime(), it.mtime_nsec()) };
    fs::metadata(path).ok().map(of)
}

#[cfg(test)]
mod tests {
    use tare_engine::spec::{Access, Volume};

    use super::*;

    #[test]
    fn changes_of_packages_programs_libraries_and_the_root_are_noticed() {
        let directory = std::env::temp_dir().join(format!("tare-origins-{}", std::process::id()));
        let (packages, root) = (directory.join("packages"), directory.join("root"));
        let site = root.join("usr/local/lib/python3.11/site-packages");
        let (programs, etc) = (root.join("usr/local/bin"), root.join("etc"));
        let library = root.join("usr/lib/python3.11");
        let modules = library.join("lib-dynload");
        for made in [
            packages.join("python/kept"),
            site.clone(),
            programs.clone(),
            modules.clone(),
            etc.clone(),
        ] {
            fs::create_dir_all(made).expect("a directory");
        }
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        let write = |path: &Path, text: &str| {
            fs::write(path, text).expect("a file");
            fs::File::open(path).and_then(|it| it.set_modified(long_ago)).expect("a time");
        };
        let module = packages.join("python/mine.py");
        write(&module, "1");
        let mut spec = Spec::of(Vec::new());
        spec.root = Root::Directory(root.clone());
        let target = "/opt/packages".into();
        spec.volumes.push(Volume { host: packages.clone(), target, access: Access::ReadOnly });
        let changes: [&dyn Fn(); 8] = [
            &|| fs::write(etc.join("ld.so.cache"), "").expect("a file"),
            &|| fs::write(library.join("json.py"), "").expect("a module"),
            &|| fs::write(modules.join("_json.so"), "").expect("a module"),
            &|| fs::create_dir(packages.join("python/new")).expect("a package"),
            &|| fs::write(&module, "2").expect("a file"),
            &|| fs::create_dir(site.join("new")).expect("a package"),
            &|| fs::write(programs.join("python3"), "").expect("a program"),
            &|| {
                fs::rename(&root, directory.join("old")).expect("another name");
                fs::create_dir_all(&site).expect("another root");
            },
        ];
        for change in changes {
            let origins = Origins::look(&spec, &["mine".to_owned()]);
            assert!(!origins.have_changed());
            change();
            assert!(origins.have_changed());
        }
        fs::remove_dir_all(directory).expect("it was made here");
    }
}
