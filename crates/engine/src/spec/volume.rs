//! `-v HOST:BOX[:ro|:rw]`: a directory or file of the host inside the box.
//!
//! This file judges the text only. Whether the host's path exists and is free of symlinks is
//! checked by the step that opens it, so that the path cannot change in between.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::spec::shown::{bad, quoted};

/// The kernel's `PATH_MAX` without its NUL, and its `NAME_MAX`.
const PATH_BYTES_MAX: usize = 4095;
const COMPONENT_BYTES_MAX: usize = 255;
/// Each volume is a detached mount and a descriptor that the keeper inherits.
const VOLUMES_MAX: usize = 128;

/// Never bound, nor anything below them: the kernel's own interfaces.
const HOST_TREES_REFUSED: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Never bound as a whole: all files, and the sockets of every service.
const HOST_PATHS_REFUSED: [&str; 3] = ["/", "/run", "/var/run"];
/// The keeper makes these trees itself.
const BOX_TREES_REFUSED: [&str; 3] = ["/proc", "/sys", "/dev"];

const FORM: &str = "write HOST:BOX or HOST:BOX:ro, such as ./data:/data:ro";

/// Why a path is refused, and a hint.
type Refused = (String, &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// An absolute path. It is opened without following symlinks.
    #[serde(with = "crate::spec::text")]
    pub host: PathBuf,
    /// An absolute path, resolved beneath the box's root.
    #[serde(with = "crate::spec::text")]
    pub target: PathBuf,
    pub access: Access,
}

/// Reads a volume. A relative host path is resolved against `current_dir`, which is absolute.
pub fn parse(text: &OsStr, current_dir: &Path) -> Result<Volume, Error> {
    let with_hint = |(why, hint): Refused| bad(format!("{} {why}", quoted(text)), hint);
    let refused = |why: &str| with_hint((why.to_owned(), FORM));
    let parts: Vec<&[u8]> = text.as_bytes().split(|byte| *byte == b':').collect();
    let (host, target, access) = match parts.as_slice() {
        [host, target] | [host, target, b"rw"] => (host, target, Access::ReadWrite),
        [host, target, b"ro"] => (host, target, Access::ReadOnly),
        [_, _, _] => return Err(refused("has an access that is neither ro nor rw")),
        _ => return Err(refused("is not a volume")),
    };
    if text.as_bytes().contains(&0) {
        return Err(refused("has a NUL byte in it"));
    }
    if host.is_empty() {
        return Err(refused("has no host path"));
    }
    let host = current_dir.join(OsStr::from_bytes(host));
    let target = Path::new(OsStr::from_bytes(target));
    Ok(Volume {
        host: host_path(&host).map_err(with_hint)?,
        target: box_path(target).map_err(with_hint)?,
        access,
    })
}

/// Checks a directory of the host that an operator offers to boxes.
pub fn host(path: &Path) -> Result<PathBuf, Error> {
    host_path(path).map_err(|(why, hint)| bad(format!("{} {why}", quoted(path)), hint))
}

/// Checks a place in the box: `--workspace DIR`, or the target of a volume.
pub fn place(path: PathBuf) -> Result<PathBuf, Error> {
    let hint = "name a directory of the box, such as /mnt/data";
    box_path(&path).map_err(|(why, _)| bad(format!("{} {why}", quoted(&path)), hint))
}

/// Checks all volumes of a box together: two volumes cannot have one place in the box.
pub fn check(volumes: &[Volume]) -> Result<(), Error> {
    if volumes.len() > VOLUMES_MAX {
        let message = format!("there are more than {VOLUMES_MAX} volumes");
        return Err(bad(message, "bind a common parent directory"));
    }
    for (index, volume) in volumes.iter().enumerate() {
        if volumes[..index].iter().any(|other| other.target == volume.target) {
            return Err(bad(
                format!("two volumes have the place {} in the box", quoted(&volume.target)),
                "give each volume a place of its own",
            ));
        }
    }
    Ok(())
}

/// Resolves `..` in the text alone. The result is exact, because the path is opened without
/// following symlinks.
fn host_path(path: &Path) -> Result<PathBuf, Refused> {
    let mut host = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => host.push(name),
            Component::ParentDir => {
                host.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    check_lengths(&host)?;
    let exact = HOST_PATHS_REFUSED.iter().find(|refused| host == Path::new(refused));
    let tree = HOST_TREES_REFUSED.iter().find(|refused| host.starts_with(refused));
    match exact.or(tree) {
        Some(refused) => Err((
            format!("would bind the host's {refused}, which is never put into a box"),
            "bind what the command needs of it from elsewhere",
        )),
        None => Ok(host),
    }
}

fn box_path(path: &Path) -> Result<PathBuf, Refused> {
    if !path.is_absolute() {
        return Err(("has a box path that is not absolute".to_owned(), FORM));
    }
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(("has '..' in its box path".to_owned(), FORM));
    }
    // Repeated slashes and `.` go, so that equal places compare as equal.
    let target: PathBuf = path.components().collect();
    check_lengths(&target)?;
    if target == Path::new("/") {
        let why = "would replace the box's whole root".to_owned();
        return Err((why, "use --rootfs for that"));
    }
    match BOX_TREES_REFUSED.iter().find(|refused| target.starts_with(refused)) {
        Some(refused) => {
            Err((format!("would cover the box's own {refused}"), "choose another place in the box"))
        }
        None => Ok(target),
    }
}

fn check_lengths(path: &Path) -> Result<(), Refused> {
    let long = path.iter().any(|name| name.as_bytes().len() > COMPONENT_BYTES_MAX);
    if long || path.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
        let why = format!(
            "has a path over {PATH_BYTES_MAX} bytes or a name in it over {COMPONENT_BYTES_MAX}"
        );
        return Err((why, "the kernel has no longer ones"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(text: &str) -> Result<Volume, Error> {
        parse(OsStr::new(text), Path::new("/home/me"))
    }

    #[test]
    fn volumes_in_every_spelling() {
        for (text, host, target, access) in [
            ("/a:/b", "/a", "/b", Access::ReadWrite),
            ("/a:/b:rw", "/a", "/b", Access::ReadWrite),
            ("/a:/b:ro", "/a", "/b", Access::ReadOnly),
            ("data:/d", "/home/me/data", "/d", Access::ReadWrite),
            ("./data/:/d/", "/home/me/data", "/d", Access::ReadWrite),
            ("../x:/d//./e", "/home/x", "/d/e", Access::ReadWrite),
            ("/data/../etc/x:/d", "/etc/x", "/d", Access::ReadWrite),
            (".:/work", "/home/me", "/work", Access::ReadWrite),
            ("/run/mine:/s", "/run/mine", "/s", Access::ReadWrite),
        ] {
            let expected = Volume { host: host.into(), target: target.into(), access };
            assert_eq!(volume(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn wrong_volumes_are_refused() {
        for (text, why) in [
            ("", "is not a volume"),
            ("/a", "is not a volume"),
            ("/a:/b:ro:x", "is not a volume"),
            ("/a:/b:rx", "neither ro nor rw"),
            (":/b", "no host path"),
            ("/a:", "not absolute"),
            ("/a:b", "not absolute"),
            ("/a:/b/../../etc", "'..'"),
            ("/a:/", "whole root"),
            ("/a:/.", "whole root"),
            ("/a:/proc", "box's own /proc"),
            ("/a:/dev/shm", "box's own /dev"),
            ("/a:/sys/x", "box's own /sys"),
            ("/a\0:/b", "NUL"),
            (&format!("/a:/{}", "x".repeat(256)), "over 4095 bytes"),
            (&format!("/{}:/b", "x/".repeat(2100)), "over 4095 bytes"),
        ] {
            let error = volume(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn the_kernels_own_trees_and_the_whole_host_are_never_bound() {
        for text in [
            "/:/x",
            "//:/x",
            "/a/..:/x",
            "/proc:/x",
            "/proc/sys:/x",
            "/sys:/x",
            "/dev:/x",
            "/dev/kvm:/x",
            "/tmp/../dev/mem:/x",
            "../../proc:/x",
            "/run:/x",
            "/var/run/:/x",
        ] {
            let error = volume(text).unwrap_err().to_string();
            assert!(error.contains("never put into a box"), "{text}: {error}");
        }
        assert!(volume("/process:/x").is_ok());
    }

    #[test]
    fn a_place_in_the_box_is_taken_once() {
        let two = [volume("/a:/x").unwrap(), volume("/b:/x//").unwrap()];
        assert!(check(&two).unwrap_err().to_string().contains("'/x'"));
        let nested = [volume("/a:/x").unwrap(), volume("/a:/x/y").unwrap()];
        assert!(check(&nested).is_ok());
    }
}
