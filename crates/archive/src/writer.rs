//! Writes entries to a stream: a header, with an extended one before it if a field is too small,
//! then as many bytes as the header says, filled up to whole blocks.

use std::io::{self, BufWriter, Read, Write};

use crate::header::{BLOCK_BYTES, EMPTY, Header, NAME_BYTES_MAX, SIZE_MAX, Type};
use crate::{BUFFER_BYTES, EXTENDED_BYTES_MAX, pax};

/// Writes an archive to a stream.
pub struct Writer<'a> {
    out: BufWriter<&'a mut dyn Write>,
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self { out: BufWriter::with_capacity(BUFFER_BYTES, out) }
    }

    /// Writes a file with the mode 0644.
    pub fn file(&mut self, name: &[u8], mtime: i64, content: &[u8]) -> io::Result<()> {
        let size = content.len() as u64;
        self.header(&plain_file(name, mtime, size))?;
        self.data(content)?;
        self.end_of_data(size)
    }

    /// Writes a file with the mode 0644, whose `size` bytes come from `from`. Fewer bytes are an
    /// error.
    pub fn file_from(
        &mut self,
        name: &[u8],
        mtime: i64,
        size: u64,
        from: &mut dyn Read,
    ) -> io::Result<()> {
        self.header(&plain_file(name, mtime, size))?;
        let copied = io::copy(&mut from.take(size), &mut self.out)?;
        if copied < size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.end_of_data(size)
    }

    pub(crate) fn header(&mut self, header: &Header) -> io::Result<()> {
        let records = extended_records(header);
        if !records.is_empty() {
            self.extended(&records)?;
        }
        self.out.write_all(&header.encode())
    }

    /// Writes a part of the data. All parts together must have the size of the header.
    pub fn data(&mut self, part: &[u8]) -> io::Result<()> {
        self.out.write_all(part)
    }

    pub fn zeros(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let part = count.min(BLOCK_BYTES as u64);
            self.out.write_all(&EMPTY[..part as usize])?;
            count -= part;
        }
        Ok(())
    }

    /// Fills the last block after the data of an entry of this size.
    pub fn end_of_data(&mut self, size: u64) -> io::Result<()> {
        self.zeros(size.next_multiple_of(BLOCK_BYTES as u64) - size)
    }

    /// Ends the archive with two empty blocks.
    pub fn finish(mut self) -> io::Result<()> {
        self.zeros(2 * BLOCK_BYTES as u64)?;
        self.out.flush()
    }

    fn extended(&mut self, records: &[u8]) -> io::Result<()> {
        let size = records.len() as u64;
        let header = Header {
            name: b"././@PaxHeader".to_vec(),
            kind: Type::Extended,
            mode: 0o644,
            size,
            mtime: 0,
            link: Vec::new(),
        };
        self.out.write_all(&header.encode())?;
        self.data(records)?;
        self.end_of_data(size)
    }
}

fn plain_file(name: &[u8], mtime: i64, size: u64) -> Header {
    Header { name: name.to_vec(), kind: Type::File, mode: 0o644, size, mtime, link: Vec::new() }
}

/// Returns whether an extended header has room for this name and link target.
pub fn fits(name: &[u8], link: &[u8]) -> bool {
    const OTHER_RECORDS_BYTES: usize = 256;
    ((name.len() + link.len() + OTHER_RECORDS_BYTES) as u64) < EXTENDED_BYTES_MAX
}

fn extended_records(header: &Header) -> Vec<u8> {
    let is_plain = |text: &[u8]| text.len() <= NAME_BYTES_MAX && text.is_ascii();
    let is_utf8 = |text: &[u8]| str::from_utf8(text).is_ok();
    let mut records = Vec::new();
    if !is_utf8(&header.name) || !is_utf8(&header.link) {
        pax::put_record(&mut records, "hdrcharset", b"BINARY");
    }
    if !is_plain(&header.name) {
        pax::put_record(&mut records, "path", &header.name);
    }
    if !is_plain(&header.link) {
        pax::put_record(&mut records, "linkpath", &header.link);
    }
    if header.size > SIZE_MAX {
        pax::put_record(&mut records, "size", header.size.to_string().as_bytes());
    }
    records
}
