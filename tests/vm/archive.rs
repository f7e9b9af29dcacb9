//! The archive that a kernel unpacks as its first root: cpio in its "newc" form
//! (Documentation/driver-api/early-userspace/buffer-format.rst). Root owns every entry, whichever
//! user creates the archive.

#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

/// The name that ends an archive.
const TRAILER: &str = "TRAILER!!!";

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

impl Archive {
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[], (0, 0));
    }

    pub fn symlink(&mut self, path: &str, target: &str) {
        self.entry(path, SYMLINK, target.as_bytes(), (0, 0));
    }

    /// The device that the first process has as its standard streams.
    pub fn console(&mut self, path: &str) {
        self.entry(path, CHARACTER_DEVICE, &[], (5, 1));
    }

    pub fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content, (0, 0));
    }

    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content, (0, 0));
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[], (0, 0));
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8], device: (u32, u32)) {
        self.entries += 1;
        let length = |bytes: usize| u32::try_from(bytes).expect("an entry is below 4 GiB");
        let fields = [
            self.entries,
            mode,
            // Owner, group.
            0,
            0,
            // Links, time.
            1,
            0,
            length(content.len()),
            // The device that it is on.
            0,
            0,
            // The device that it is.
            device.0,
            device.1,
            length(path.len() + 1),
            // No checksum in this form.
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
