//! Kernel images and modules: what their bytes say. Every length comes from a file that a user
//! named, and is checked.

use memchr::memmem;

use super::decompress::{self, Compression};
use crate::error::Error;

/// Several times the size of a distribution's kernel.
const ELF_BYTES_MAX: u64 = 512 << 20;
/// The longest banner of a kernel.
const BANNER_BYTES_MAX: usize = 512;

/// A kernel as an ELF file, which a monitor starts without running a decompressor in the guest.
#[derive(Debug)]
pub struct Elf(Vec<u8>);

impl Elf {
    /// Takes an ELF kernel, or extracts it from the bzImage that contains it.
    pub fn from_image(image: Vec<u8>) -> Result<Self, Error> {
        let elf = match payload(&image) {
            Some(payload) => decompress::whole(payload.to_vec(), ELF_BYTES_MAX)?,
            None => image,
        };
        // ELFCLASS64, and EM_X86_64 as the machine (elf(5)).
        let is_ours = elf.starts_with(b"\x7fELF\x02") && number(&elf, 18, 2) == Some(62);
        let mut elf = Self(elf);
        // What follows is not part of the kernel: relocations, or the modules of a kernel of tare.
        elf.0.truncate(elf.extent());
        if is_ours && elf.banner().is_some() {
            Ok(elf)
        } else {
            Err(Error::bad_request("it is not a Linux kernel for x86-64")
                .with_hint("name a kernel package, an unpacked one, a vmlinuz or a vmlinux"))
        }
    }

    /// The end of the last segment or of the table of sections.
    fn extent(&self) -> usize {
        let field = |at, bytes| number(&self.0, at, bytes).unwrap_or(0);
        let sections = field(40, 8).saturating_add(field(58, 2) * field(60, 2));
        let ends = self.segments().map(|it| it.offset.saturating_add(it.bytes));
        ends.fold(sections, u64::max).try_into().unwrap_or(usize::MAX)
    }

    fn segments(&self) -> impl Iterator<Item = ElfSegment> {
        let field = |at, bytes| number(&self.0, at, bytes);
        let [start, entry_bytes, count] =
            [field(32, 8), field(54, 2), field(56, 2)].map(Option::unwrap_or_default);
        (0..count).filter_map(move |index| {
            let at = |offset: u64| start.saturating_add(index * entry_bytes + offset);
            let [kind, offset, bytes] = [field(at(0), 4)?, field(at(8), 8)?, field(at(32), 8)?];
            Some(ElfSegment { kind, offset, bytes })
        })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn contains(&self, text: &str) -> bool {
        memmem::find(&self.0, text.as_bytes()).is_some()
    }

    /// `Linux version 6.1.0-55-amd64 (debian-kernel@lists.debian.org) ...`
    pub fn banner(&self) -> Option<String> {
        let banners = memmem::find_iter(&self.0, b"Linux version ").map(|at| {
            let rest = &self.0[at..self.0.len().min(at + BANNER_BYTES_MAX)];
            let end = rest.iter().position(|byte| matches!(byte, 0 | b'\n'));
            String::from_utf8_lossy(&rest[..end.unwrap_or(rest.len())]).into_owned()
        });
        let has_release = |banner: &String| {
            banner["Linux version ".len()..].starts_with(|first: char| first.is_ascii_digit())
        };
        banners.into_iter().find(has_release)
    }

    /// What `uname -r` prints in the guest.
    pub fn release(&self) -> String {
        let banner = self.banner().unwrap_or_default();
        banner.split(' ').nth(2).unwrap_or_default().to_owned()
    }

    /// Whether the kernel has the entry for monitors without firmware (PVH): a note of the owner
    /// `Xen` with the type `XEN_ELFNOTE_PHYS32_ENTRY`.
    pub fn has_pvh_entry(&self) -> bool {
        const PT_NOTE: u64 = 4;
        let mut notes = self.segments().filter(|it| it.kind == PT_NOTE);
        notes.any(|ElfSegment { offset, bytes, .. }| {
            let end = offset.saturating_add(bytes);
            self.0.get(offset as usize..end as usize).is_some_and(has_pvh_note)
        })
    }
}

/// Returns how much of an ELF file is loaded when it is executed, from the beginning of the file.
pub fn loaded_bytes(head: &[u8]) -> Option<u64> {
    const PT_LOAD: u64 = 1;
    let elf = Elf(head.to_vec());
    let loaded = elf.segments().filter(|it| it.kind == PT_LOAD);
    loaded.map(|it| it.offset.saturating_add(it.bytes)).max()
}

/// A row of the program header table.
struct ElfSegment {
    kind: u64,
    offset: u64,
    bytes: u64,
}

fn has_pvh_note(mut notes: &[u8]) -> bool {
    const PHYS32_ENTRY: u64 = 18;
    let padded = |bytes: u64| (bytes as usize).next_multiple_of(4);
    while let (Some(name), Some(value), Some(kind)) =
        (number(notes, 0, 4), number(notes, 4, 4), number(notes, 8, 4))
    {
        if kind == PHYS32_ENTRY && notes[12..].starts_with(b"Xen\0") {
            return true;
        }
        match notes.get(12 + padded(name) + padded(value)..) {
            Some(rest) => notes = rest,
            None => return false,
        }
    }
    false
}

/// Returns the compressed kernel in a bzImage (the kernel's Documentation/arch/x86/boot.rst).
fn payload(image: &[u8]) -> Option<&[u8]> {
    if number(image, 0x1fe, 2)? != 0xaa55 || image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match number(image, 0x1f1, 1)? {
        0 => 4,
        sectors => sectors,
    };
    let start = (setup_sectors + 1) * 512 + number(image, 0x248, 4)?;
    let end = start + number(image, 0x24c, 4)?;
    let payload = image.get(start as usize..end as usize)?;
    // The build appends the size of the kernel, unless the compression has it.
    match Compression::of(payload)? {
        Compression::Gzip => Some(payload),
        Compression::Xz | Compression::Zstd | Compression::Lz4 => payload.get(..payload.len() - 4),
    }
}

/// Returns a field of a module's `.modinfo` section, which has texts of the form `KEY=VALUE`.
pub fn module_field(module: &[u8], key: &str) -> Option<String> {
    let pattern = format!("\0{key}=");
    let start = memmem::find(module, pattern.as_bytes())? + pattern.len();
    let end = start + module[start..].iter().position(|byte| *byte == 0)?;
    String::from_utf8(module[start..end].to_vec()).ok()
}

/// Reads a little-endian number of up to 8 bytes.
fn number(bytes: &[u8], at: impl TryInto<usize>, count: usize) -> Option<u64> {
    let at = at.try_into().ok()?;
    let field = bytes.get(at..at.checked_add(count)?)?;
    Some(field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_not_kernels() {
        let mut boot_sector = vec![0; 1024];
        boot_sector[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        boot_sector[0x202..0x206].copy_from_slice(b"HdrS");
        let huge = boot_sector.iter().map(|byte| byte | 0x55).collect();
        for image in [vec![], b"\x7fELF\x02".to_vec(), boot_sector, huge, vec![0xff; 4096]] {
            let error = Elf::from_image(image).unwrap_err();
            assert_eq!(error.to_string(), "it is not a Linux kernel for x86-64");
        }
    }

    #[test]
    fn a_note_with_wrong_lengths_ends_the_search() {
        let note = |name: u32, value: u32, kind: u32, rest: &[u8]| {
            let numbers = [name, value, kind].map(u32::to_le_bytes).concat();
            [numbers.as_slice(), rest].concat()
        };
        assert!(has_pvh_note(&note(4, 0, 18, b"Xen\0")));
        let second = [note(4, 2, 1, b"Xen\0ab__"), note(4, 4, 18, b"Xen\0abcd")].concat();
        assert!(has_pvh_note(&second));
        assert!(!has_pvh_note(&note(u32::MAX, u32::MAX, 1, b"Xen\0")));
        assert!(!has_pvh_note(&[]));
    }

    #[test]
    fn a_field_of_a_module_is_the_text_after_its_key() {
        let module = b"...\0license=GPL\0depends=virtio,9pnet\0vermagic=6.1 SMP\0";
        assert_eq!(module_field(module, "depends").as_deref(), Some("virtio,9pnet"));
        assert_eq!(module_field(module, "author"), None);
    }
}
