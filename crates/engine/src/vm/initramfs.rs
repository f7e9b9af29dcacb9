//! The first files of a machine, as the kernel unpacks them: this binary, the modules of the
//! kernel, and a console. They are made for every machine, so that the keeper in it is the same
//! binary as the one outside.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use tare_control::MACHINE_NAME;
use tare_kernel::memory_file;

use super::image;
use super::parts::KernelModule;

/// The name of the entry that ends an archive.
const END: &str = "TRAILER!!!";
/// The modules that the machine needs, and those that only programs in the box need.
const MODULES: &str = "modules";
const MORE_MODULES: &str = "more-modules";
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
/// `/dev/console`.
const DEVICE: u32 = 0o020_600;
const CONSOLE: (u32, u32) = (5, 1);
const NO_DEVICE: (u32, u32) = (0, 0);

/// Returns a file in memory with the archive. The kernel frees it with its last descriptor.
pub fn make(modules: &[KernelModule]) -> io::Result<OwnedFd> {
    let file = memory_file::make(c"tare-initramfs")?;
    let mut archive = Archive { file, entries: 0 };
    archive.add("dev", DIRECTORY, NO_DEVICE, &[])?;
    archive.add("dev/console", DEVICE, CONSOLE, &[])?;
    let name = MACHINE_NAME.to_string_lossy();
    archive.add(name.trim_start_matches('/'), PROGRAM, NO_DEVICE, &own_program()?)?;
    archive.add(MODULES, DIRECTORY, NO_DEVICE, &[])?;
    archive.add(MORE_MODULES, DIRECTORY, NO_DEVICE, &[])?;
    for (index, KernelModule { name, content, only_for_root }) in modules.iter().enumerate() {
        let directory = if *only_for_root { MORE_MODULES } else { MODULES };
        archive.add(&format!("{directory}/{index:03}-{name}.ko"), FILE, NO_DEVICE, content)?;
    }
    archive.add(END, 0, NO_DEVICE, &[])?;
    // The monitor gets this descriptor. No monitor may change the file.
    memory_file::seal(&archive.file)?;
    Ok(archive.file.into())
}

/// Returns this binary without its debug information, which a build for tests has.
fn own_program() -> io::Result<Vec<u8>> {
    let file = File::open("/proc/self/exe")?;
    let mut head = vec![0; 64 << 10];
    let length = file.read_at(&mut head, 0)?;
    let bytes = image::loaded_bytes(&head[..length]).ok_or(io::ErrorKind::InvalidData)?;
    let mut program = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
    file.read_exact_at(&mut program, 0)?;
    Ok(program)
}

/// An archive in the format `newc` (the kernel's Documentation/driver-api/early-userspace/
/// buffer-format.rst).
struct Archive {
    file: File,
    entries: u32,
}

impl Archive {
    fn add(
        &mut self,
        name: &str,
        mode: u32,
        (major, minor): (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let bytes = u32::try_from(content.len()).map_err(io::Error::other)?;
        self.entries += 1;
        let name_bytes = name.len() as u32 + 1;
        let fields = [self.entries, mode, 0, 0, 1, 0, bytes, 0, 0, major, minor, name_bytes, 0];
        let mut head = String::from("070701");
        fields.iter().for_each(|field| head.push_str(&format!("{field:08x}")));
        head.push_str(name);
        head.push('\0');
        self.write_padded(head.as_bytes())?;
        self.write_padded(content)
    }

    /// Every part ends at a multiple of four bytes.
    fn write_padded(&mut self, part: &[u8]) -> io::Result<()> {
        self.file.write_all(part)?;
        self.file.write_all(&[0; 3][..part.len().next_multiple_of(4) - part.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};
    use std::process::{Command, Stdio};

    #[test]
    fn the_archive_has_the_program_the_modules_in_order_and_a_console() {
        let modules =
            [("virtio", "first", false), ("9p", "second", false), ("veth", "third", true)];
        let modules = modules.map(|(name, content, only_for_root)| KernelModule {
            name: name.to_owned(),
            content: content.into(),
            only_for_root,
        });
        let mut file = File::from(make(&modules).unwrap());
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        let at = |text: &str, from: usize| {
            let place = memchr::memmem::find(&bytes[from..], text.as_bytes());
            from + place.unwrap_or_else(|| panic!("no {text} behind {from}"))
        };
        let program = at("tare-machine\0", at("dev/console\0", 0));
        // The program is this test, which contains the same texts.
        let behind_program = program + own_program().unwrap().len();
        let order = ["modules/000-virtio.ko\0", "first", "modules/001-9p.ko\0", "second"];
        let more = ["more-modules/002-veth.ko\0", "third", END];
        order.into_iter().chain(more).fold(behind_program, |from, text| at(text, from));
    }

    #[test]
    fn no_holder_of_the_archive_can_change_it() {
        let file = File::from(make(&[]).unwrap());
        assert!(file.write_at(b"x", 0).is_err());
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let mut child = Command::new("sh");
        child.args(["-c", "echo x >> \"$1\"", "sh", &again]).stderr(Stdio::null());
        assert!(!child.status().unwrap().success());
    }
}
