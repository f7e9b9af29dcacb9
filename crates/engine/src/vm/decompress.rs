//! Decompresses with the host's own programs, each in a process of its own.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;

use crate::error::{Context, Error, ErrorKind};

/// A compression of packages, kernels and modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Xz,
    Zstd,
    /// As `lz4 -l` writes it, the form in kernels.
    Lz4,
}

impl Compression {
    pub fn of(content: &[u8]) -> Option<Self> {
        let known: [(&[u8], Self); 4] = [
            (b"\x1f\x8b", Self::Gzip),
            (b"\xfd7zXZ\0", Self::Xz),
            (b"\x28\xb5\x2f\xfd", Self::Zstd),
            (b"\x02\x21\x4c\x18", Self::Lz4),
        ];
        known.into_iter().find(|(magic, _)| content.starts_with(magic)).map(|(_, it)| it)
    }

    fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Gzip => ("gzip", "gzip"),
            Self::Xz => ("xz", "xz-utils"),
            Self::Zstd => ("zstd", "zstd"),
            Self::Lz4 => ("lz4", "lz4"),
        }
    }
}

/// Returns the content of a file that may be compressed. More than `bytes_max` is an error.
pub fn whole(content: Vec<u8>, bytes_max: u64) -> Result<Vec<u8>, Error> {
    let Some(compression) = Compression::of(&content) else {
        return Ok(content);
    };
    stream(compression, &content[..], |output| {
        let mut bytes = Vec::new();
        let read = output.take(bytes_max + 1).read_to_end(&mut bytes);
        read.context(|| "cannot read decompressed data".to_owned())?;
        if bytes.len() as u64 > bytes_max {
            Err(Error::bad_request(format!("it holds more than {bytes_max} bytes")))
        } else {
            Ok(bytes)
        }
    })
}

/// Calls `read` with the decompressed input. The program ends before this function returns: it
/// gets no more input, or no reader is left. If this process is killed, both ends close.
pub fn stream<T>(
    compression: Compression,
    mut input: impl Read + Send,
    read: impl FnOnce(&mut dyn Read) -> Result<T, Error>,
) -> Result<T, Error> {
    let (program, package) = compression.program();
    let mut command = Command::new(program);
    command.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| {
        Error::new(ErrorKind::Unsupported, format!("cannot start {program}"))
            .caused_by(error)
            .with_hint(format!("install the package {package}"))
    })?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (mut stdin, mut stdout) = pipes.expect("both are pipes");
    let result = thread::scope(|scope| {
        // A program that ends early closes its input; its exit status says why.
        let feed = move || drop(io::copy(&mut input, &mut stdin));
        thread::Builder::new()
            .spawn_scoped(scope, feed)
            .context(|| "cannot start a thread".to_owned())?;
        let result = read(&mut stdout);
        drop(stdout);
        result
    });
    let status = child.wait().context(|| format!("cannot wait for {program}"))?;
    match result {
        Ok(_) if !status.success() => Err(Error::bad_request("the compressed data is damaged")
            .caused_by(format!("{program} ended with {status}"))),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `hello` as gzip writes it.
    const HELLO: [u8; 25] = [
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 7, 0, 0x86, 0xa6, 0x10,
        0x36, 5, 0, 0, 0,
    ];

    #[test]
    fn content_is_decompressed_or_returned_as_it_is() {
        assert_eq!(whole(HELLO.to_vec(), 5).unwrap(), b"hello");
        assert_eq!(whole(b"plain".to_vec(), 1).unwrap(), b"plain");
    }

    #[test]
    fn damaged_and_overlong_data_is_an_error() {
        let cut = whole(HELLO[..20].to_vec(), 100).unwrap_err();
        assert_eq!(cut.to_string(), "the compressed data is damaged");
        let long = whole(HELLO.to_vec(), 4).unwrap_err();
        assert_eq!(long.to_string(), "it holds more than 4 bytes");
    }
}
