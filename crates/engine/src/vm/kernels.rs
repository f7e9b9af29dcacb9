//! The kernels that machines can boot, in a directory of their own.
//!
//! A kernel is one file: the ELF image, then the modules that a machine loads, then a description.
//! A monitor reads only the segments that the ELF header lists, so it boots the file as it is. The file
//! gets its name when it is complete, so a kill at any point leaves a whole kernel or none. The link
//! `.chosen` names the kernel for boxes that name none. Every other hidden entry belongs to the
//! command that holds the directory's lock. Each command begins by removing them, and `fetch` ends with
//! that, so nothing special happens after a kill.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, fstat, fsync, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tare_kernel::fds;
use tare_kernel::locks::{LOCK_WITHIN, Lock, lock_within};
use tare_kernel::memory_file;
use tare_kernel::replace::{Draft, replace};
use tare_kernel::step::step;

use super::apt;
use super::package::{self, Package};
use super::parts::{self, Chosen, KernelModule};
use crate::error::{Context, Error, ErrorKind, Hint};
use crate::spec::Privilege;
use crate::spec::name::is_token;
use crate::spec::shown::quoted;

const CHOSEN: &str = ".chosen";
/// What `apt-get` downloads into.
const DOWNLOAD: &str = ".download";
/// How a file of a kernel ends, after the length of its description.
const MAGIC: [u8; 8] = *b"tare-vm1";
const END_BYTES: u64 = 16;
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;

/// A kernel in the directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kernel {
    pub name: String,
    /// What `uname -r` prints in a machine.
    pub release: String,
    pub origin: Origin,
    /// The size of the file.
    pub bytes: u64,
    /// The modules that machines load, in this order.
    pub modules: Vec<String>,
    /// Whether boxes that name no kernel get this one.
    pub chosen: bool,
}

/// A kernel that a machine boots.
#[derive(Debug)]
pub struct BootKernel {
    pub name: String,
    pub file: OwnedFd,
    /// In the order in which the machine loads them.
    pub modules: Vec<KernelModule>,
    /// Whether the kernel takes devices from its command line.
    pub devices_on_command_line: bool,
}

impl BootKernel {
    /// Reads a kernel from a file that tare made. `None` if tare did not make it.
    fn read(file: File, name: String, privilege: Privilege) -> Result<Option<Self>, Error> {
        let cannot = || format!("cannot read the kernel {name}");
        let bytes = file.metadata().context(cannot)?.size();
        let Some(description) = read_description(&file, bytes).context(cannot)? else {
            return Ok(None);
        };
        let mut at = description.elf_bytes;
        let mut modules = Vec::with_capacity(description.modules.len());
        for Module { name, bytes, only_for_root } in description.modules {
            if !only_for_root || privilege == Privilege::BoxRoot {
                let mut content = vec![0; bytes as usize];
                file.read_exact_at(&mut content, at).context(cannot)?;
                modules.push(KernelModule { name, content, only_for_root });
            }
            at += bytes;
        }
        let devices_on_command_line = description.devices_on_command_line;
        Ok(Some(Self { name, file: file.into(), modules, devices_on_command_line }))
    }
}

/// Opens a kernel that is not in the directory of the kernels: a file of tare, or a kernel that has all
/// drivers built in.
fn boot_file(path: &str, privilege: Privilege) -> Result<BootKernel, Error> {
    let cannot = || format!("cannot use the kernel {}", quoted(path));
    let file = File::open(path).map_err(|error| Error::bad_request(cannot()).caused_by(error))?;
    if !file.metadata().context(cannot)?.is_file() || package::is_deb(Path::new(path))? {
        return Err(Error::bad_request(cannot())
            .caused_by("it is not the file of a kernel")
            .with_hint("'tare vm kernel use' adds packages and directories"));
    }
    if let Some(kernel) = BootKernel::read(file, path.to_owned(), privilege)? {
        return Ok(kernel);
    }
    let package = Package::open(Path::new(path), None, CWD)?;
    let chosen = parts::choose(&package)?;
    let mut memory = memory_file::make(c"tare-kernel").context(cannot)?;
    memory.write_all(package.elf.bytes()).context(cannot)?;
    memory_file::seal(&memory).context(cannot)?;
    Ok(BootKernel {
        name: path.to_owned(),
        file: memory.into(),
        modules: chosen.modules,
        devices_on_command_line: chosen.devices_on_command_line,
    })
}

/// The builder of a kernel, as its banner names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    Debian,
    Ubuntu,
    Other,
}

impl Origin {
    fn of(banner: &str) -> Self {
        let banner = banner.to_lowercase();
        match (banner.contains("ubuntu"), banner.contains("debian")) {
            (true, _) => Self::Ubuntu,
            (false, true) => Self::Debian,
            (false, false) => Self::Other,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Ubuntu => "ubuntu",
            Self::Other => "other",
        }
    }
}

/// The last part of a kernel's file.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    release: String,
    origin: Origin,
    elf_bytes: u64,
    modules: Vec<Module>,
    /// Whether the kernel takes devices from its command line.
    devices_on_command_line: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Module {
    name: String,
    bytes: u64,
    #[serde(default)]
    only_for_root: bool,
}

/// The directory of the kernels.
#[derive(Debug, Clone)]
pub struct Kernels {
    path: PathBuf,
}

impl Kernels {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the default directory: one for the host as root, otherwise one in the user's home.
    pub fn default_path(home: Option<&OsStr>) -> Result<PathBuf, Error> {
        if geteuid().is_root() {
            return Ok("/var/lib/tare/vm".into());
        }
        let home = home.filter(|home| !home.is_empty());
        let path = home.map(|home| Path::new(home).join(".local/share/tare/vm"));
        path.ok_or_else(|| {
            Error::failed("cannot find the directory of the kernels: HOME is not set")
                .with_hint("set TARE_VM_DIR")
        })
    }

    /// Lists the kernels by name. Other files are not listed.
    pub fn list(&self) -> Result<Vec<Kernel>, Error> {
        if let Some(directory) = self.open()?
            && lock_within("lock kernels", &directory, Lock::Exclusive, Duration::ZERO).is_ok()
        {
            self.clear_work(&directory);
        }
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(|| self.cannot("list"))?,
        };
        let mut kernels = Vec::new();
        for entry in entries {
            let name = entry.context(|| self.cannot("list"))?.file_name();
            if let Some(name) = name.to_str().filter(|name| is_name(name))
                && let Some(kernel) = self.read(name)?
            {
                kernels.push(kernel);
            }
        }
        kernels.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(kernels)
    }

    /// Returns the kernel of boxes that name none.
    pub fn chosen(&self) -> Result<Option<Kernel>, Error> {
        self.chosen_name().map_or(Ok(None), |name| self.read(&name))
    }

    /// Opens a kernel to boot it: `named`, or the chosen one. A name with a `/` is the path of a file.
    pub fn boot(&self, named: Option<&str>, privilege: Privilege) -> Result<BootKernel, Error> {
        let kernel = match named {
            Some(path) if path.contains('/') => return boot_file(path, privilege),
            Some(name) => self.find(name)?,
            None => self.chosen()?.ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, "no kernel is chosen for machines")
                    .with_hint(Hint::FetchKernel(self.path.as_path().into()))
            })?,
        };
        let cannot = || format!("cannot read the kernel {}", kernel.name);
        let missing = || Error::failed(cannot());
        let directory = self.open()?.ok_or_else(missing)?;
        let file = File::from(fds::open_file(&directory, kernel.name.as_str()).context(cannot)?);
        BootKernel::read(file, kernel.name.clone(), privilege)?.ok_or_else(missing)
    }

    /// Adds a kernel from a package, an unpacked package or a kernel file, and chooses it. It replaces a
    /// kernel that has the same name.
    pub fn add(
        &self,
        source: &Path,
        modules: Option<&Path>,
        name: Option<&str>,
    ) -> Result<Kernel, Error> {
        name.map_or(Ok(()), check_name)?;
        let directory = self.lock()?;
        self.put(&directory, &Package::open(source, modules, &directory)?, name)
    }

    /// Downloads the generic kernel of the host's distribution, adds it and chooses it.
    pub fn fetch(&self) -> Result<Kernel, Error> {
        let names = apt::kernel_packages()?;
        let directory = self.lock()?;
        let download = self.path.join(DOWNLOAD);
        step("make download directory", || fs::DirBuilder::new().mode(0o700).create(&download))
            .context(|| format!("cannot make {}", download.display()))?;
        let packages = apt::download(&names, &download);
        let added = packages.and_then(|packages| {
            self.put(&directory, &Package::of_debs(&packages, None, &directory)?, None)
        });
        self.clear_work(&directory);
        added
    }

    /// Makes a kernel the one of boxes that name none.
    pub fn choose(&self, name: &str) -> Result<Kernel, Error> {
        self.find(name)?;
        self.make_chosen(&self.lock()?, name)?;
        self.find(name)
    }

    /// Removes a kernel.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.find(name)?;
        let directory = self.lock()?;
        let unlink = |step_name, entry: &str| match step(step_name, || {
            unlinkat(&directory, entry, AtFlags::empty())
        }) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno).context(|| format!("cannot remove the kernel {name}")),
        };
        // The link goes first: a kill in between leaves a kernel that is not chosen.
        if self.chosen_name().as_deref() == Some(name) {
            unlink("remove choice of kernel", CHOSEN)?;
        }
        unlink("remove kernel", name)
    }

    fn find(&self, name: &str) -> Result<Kernel, Error> {
        check_name(name)?;
        self.read(name)?.ok_or_else(|| {
            let message = format!("there is no kernel {}", quoted(name));
            Error::bad_request(message).with_hint(Hint::ListKernels)
        })
    }

    fn put(
        &self,
        directory: &OwnedFd,
        package: &Package,
        name: Option<&str>,
    ) -> Result<Kernel, Error> {
        let chosen = parts::choose(package)?;
        let release = package.elf.release();
        let name = name.unwrap_or(&release);
        check_name(name)?;
        let content = description(package, &chosen);
        let end = serde_json::to_vec(&content).expect("texts and numbers are JSON");
        let file_name = CString::new(name).expect("a checked name has no NUL");
        let mode = Mode::from_raw_mode(0o644);
        let cannot = || format!("cannot write the kernel {name}");
        let mut draft = Draft::create(directory.as_fd(), &file_name, mode).context(cannot)?;
        let elf = std::iter::once(package.elf.bytes());
        let modules = chosen.modules.iter().map(|module| module.content.as_slice());
        let length = (end.len() as u64).to_le_bytes();
        for part in elf.chain(modules).chain([end.as_slice(), &length, &MAGIC]) {
            draft.file().write_all(part).context(cannot)?;
        }
        step("sync kernel", || fsync(draft.file())).context(cannot)?;
        draft.publish().context(cannot)?;
        self.make_chosen(directory, name)?;
        self.find(name)
    }

    fn make_chosen(&self, directory: &OwnedFd, name: &str) -> Result<(), Error> {
        let link = CString::new(CHOSEN).expect("it has no NUL");
        replace(directory.as_fd(), &link, |entry| symlinkat(name, directory, entry))
            .context(|| format!("cannot choose the kernel {name}"))
    }

    fn chosen_name(&self) -> Option<String> {
        let target = readlinkat(CWD, self.path.join(CHOSEN), Vec::new()).ok()?;
        target.into_string().ok().filter(|name| is_name(name))
    }

    /// Reads a kernel. `None` if there is no such file, or if the file is not a kernel.
    fn read(&self, name: &str) -> Result<Option<Kernel>, Error> {
        let Some(directory) = self.open()? else {
            return Ok(None);
        };
        let cannot = || format!("cannot read the kernel {name}");
        let file = match fds::open_file(&directory, name) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(errno).context(cannot),
        };
        let metadata = file.metadata().context(cannot)?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let description = read_description(&file, metadata.size()).context(cannot)?;
        Ok(description.map(|it| Kernel {
            name: name.to_owned(),
            release: it.release,
            origin: it.origin,
            bytes: metadata.size(),
            modules: it.modules.into_iter().map(|module| module.name).collect(),
            chosen: self.chosen_name().as_deref() == Some(name),
        }))
    }

    fn open(&self) -> Result<Option<OwnedFd>, Error> {
        match fds::open_directory(CWD, &self.path) {
            Ok(directory) => self.check_owner(directory).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno).context(|| self.cannot("open")),
        }
    }

    /// Makes the directory if it is absent, and keeps all other commands that change it out.
    fn lock(&self) -> Result<OwnedFd, Error> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o755);
        step("make directory of kernels", || builder.create(&self.path))
            .context(|| self.cannot("make"))?;
        let directory = self.open()?.ok_or_else(|| Error::failed(self.cannot("open")))?;
        lock_within("lock kernels", &directory, Lock::Exclusive, LOCK_WITHIN)
            .context(|| self.cannot("lock"))
            .map_err(|error| error.with_hint("another 'tare vm kernel' command may be running"))?;
        self.clear_work(&directory);
        Ok(directory)
    }

    /// A user who can write to this directory chooses what machines boot.
    fn check_owner(&self, directory: OwnedFd) -> Result<OwnedFd, Error> {
        let stat = fstat(&directory).context(|| self.cannot("open"))?;
        let is_trusted = stat.st_uid == geteuid().as_raw() || stat.st_uid == 0;
        if is_trusted && stat.st_mode & 0o022 == 0 {
            Ok(directory)
        } else {
            Err(Error::failed(self.cannot("use"))
                .caused_by("it is owned by another user or writable by others"))
        }
    }

    /// Removes the entries of the command that holds the lock: downloads, and files without a name of a
    /// kernel. The next command tries again to remove what cannot be removed.
    fn clear_work(&self, directory: &OwnedFd) {
        let names = fs::read_dir(&self.path).into_iter().flatten().flatten();
        for name in names.map(|entry| entry.file_name()) {
            if name == DOWNLOAD {
                step("remove download", || fs::remove_dir_all(self.path.join(&name))).ok();
            } else if name.as_encoded_bytes().starts_with(b".tare-") {
                step("remove draft", || unlinkat(directory, &name, AtFlags::empty())).ok();
            }
        }
    }

    fn cannot(&self, verb: &str) -> String {
        format!("cannot {verb} the directory of the kernels {}", self.path.display())
    }
}

fn description(package: &Package, chosen: &Chosen) -> Description {
    let module = |it: &KernelModule| Module {
        name: it.name.clone(),
        bytes: it.content.len() as u64,
        only_for_root: it.only_for_root,
    };
    Description {
        release: package.elf.release(),
        origin: Origin::of(&package.elf.banner().unwrap_or_default()),
        elf_bytes: package.elf.bytes().len() as u64,
        modules: chosen.modules.iter().map(module).collect(),
        devices_on_command_line: chosen.devices_on_command_line,
    }
}

/// Returns `None` for a file that does not end as a kernel does.
fn read_description(file: &File, bytes: u64) -> std::io::Result<Option<Description>> {
    let mut end = [0; END_BYTES as usize];
    let Some(end_at) = bytes.checked_sub(END_BYTES) else {
        return Ok(None);
    };
    file.read_exact_at(&mut end, end_at)?;
    let [length, magic] = [&end[..8], &end[8..]];
    let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    if magic != MAGIC || length > DESCRIPTION_BYTES_MAX.min(end_at) {
        return Ok(None);
    }
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, end_at - length)?;
    let description: Option<Description> = serde_json::from_slice(&text).ok();
    // All parts together are the file.
    Ok(description.filter(|it| {
        let parts = it.modules.iter().map(|module| module.bytes);
        let sum = parts.fold(it.elf_bytes, u64::saturating_add);
        sum == end_at - length
    }))
}

/// A release of a kernel is such a name.
fn is_name(name: &str) -> bool {
    is_token(name, b"._+~-")
}

fn check_name(name: &str) -> Result<(), Error> {
    let message = || format!("{} is not a name of a kernel", quoted(name));
    let hint = "a name has up to 63 letters, digits and ._+~-, and begins with a letter or a digit";
    if is_name(name) { Ok(()) } else { Err(Error::bad_request(message()).with_hint(hint)) }
}
