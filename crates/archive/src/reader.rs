//! Reads a stream as entries, one after the other.
//!
//! The stream is hostile. Every length is checked before it is used. An ambiguous stream is
//! rejected, because another program could read it differently.

use std::io::{self, BufRead, BufReader, Read};

use crate::error::{Error, shown};
use crate::header::{BLOCK_BYTES, Block, Header, Type, is_zeros};
use crate::pax::Records;
use crate::{BUFFER_BYTES, EXTENDED_BYTES_MAX, read_full};

/// How many empty blocks may follow the end: programs fill up their last record, usually to
/// 10 KiB, and to 1 MiB for the largest tapes.
const PADDING_BYTES_MAX: u64 = 1 << 20;

/// How compressed streams begin.
const COMPRESSED: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh"];

#[derive(Debug)]
pub struct Entry {
    /// As the stream has it, unchecked.
    pub name: Vec<u8>,
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    pub mtime: i64,
}

#[derive(Debug)]
pub enum Kind {
    File { size: u64 },
    Directory,
    Symlink { target: Vec<u8> },
    HardLink { target: Vec<u8> },
}

/// Reads an archive from a stream.
pub struct Reader<'a> {
    input: BufReader<&'a mut dyn Read>,
    /// Bytes of the current entry that were not read yet, and those that fill its last block.
    data_left: u64,
    padding_left: u64,
    /// Whether a header was seen, so that this is an archive.
    begun: bool,
    /// From a global header.
    mtime: Option<i64>,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl<'a> Reader<'a> {
    pub fn new(input: &'a mut dyn Read) -> Self {
        Self {
            input: BufReader::with_capacity(BUFFER_BYTES, input),
            data_left: 0,
            padding_left: 0,
            begun: false,
            mtime: None,
        }
    }

    /// Skips the rest of the current entry and reads the next one. `None` after the last one;
    /// the stream is then at its end.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        self.skip()?;
        let mut records = Records::default();
        while let Some(header) = self.header()? {
            let more = match header.kind {
                Type::Extended => Records::decode(&self.extension(&header)?),
                Type::Global => self.global(&header).map(|()| Ok(Records::default()))?,
                Type::LongName => {
                    Ok(Records { path: Some(self.long_text(&header)?), ..Records::default() })
                }
                Type::LongLink => {
                    Ok(Records { link: Some(self.long_text(&header)?), ..Records::default() })
                }
                Type::File
                | Type::HardLink
                | Type::Symlink
                | Type::CharacterDevice
                | Type::BlockDevice
                | Type::Directory
                | Type::Fifo
                | Type::Sparse
                | Type::Unknown(_) => return self.entry(header, records).map(Some),
            };
            more.and_then(|more| records.merge(more)).map_err(Error::damaged)?;
        }
        if records != Records::default() {
            return Err(Error::ends_too_early());
        }
        self.end().map(|()| None)
    }

    /// Returns the next bytes of the current file, none at its end. Call [`Self::consume`] to
    /// get the ones after them.
    pub fn data(&mut self) -> Result<&[u8], Error> {
        if self.data_left == 0 {
            return Ok(&[]);
        }
        self.fill()?;
        let available = self.input.buffer();
        if available.is_empty() {
            return Err(Error::ends_too_early());
        }
        let wanted = usize::try_from(self.data_left).unwrap_or(usize::MAX);
        Ok(&available[..available.len().min(wanted)])
    }

    pub fn consume(&mut self, count: usize) {
        self.input.consume(count);
        self.data_left -= count as u64;
    }

    /// Reads the rest of the current file. The caller has checked its size. Memory grows with
    /// what arrives, not with what the header claims.
    pub fn content(&mut self) -> Result<Vec<u8>, Error> {
        let mut content = Vec::new();
        loop {
            let part = self.data()?;
            if part.is_empty() {
                return Ok(content);
            }
            let count = part.len();
            content.extend_from_slice(part);
            self.consume(count);
        }
    }

    /// Reads a header. `None` for the empty block after the last entry.
    fn header(&mut self) -> Result<Option<Header>, Error> {
        let mut block: Block = [0; BLOCK_BYTES];
        let count = read_full(&mut self.input, &mut block).map_err(unreadable)?;
        let not_an_archive = || {
            let compressed = COMPRESSED.iter().any(|magic| block.starts_with(magic));
            Error::not_an_archive(compressed.then_some("it is compressed; uncompress it first"))
        };
        if count < BLOCK_BYTES {
            return Err(if self.begun { Error::ends_too_early() } else { not_an_archive() });
        }
        if is_zeros(&block) {
            return Ok(None);
        }
        let header = Header::decode(&block)
            .map_err(|why| if self.begun { Error::damaged(why) } else { not_an_archive() })?;
        self.begun = true;
        Ok(Some(header))
    }

    fn entry(&mut self, header: Header, records: Records) -> Result<Entry, Error> {
        let name = records.path.unwrap_or(header.name);
        let target = records.link.unwrap_or(header.link);
        let size = records.size.unwrap_or(header.size);
        let refused = |why: &str| Err(Error::refused(cannot_unpack(&name), why));
        if records.sparse {
            return refused("it is a sparse file; make the archive without --sparse");
        }
        let kind = match header.kind {
            // The seventh edition had no type for directories.
            Type::File if name.ends_with(b"/") => Kind::Directory,
            Type::File => Kind::File { size },
            Type::Directory => Kind::Directory,
            Type::Symlink => Kind::Symlink { target },
            Type::HardLink => Kind::HardLink { target },
            Type::CharacterDevice => return refused("it is a character device"),
            Type::BlockDevice => return refused("it is a block device"),
            Type::Fifo => return refused("it is a fifo"),
            Type::Sparse => {
                return refused("it is a sparse file; make the archive without --sparse");
            }
            Type::Extended | Type::Global | Type::LongName | Type::LongLink | Type::Unknown(_) => {
                return refused("it is of a type that tare does not know");
            }
        };
        match kind {
            Kind::File { size } => self.expect_data(size),
            // Some programs skip such data, and some do not.
            Kind::Directory | Kind::Symlink { .. } | Kind::HardLink { .. } if size != 0 => {
                return refused("it claims to have data, which only a file has");
            }
            Kind::Directory | Kind::Symlink { .. } | Kind::HardLink { .. } => {}
        }
        Ok(Entry {
            name,
            kind,
            mode: header.mode,
            mtime: records.mtime.or(self.mtime).unwrap_or(header.mtime),
        })
    }

    /// Accepts only a time: a name or a size for all entries would let a small stream cause
    /// much work.
    fn global(&mut self, header: &Header) -> Result<(), Error> {
        let bytes = self.extension(header)?;
        let records = Records::decode(&bytes).map_err(Error::damaged)?;
        self.mtime = records.mtime.or(self.mtime);
        let rest = Records { mtime: None, ..records };
        if rest == Records::default() {
            Ok(())
        } else {
            Err(Error::damaged("a global header describes a single file"))
        }
    }

    /// Reads a name or target of GNU tar, which ends with a zero byte.
    fn long_text(&mut self, header: &Header) -> Result<Vec<u8>, Error> {
        let mut text = self.extension(header)?;
        let length = text.iter().rposition(|byte| *byte != 0);
        text.truncate(length.map_or(0, |last| last + 1));
        Ok(text)
    }

    /// Reads the data of an extended header.
    fn extension(&mut self, header: &Header) -> Result<Vec<u8>, Error> {
        if header.size > EXTENDED_BYTES_MAX {
            return Err(Error::damaged("an extended header is longer than 1 MiB"));
        }
        self.expect_data(header.size);
        let bytes = self.content()?;
        self.skip()?;
        Ok(bytes)
    }

    fn expect_data(&mut self, size: u64) {
        self.data_left = size;
        self.padding_left = size.next_multiple_of(BLOCK_BYTES as u64) - size;
    }

    fn skip(&mut self) -> Result<(), Error> {
        self.data_left += std::mem::take(&mut self.padding_left);
        loop {
            match self.data()?.len() {
                0 => return Ok(()),
                count => self.consume(count),
            }
        }
    }

    /// Checks that nothing follows the end: it would be left out without an error.
    fn end(&mut self) -> Result<(), Error> {
        let mut padding: u64 = 0;
        loop {
            self.fill()?;
            let rest = self.input.buffer();
            let count = rest.len();
            if count == 0 {
                return Ok(());
            }
            padding += count as u64;
            if padding > PADDING_BYTES_MAX || !is_zeros(rest) {
                return Err(Error::damaged("something follows its end"));
            }
            self.input.consume(count);
        }
    }

    /// Fills the buffer, which is then empty only at the end of the stream.
    fn fill(&mut self) -> Result<(), Error> {
        loop {
            match self.input.fill_buf() {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
    }
}

fn unreadable(error: io::Error) -> Error {
    Error::failed("cannot read the archive".into(), error)
}

pub fn cannot_unpack(name: &[u8]) -> String {
    format!("cannot unpack {}", shown(name))
}
