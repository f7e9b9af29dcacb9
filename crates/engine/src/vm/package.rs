//! The files of a kernel package: packed (`.deb`), unpacked, or a kernel beside its modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, openat};
use tare_archive::{Kind, Reader};

use super::decompress::{self, Compression};
use super::image::Elf;
use crate::error::{Context, Error};

/// Several times what a distribution's package has.
const FILES_MAX: usize = 100_000;
const IMAGE_BYTES_MAX: u64 = 512 << 20;
const MODULE_BYTES_MAX: u64 = 256 << 20;
/// All files of a package, unpacked.
const PACKAGE_BYTES_MAX: u64 = 4 << 30;

/// A kernel with the modules that were built with it.
#[derive(Debug)]
pub struct Package {
    pub elf: Elf,
    files: Files,
    /// Where each module is, by its name: `virtio_mmio`.
    modules: BTreeMap<String, String>,
    /// The modules that are part of the kernel. `None` if the package does not say.
    built_in: Option<BTreeSet<String>>,
}

impl Package {
    /// Reads a package file, the directory of an unpacked package, or a kernel.
    pub fn open(path: &Path, modules: Option<&Path>, spool: impl AsFd) -> Result<Self, Error> {
        let cannot = |error: Error| about(path, error);
        let metadata = fs::metadata(path).map_err(|error| {
            Error::bad_request(format!("cannot read {}", path.display())).caused_by(error)
        })?;
        if metadata.is_dir() {
            let files = Files::directory(path).map_err(cannot)?;
            return Self::of_files(files, modules).map_err(cannot);
        }
        if !metadata.is_file() {
            return Err(cannot(Error::bad_request("it is neither a file nor a directory")));
        }
        if is_deb(path)? {
            return Self::of_debs(&[path.to_owned()], modules, spool);
        }
        if metadata.len() > IMAGE_BYTES_MAX {
            return Err(cannot(Error::bad_request("it is too large for a kernel")));
        }
        let image = fs::read(path).context(|| format!("cannot read {}", path.display()))?;
        let elf = Elf::from_image(image).map_err(cannot)?;
        let empty = Files { names: BTreeMap::new(), spool: None };
        Self::with_modules(elf, modules.map_or(Ok(empty), Files::directory)?)
    }

    /// Reads the files of one or more packages as if they were one. They are unpacked into a file
    /// without a name in `spool`, which ends with this process.
    pub fn of_debs(
        paths: &[PathBuf],
        modules: Option<&Path>,
        spool: impl AsFd,
    ) -> Result<Self, Error> {
        let mut files = Files { names: BTreeMap::new(), spool: Some(nameless(spool)?) };
        for path in paths {
            files.add_deb(path).map_err(|error| about(path, error))?;
        }
        let first = paths.first().expect("a caller names a package");
        Self::of_files(files, modules).map_err(|error| about(first, error))
    }

    fn of_files(files: Files, modules: Option<&Path>) -> Result<Self, Error> {
        let is_image =
            |name: &&String| name.starts_with("boot/vmlinuz-") || name.starts_with("boot/vmlinux-");
        let images: Vec<&String> = files.names.keys().filter(is_image).collect();
        let image = match images.as_slice() {
            [image] => files.read(image, IMAGE_BYTES_MAX)?,
            [] => {
                return Err(Error::bad_request("it has no kernel in boot/")
                    .with_hint("is it a package with a kernel, such as linux-image-*?"));
            }
            [one, .., other] => {
                return Err(Error::bad_request(format!("it has several kernels: {one}, {other}"))
                    .with_hint("name one of them, and its modules with --modules"));
            }
        };
        let elf = Elf::from_image(image)?;
        Self::with_modules(elf, modules.map_or(Ok(files), Files::directory)?)
    }

    fn with_modules(elf: Elf, files: Files) -> Result<Self, Error> {
        let release = format!("/{}/", elf.release());
        let names = || files.names.keys();
        // A directory such as `/` can have the modules of several kernels.
        let has_own = names().any(|name| module_name(name).is_some() && name.contains(&release));
        let is_own = |name: &&String| !has_own || name.contains(&release);
        let module = |name: &String| Some((module_name(name)?, name.clone()));
        let modules = names().filter(is_own).filter_map(module).collect();
        let list = names().filter(is_own).find(|name| name.ends_with("modules.builtin"));
        let built_in = list.map(|list| {
            let text = files.read(list, MODULE_BYTES_MAX)?;
            let text = String::from_utf8_lossy(&text).into_owned();
            Ok::<_, Error>(text.lines().filter_map(module_name).collect())
        });
        let built_in = built_in.transpose()?;
        Ok(Self { elf, files, modules, built_in })
    }

    /// Whether a module is part of the kernel. `trace` is a text that kernels with it contain.
    pub fn has_built_in(&self, module: &str, trace: Option<&str>) -> bool {
        match &self.built_in {
            Some(listed) => listed.contains(module),
            None => trace.is_some_and(|trace| self.elf.contains(trace)),
        }
    }

    /// Returns a module, decompressed; `None` if the package does not have it.
    pub fn module(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let Some(file) = self.modules.get(name) else {
            return Ok(None);
        };
        let content = self.files.read(file, MODULE_BYTES_MAX);
        let content = content.and_then(|it| decompress::whole(it, MODULE_BYTES_MAX));
        content.map(Some).map_err(|error| about(Path::new(file), error))
    }
}

/// `virtio_mmio` of `kernel/drivers/virtio/virtio-mmio.ko.xz`. The kernel takes `-` and `_` as the
/// same in names of modules.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let (name, end) = file.split_once(".ko")?;
    matches!(end, "" | ".xz" | ".gz" | ".zst").then(|| name.replace('-', "_"))
}

fn about(path: &Path, error: Error) -> Error {
    Error::new(error.kind(), format!("cannot use {}", path.display())).caused_by(error)
}

/// Files by their paths in a package.
#[derive(Debug)]
struct Files {
    names: BTreeMap<String, Content>,
    /// What was unpacked.
    spool: Option<File>,
}

#[derive(Debug)]
enum Content {
    Path(PathBuf),
    Spool { at: u64, bytes: u64 },
}

impl Files {
    /// Lists `boot` and `lib/modules` of a directory, or all of it if it has neither. Links are
    /// not followed.
    fn directory(root: &Path) -> Result<Self, Error> {
        let parts = ["boot", "lib/modules", "usr/lib/modules"].map(|part| root.join(part));
        let parts: Vec<PathBuf> = parts.into_iter().filter(|part| part.is_dir()).collect();
        let mut open = if parts.is_empty() { vec![root.to_owned()] } else { parts };
        let mut names = BTreeMap::new();
        while let Some(directory) = open.pop() {
            let cannot = || format!("cannot list {}", directory.display());
            for entry in fs::read_dir(&directory).context(cannot)? {
                let entry = entry.context(cannot)?;
                let (path, kind) = (entry.path(), entry.file_type().context(cannot)?);
                let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
                let name = name.strip_prefix("usr/").unwrap_or(&name).to_owned();
                if kind.is_dir() {
                    open.push(path);
                } else if kind.is_file() && is_wanted(&name) {
                    names.insert(name, Content::Path(path));
                }
                check_count(names.len() + open.len())?;
            }
        }
        Ok(Self { names, spool: None })
    }

    /// Unpacks the wanted files of a package into the spool. A package is an archive of ar(5) with
    /// a compressed tar archive in it (deb(5)).
    fn add_deb(&mut self, path: &Path) -> Result<(), Error> {
        let mut file = File::open(path).context(|| "cannot open it".to_owned())?;
        let bytes = find_data(&mut file)?;
        let mut start = [0; 6];
        file.read_exact(&mut start).context(|| "cannot read it".to_owned())?;
        file.seek(SeekFrom::Current(-6)).context(|| "cannot read it".to_owned())?;
        let data = file.take(bytes);
        let mut data = data;
        match Compression::of(&start) {
            Some(compression) => decompress::stream(compression, data, |tar| self.add_tar(tar)),
            None => self.add_tar(&mut data),
        }
    }

    fn add_tar(&mut self, tar: &mut dyn Read) -> Result<(), Error> {
        let spool = self.spool.as_mut().expect("packages are unpacked into a spool");
        let mut reader = Reader::new(tar);
        let mut at = spool.stream_position().context(|| "cannot unpack it".to_owned())?;
        while let Some(entry) = reader.next_entry().map_err(damaged)? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let name = name.trim_start_matches("./");
            let name = name.strip_prefix("usr/").unwrap_or(name);
            let Kind::File { size } = entry.kind else {
                continue;
            };
            if !is_wanted(name) {
                continue;
            }
            check_count(self.names.len())?;
            if at + size > PACKAGE_BYTES_MAX {
                return Err(Error::bad_request("the package is too large"));
            }
            loop {
                let part = reader.data().map_err(damaged)?;
                if part.is_empty() {
                    break;
                }
                spool.write_all(part).context(|| "cannot unpack it".to_owned())?;
                let count = part.len();
                reader.consume(count);
            }
            self.names.insert(name.to_owned(), Content::Spool { at, bytes: size });
            at += size;
        }
        Ok(())
    }

    fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let cannot = || format!("cannot read {name}");
        let too_large = || Error::bad_request(format!("{name} is too large"));
        match (&self.names[name], &self.spool) {
            (Content::Path(path), _) => {
                let file = File::open(path).context(cannot)?;
                let mut content = Vec::new();
                file.take(bytes_max + 1).read_to_end(&mut content).context(cannot)?;
                if content.len() as u64 > bytes_max { Err(too_large()) } else { Ok(content) }
            }
            (Content::Spool { bytes, .. }, _) if *bytes > bytes_max => Err(too_large()),
            (Content::Spool { at, bytes }, Some(spool)) => {
                let mut content = vec![0; *bytes as usize];
                spool.read_exact_at(&mut content, *at).context(cannot)?;
                Ok(content)
            }
            (Content::Spool { .. }, None) => unreachable!("only a spool has places in it"),
        }
    }
}

fn is_wanted(name: &str) -> bool {
    name.starts_with("boot/vmlinu")
        || module_name(name).is_some()
        || name.ends_with("modules.builtin")
}

fn check_count(count: usize) -> Result<(), Error> {
    let too_many = || Error::bad_request(format!("it has more than {FILES_MAX} files"));
    if count > FILES_MAX { Err(too_many()) } else { Ok(()) }
}

/// A file that ends with this process. A file system without such files is replaced by memory.
fn nameless(directory: impl AsFd) -> Result<File, Error> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let made = openat(directory, c".", flags, Mode::RUSR | Mode::WUSR)
        .or_else(|_| memfd_create(c"tare-kernel-package", MemfdFlags::CLOEXEC));
    Ok(made.context(|| "cannot make a file to unpack into".to_owned())?.into())
}

const AR_MAGIC: &[u8; 8] = b"!<arch>\n";

pub fn is_deb(path: &Path) -> Result<bool, Error> {
    let mut file = File::open(path).context(|| format!("cannot open {}", path.display()))?;
    let mut magic = [0; 8];
    let count = tare_archive::read_full(&mut file, &mut magic);
    let count = count.context(|| format!("cannot read {}", path.display()))?;
    Ok(&magic[..count] == AR_MAGIC)
}

fn damaged(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::bad_request("the package is damaged").caused_by(why).with_hint("download it again")
}

/// Moves to the content of the member `data.tar*`, and returns its size.
fn find_data(file: &mut File) -> Result<u64, Error> {
    let damaged = || damaged("it ends early, or is not a package of Debian");
    file.seek(SeekFrom::Start(AR_MAGIC.len() as u64)).map_err(|_| damaged())?;
    loop {
        let mut header = [0; 60];
        file.read_exact(&mut header).map_err(|_| damaged())?;
        let size = str::from_utf8(&header[48..58]).ok().and_then(|it| it.trim().parse().ok());
        let size: u32 = size.ok_or_else(damaged)?;
        if header.starts_with(b"data.tar") {
            return Ok(size.into());
        }
        // Members begin at even offsets.
        let next = i64::from(size) + i64::from(size % 2);
        file.seek(SeekFrom::Current(next)).map_err(|_| damaged())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_one_name_in_every_compression() {
        for (path, name) in [
            ("kernel/fs/9p/9p.ko", Some("9p")),
            ("lib/modules/6.12/kernel/drivers/virtio/virtio-mmio.ko.xz", Some("virtio_mmio")),
            ("virtio_ring.ko.zst", Some("virtio_ring")),
            ("modules.order", None),
            ("9p.ko.d", None),
        ] {
            assert_eq!(module_name(path).as_deref(), name, "{path}");
        }
    }
}
