//! The read-only view of the host that a box has without `--rootfs`. It is an allow-list: the box sees
//! only what this file names.

use std::fs;
use std::path::Path;

use tare_control::{HostEntry, HostFile};

use crate::spec::{Network, Privilege, Spec};

/// Programs and libraries. On a merged-/usr host all but the first are links.
const PROGRAMS: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"];

/// Entries of /etc that programs need to run. None is secret. Each costs a mount.
const ETC: [&str; 13] = [
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/ca-trust",
    "/etc/localtime",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/services",
    "/etc/mime.types",
    "/etc/fonts",
    "/etc/R",
    "/etc/php",
];

/// Returns all entries that exist on this host.
pub fn entries() -> Vec<HostEntry> {
    let mut entries: Vec<HostEntry> = PROGRAMS.into_iter().chain(ETC).filter_map(entry).collect();
    entries.extend(java_settings().iter().filter_map(|path| entry(path)));
    entries.push(HostEntry::Symlink {
        path: "/etc/mtab".to_owned(),
        target: "/proc/self/mounts".to_owned(),
    });
    entries
}

/// A Debian Java in `/usr/lib/jvm/java-17-openjdk-amd64` does not start without
/// its settings in `/etc/java-17-openjdk`.
fn java_settings() -> Vec<String> {
    let installed = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let names = installed.filter_map(|found| found.file_name().into_string().ok());
    let settings = names.filter_map(|name| {
        let end = name.find("-openjdk")? + "-openjdk".len();
        name.starts_with("java-").then(|| format!("/etc/{}", &name[..end]))
    });
    let mut settings: Vec<String> = settings.collect();
    settings.sort();
    settings.dedup();
    settings
}

fn entry(path: &str) -> Option<HostEntry> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let path = path.to_owned();
    if metadata.is_symlink() {
        let target = fs::read_link(&path).ok()?.into_os_string().into_string().ok()?;
        Some(HostEntry::Symlink { path, target })
    } else if metadata.is_dir() {
        Some(HostEntry::Directory(path))
    } else if metadata.is_file() {
        Some(HostEntry::File(path))
    } else {
        None
    }
}

/// Returns the files of /etc that are written for each box.
pub fn files(spec: &Spec, hostname: &str) -> Vec<HostFile> {
    let file = |name: &str, content: String| HostFile {
        path: format!("/etc/{name}"),
        content: content.into_bytes(),
        rewritable: false,
    };
    let mut files = vec![
        file("passwd", passwd(spec)),
        file("group", group(spec)),
        file("hostname", format!("{hostname}\n")),
        file("hosts", format!("127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost\n")),
        // Without this file, `localhost` has only one address family (host.conf(5)).
        file("host.conf", "multi on\n".to_owned()),
        file("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
    ];
    if spec.network == Network::Host {
        files.push(file("resolv.conf", read_small(Path::new("/etc/resolv.conf"))));
    }
    files
}

/// Returns whether a file of [`files`] has the host name in it.
pub fn has_hostname(file: &HostFile) -> bool {
    matches!(file.path.as_str(), "/etc/hostname" | "/etc/hosts")
}

/// The home directory of every user: the box's own writable directory.
const HOME: &str = "/work";

fn passwd(spec: &Spec) -> String {
    let root = match spec.privilege {
        Privilege::BoxRoot => "root:x:0:0:root:/work:/bin/sh\n",
        Privilege::Unprivileged => "root:x:0:0:root:/root:/bin/sh\n",
    };
    let user = match spec.user.uid {
        0 | 65_534 => String::new(),
        uid => format!("box:x:{uid}:{}:box:{HOME}:/bin/sh\n", spec.user.gid),
    };
    format!("{root}{user}nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")
}

fn group(spec: &Spec) -> String {
    let own = match spec.user.gid {
        0 | 65_534 => String::new(),
        gid => format!("box:x:{gid}:\n"),
    };
    format!("root:x:0:\n{own}nogroup:x:65534:\n")
}

/// Reads at most a fixed size, because the host's file can have any size.
fn read_small(path: &Path) -> String {
    let mut text = fs::read_to_string(path).unwrap_or_default();
    text.truncate(text.floor_char_boundary(16 << 10));
    text
}
