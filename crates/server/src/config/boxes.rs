//! `[boxes]` and `[[volumes]]`: where boxes are made, and which directories of the host they see.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use tare_engine::spec::{Driver, Name, volume};
use tare_engine::{CgroupParent, Error, reason};

use crate::config::units::parsed;

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Boxes {
    /// With `vm`, every box of the server is a machine.
    pub driver: Driver,
    /// The cgroup of detached boxes, and of runs that cannot have limits below the server's own.
    #[serde(deserialize_with = "cgroup_parent")]
    pub cgroup_parent: Option<CgroupParent>,
    /// Another root than the host's own programs.
    pub rootfs: Option<PathBuf>,
    /// A directory that every box sees as `/opt/packages`, read-only. Python searches `python` in
    /// it, Node `node_modules`, and shells `bin`.
    pub packages: Option<PathBuf>,
}

fn cgroup_parent<'de, D: Deserializer<'de>>(input: D) -> Result<Option<CgroupParent>, D::Error> {
    parsed(input, "tare.slice", CgroupParent::parse).map(Some)
}

impl Boxes {
    pub fn programs(&self) -> Programs<'_> {
        Programs { rootfs: self.rootfs.as_deref(), packages: self.packages.as_deref() }
    }
}

/// The directories of the host in which a box finds its programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Programs<'a> {
    /// `None`: the host's own programs.
    pub rootfs: Option<&'a Path>,
    pub packages: Option<&'a Path>,
}

impl Programs<'_> {
    /// Reports a directory that no box could use at start, and not with the first box.
    pub fn find(self, section: &str) -> Result<(), Error> {
        for (name, path) in [("rootfs", self.rootfs), ("packages", self.packages)] {
            if let Some(path) = path {
                find_directory(&format!("{section} {name}"), path)?;
            }
        }
        match self.packages.map(volume::host) {
            Some(Err(error)) => Err(named(&format!("{section} packages"), &error)),
            Some(Ok(_)) | None => Ok(()),
        }
    }
}

/// A directory of the host that clients may use by its name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedVolume {
    #[serde(deserialize_with = "volume_name")]
    pub name: Name,
    pub path: PathBuf,
    #[serde(default)]
    pub writable: bool,
    /// The names of the keys that may use it. `None`: every client.
    pub keys: Option<Vec<String>>,
}

fn volume_name<'de, D: Deserializer<'de>>(input: D) -> Result<Name, D::Error> {
    parsed(input, "datasets", Name::parse)
}

impl AllowedVolume {
    pub fn allows(&self, key: Option<&str>) -> bool {
        let is_it = |keys: &Vec<String>| keys.iter().any(|one| Some(one.as_str()) == key);
        self.keys.as_ref().is_none_or(is_it)
    }

    /// Reports a directory that no box could use at start, and not with the first box.
    pub fn find(&self) -> Result<(), Error> {
        let setting = format!("[[volumes]] {:?}", self.name.as_str());
        find_directory(&setting, &self.path)?;
        volume::host(&self.path).map_err(|error| named(&setting, &error))?;
        Ok(())
    }
}

/// Names the setting that an error of the engine is about.
pub fn named(setting: &str, error: &Error) -> Error {
    let wrong = Error::bad_request(format!("{setting}: {error}"));
    match error.hint() {
        Some(hint) => wrong.with_hint(hint.clone()),
        None => wrong,
    }
}

/// Boxes open directories without following symlinks, so a path with one is of no use.
fn find_directory(setting: &str, path: &Path) -> Result<(), Error> {
    let wrong = |why: &str, hint: String| {
        let message = format!("{setting}: {} {why}", path.display());
        Err(Error::bad_request(message).with_hint(hint))
    };
    let other = || "create the directory, or name another one".to_owned();
    if !path.is_absolute() {
        return wrong("is not absolute", "begin the path with '/'".to_owned());
    }
    let real = match std::fs::canonicalize(path) {
        Ok(real) => real,
        Err(error) => return wrong(&format!("cannot be used: {}", reason(&error)), other()),
    };
    if !real.is_dir() {
        return wrong("is not a directory", other());
    }
    if path.components().ne(real.components()) {
        let hint = format!("name the directory that it leads to, {}", real.display());
        return wrong("has a symlink or '..' in it", hint);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tare_harness::TemporaryDirectory;

    use crate::config::Config;

    fn read(text: &str) -> Config {
        toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_directory_that_no_box_could_use_is_refused_by_name() {
        let home = TemporaryDirectory::new();
        let link = home.join("link");
        symlink("/usr", &link).expect("a fresh directory");
        let link = link.to_str().expect("text");
        let sections = ["[boxes]", "[librechat.boxes]"];
        let settings = sections.iter().flat_map(|section| {
            ["rootfs", "packages"].map(|name| (format!("{section} {name}"), *section, name))
        });
        let volume = ("[[volumes]] \"v\"".to_owned(), "[[volumes]]\nname = 'v'", "path");
        for (setting, section, name) in settings.chain([volume]) {
            let find =
                |path: &str| read(&format!("{section}\n{name} = '{path}'")).find_directories();
            assert!(find("/usr").is_ok() && find("/usr/").is_ok());
            for path in ["usr", "/no/such/directory", "/etc/passwd", link, "/usr/../usr"] {
                let refused = find(path).expect_err(path);
                let said = refused.to_string();
                assert!(said.starts_with(&format!("{setting}: {path} ")), "{said}");
                assert!(refused.hint().is_some(), "{said}");
            }
            if name != "rootfs" {
                let said = find("/proc").expect_err("it is the kernel's").to_string();
                assert!(said.starts_with(&format!("{setting}: ")), "{said}");
            }
        }
    }

    #[test]
    fn a_volume_is_named_once_and_for_keys_that_exist() {
        let volume = |name: &str| format!("[[volumes]]\nname = '{name}'\npath = '/srv'\n");
        let key = format!("[[keys]]\nname = 'ci'\nsha256 = '{}'\n", "0".repeat(64));
        let check = |text: &str| read(text).check().map_err(|error| error.to_string());
        assert_eq!(check(&(volume("a") + &volume("b"))), Ok(()));
        assert_eq!(check(&(key.clone() + &volume("a") + "keys = ['ci']")), Ok(()));
        let twice = check(&(volume("a") + &volume("a"))).expect_err("two have one name");
        assert_eq!(twice, "two [[volumes]] have the name \"a\"");
        let unknown = check(&(key + &volume("a") + "keys = ['cy']")).expect_err("no such key");
        assert_eq!(unknown, "[[volumes]] \"a\": there is no key \"cy\"");
    }
}
