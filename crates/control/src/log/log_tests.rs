//! Tests of the promises between the writer and the reader of a log, also with a hostile other side.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, fstat, ftruncate, memfd_create, openat};
use rustix::io::{pread, pwrite};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use tare_harness::skip;

use super::*;

/// A segment holds 32 KiB.
const BYTES_MAX: u64 = 64 << 10;

fn files() -> [OwnedFd; 2] {
    FILE_NAMES.map(|name| memfd_create(name, MemfdFlags::CLOEXEC).unwrap())
}

fn clones(files: &[OwnedFd; 2]) -> [OwnedFd; 2] {
    [&files[0], &files[1]].map(|file| file.try_clone().unwrap())
}

fn log(bytes_max: u64) -> (Writer, Reader) {
    let files = files();
    let reader = Reader::new(clones(&files));
    (Writer::new(files, bytes_max), reader)
}

/// Reads the rest of a log: times, streams, missed bytes, text.
fn rest(reader: &mut Reader) -> Vec<(u64, Stream, u64, String)> {
    let mut found = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let text = String::from_utf8(reader.bytes().to_owned()).unwrap();
        found.push((entry.time_ms, entry.stream, entry.missed_bytes, text));
    }
    found
}

fn text_of(found: &[(u64, Stream, u64, String)]) -> String {
    found.iter().map(|(_, _, _, text)| text.as_str()).collect()
}

fn numbered(range: std::ops::Range<usize>) -> String {
    range.map(|number| format!("line {number:06}\n")).collect()
}

#[test]
fn records_are_read_in_order_with_time_and_stream() {
    let (mut writer, mut reader) = log(BYTES_MAX);
    assert_eq!(rest(&mut reader), []);
    writer.append_at(17, Stream::Stdout, b"one\n");
    writer.append_at(18, Stream::Stderr, b"two");
    let expected =
        [(17, Stream::Stdout, 0, "one\n".to_owned()), (18, Stream::Stderr, 0, "two".to_owned())];
    assert_eq!(rest(&mut reader), expected);
    writer.append_at(16, Stream::Stdout, b"three");
    let expected = [(16, Stream::Stdout, 0, "three".to_owned())];
    assert_eq!(rest(&mut reader), expected);
    reader.rewind();
    assert_eq!(text_of(&rest(&mut reader)), "one\ntwothree");
    assert_eq!((writer.received_bytes(), writer.dropped_bytes()), (12, 0));
}

#[test]
fn append_notes_the_wall_clock() {
    let (mut writer, mut reader) = log(BYTES_MAX);
    writer.append(Stream::Stdout, b"");
    writer.append(Stream::Stdout, b"now");
    let found = rest(&mut reader);
    assert_eq!(found.len(), 1, "nothing written is no record");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age_ms = now.as_millis() - u128::from(found[0].0);
    assert!(age_ms < 60_000, "{age_ms}");
}

#[test]
fn a_chunk_of_any_size_is_read_back_unchanged() {
    let (mut writer, mut reader) = log(4 << 20);
    let text = numbered(0..50_000);
    writer.append_at(1, Stream::Stdout, text.as_bytes());
    assert!(text_of(&rest(&mut reader)) == text);
}

#[test]
fn the_newest_half_is_always_there_and_the_files_never_pass_the_limit() {
    let files = files();
    let mut writer = Writer::new(clones(&files), BYTES_MAX);
    for number in 0..20_000 {
        writer.append_at(1, Stream::Stdout, numbered(number..number + 1).as_bytes());
        if number % 997 != 0 {
            continue;
        }
        let sizes = [&files[0], &files[1]].map(|file| fstat(file).unwrap().st_size.cast_unsigned());
        assert!(sizes.iter().sum::<u64>() <= BYTES_MAX, "{sizes:?}");
        let mut reader = Reader::new(clones(&files));
        let kept = text_of(&rest(&mut reader));
        let first = number + 1 - kept.len() / 12;
        assert!(kept == numbered(first..number + 1));
        let stored_bytes = (number + 1 - first) * (12 + RECORD_OVERHEAD);
        let half = (BYTES_MAX / 2) as usize - SEGMENT_HEADER_BYTES - 12 - RECORD_OVERHEAD;
        assert!(first == 0 || stored_bytes >= half, "{stored_bytes}");
    }
}

#[test]
fn a_limit_that_is_too_small_is_raised_to_the_least() {
    let (mut writer, mut reader) = log(0);
    let text = numbered(0..1000);
    writer.append_at(1, Stream::Stdout, text.as_bytes());
    let kept = text_of(&rest(&mut reader));
    assert!(text.ends_with(&kept) && kept.len() > LOG_BYTES_MIN as usize / 3);
}

#[test]
fn a_reader_continues_across_any_number_of_segments() {
    let (mut writer, mut reader) = log(BYTES_MAX);
    for number in 0..20_000 {
        let line = numbered(number..number + 1);
        writer.append_at(1, Stream::Stdout, line.as_bytes());
        if number % 300 == 299 {
            let found = rest(&mut reader);
            assert!(text_of(&found) == numbered(number - 299..number + 1));
            assert!(found.iter().all(|(_, _, missed, _)| *missed == 0));
        }
    }
}

#[test]
fn an_overtaken_reader_continues_with_the_oldest_record_and_counts_lost_bytes() {
    let (mut writer, mut reader) = log(BYTES_MAX);
    for number in 0..10_000 {
        let line = numbered(number..number + 1);
        writer.append_at(1, Stream::Stdout, line.as_bytes());
        if number == 10 {
            assert_eq!(rest(&mut reader).len(), 11);
        }
    }
    let found = rest(&mut reader);
    let kept = numbered(10_000 - found.len()..10_000);
    assert!(text_of(&found) == kept);
    let missed_lines = (10_000 - found.len() - 11) as u64;
    assert_eq!(found[0].2, missed_lines * 12);
    assert!(found[1..].iter().all(|(_, _, missed, _)| *missed == 0));
}

#[test]
fn the_end_is_after_all_records_and_before_later_ones() {
    let (mut writer, mut reader) = log(LOG_BYTES_MIN);
    for _ in 0..300 {
        let end = reader.end().unwrap();
        writer.append_at(1, Stream::Stdout, b"0123456789");
        assert_eq!(reader.next_entry_before(&end).unwrap(), None);
        let entry = reader.next_entry().unwrap().unwrap();
        assert!(entry.place >= end.place && entry.place < reader.end().unwrap().place);
    }
}

/// Returns the contents of the record at a position. They differ between positions, so a mixture of
/// two records is seen.
fn pattern(position: u64) -> impl Iterator<Item = u8> {
    (position..).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
}

/// Reads beside a writer that calls `pace` before each record, and returns how
/// many bytes were missed.
fn race(records: usize, pace: impl Fn(u64, &AtomicU64) + Sync) -> u64 {
    let (mut writer, mut reader) = log(LOG_BYTES_MIN);
    let (is_done, read_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut chunk = Vec::new();
            for number in 0..records {
                chunk.clear();
                chunk.extend(pattern(writer.received_bytes()).take(number * 7919 % 300 + 1));
                pace(writer.received_bytes(), &read_bytes);
                writer.append_at(1, Stream::Stdout, &chunk);
            }
            is_done.store(true, Ordering::Release);
        });
        let mut missed_bytes = 0;
        loop {
            let is_last_look = is_done.load(Ordering::Acquire);
            while let Some(entry) = reader.next_entry().unwrap() {
                let bytes = reader.bytes();
                assert!(pattern(entry.position).zip(bytes).all(|(a, b)| a == *b));
                // The reader cannot know what it missed before its first record.
                missed_bytes += match read_bytes.load(Ordering::Relaxed) {
                    0 => entry.position,
                    read_bytes => entry.position - read_bytes,
                };
                let end = entry.position + bytes.len() as u64;
                read_bytes.store(end, Ordering::Release);
            }
            if is_last_look {
                return missed_bytes;
            }
        }
    })
}

#[test]
fn a_reader_beside_a_fast_writer_sees_records_whole_or_misses_them() {
    race(60_000, |_, _| ());
}

#[test]
fn a_reader_that_keeps_up_misses_nothing() {
    let segment_bytes = LOG_BYTES_MIN / 4;
    let missed_bytes = race(20_000, |written_bytes, read_bytes| {
        while written_bytes - read_bytes.load(Ordering::Acquire) > segment_bytes {
            std::thread::yield_now();
        }
    });
    assert_eq!(missed_bytes, 0);
}

/// Every damage of a byte is an answer, never a panic, and bounded.
#[test]
fn damage_anywhere_ends_the_log_and_nothing_else() {
    let files = files();
    let mut writer = Writer::new(clones(&files), LOG_BYTES_MIN);
    let record = numbered(0..10);
    for _ in 0..20 {
        writer.append_at(0x0102_0304, Stream::Stderr, record.as_bytes());
    }
    let whole = rest(&mut Reader::new(clones(&files)));
    for file in &files {
        let size = fstat(file).unwrap().st_size.cast_unsigned();
        for at in 0..size {
            let mut original = [0];
            pread(file, &mut original, at).unwrap();
            for value in [0, 1, 0x7f, 0xff, original[0] ^ 1, original[0] ^ 0x80] {
                pwrite(file, &[value], at).unwrap();
                let records = read_hostile(clones(&files));
                assert!(records <= whole.len(), "{records} of {}", whole.len());
            }
            pwrite(file, &original, at).unwrap();
        }
    }
    assert_eq!(rest(&mut Reader::new(clones(&files))), whole);
}

/// How many records come before the end or the first error.
fn read_hostile(files: [OwnedFd; 2]) -> usize {
    let mut reader = Reader::new(files);
    let mut records = 0;
    while let Ok(Some(_)) = reader.next_entry() {
        assert!(reader.bytes().len() <= RECORD_BYTES_MAX);
        records += 1;
    }
    let told = reader.missed_at_end();
    assert!(told.is_err() || reader.missed_at_end().unwrap() == 0);
    records
}

#[test]
fn a_log_truncated_anywhere_gives_the_records_before() {
    let files = files();
    let mut writer = Writer::new(clones(&files), BYTES_MAX);
    writer.append_at(1, Stream::Stdout, b"one");
    writer.append_at(1, Stream::Stdout, b"two");
    let first_end = (SEGMENT_HEADER_BYTES + RECORD_OVERHEAD + 3) as u64;
    let end = first_end + (RECORD_OVERHEAD + 3) as u64;
    for size in (0..end).rev() {
        ftruncate(&files[0], size).unwrap();
        let found = rest(&mut Reader::new(clones(&files)));
        assert_eq!(found.len(), usize::from(size >= first_end), "{size}");
    }
}

#[test]
fn damage_is_named_by_file_and_offset() {
    let files = files();
    let mut writer = Writer::new(clones(&files), BYTES_MAX);
    writer.append_at(1, Stream::Stdout, b"one");
    writer.append_at(1, Stream::Stdout, b"two");
    let second = (SEGMENT_HEADER_BYTES + RECORD_OVERHEAD + 3) as u64;
    pwrite(&files[0], &[3], second + 20).unwrap();
    let mut reader = Reader::new(clones(&files));
    assert!(reader.next_entry().unwrap().is_some());
    let error = reader.next_entry().unwrap_err();
    assert_eq!(error.to_string(), "log.0 is damaged at byte 67");
    pwrite(&files[0], b"T", 0).unwrap();
    let error = Reader::new(clones(&files)).next_entry().unwrap_err();
    assert_eq!(error.to_string(), "log.0 is damaged at byte 0");
}

/// Lengths and sequences that only a hostile keeper writes.
#[test]
fn a_forged_log_ends_without_growing_anything() {
    let claim = |length: u32, stream: u8| {
        let mut record = [0; RECORD_HEADER_BYTES];
        record[8..16].fill(0xff);
        record[16..20].copy_from_slice(&length.to_le_bytes());
        record[20] = stream;
        record
    };
    let past_max = u32::try_from(RECORD_BYTES_MAX).unwrap() + 1;
    for (sequence, record) in [
        (0, claim(u32::MAX, 1)),
        (0, claim(past_max, 1)),
        (0, claim(0, 1)),
        (0, claim(1, 0)),
        (u64::MAX - 1, claim(5, 1)),
        (u64::MAX, claim(5, 1)),
    ] {
        let files = files();
        for (file, sequence) in files.iter().zip([sequence, sequence.wrapping_add(1)]) {
            pwrite(file, &encode_segment(sequence), 0).unwrap();
            pwrite(file, &record, SEGMENT_HEADER_BYTES as u64).unwrap();
            ftruncate(file, 1 << 40).unwrap();
        }
        assert_eq!(read_hostile(files), 0);
    }
}

#[test]
fn a_full_disk_loses_only_output() {
    let full = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/full");
    let files = [full().unwrap().into(), full().unwrap().into()];
    let mut writer = Writer::new(files, BYTES_MAX);
    for _ in 0..10_000 {
        writer.append_at(1, Stream::Stdout, &[b'x'; 1000]);
    }
    assert_eq!(writer.received_bytes(), 10_000_000);
    assert_eq!(writer.dropped_bytes(), 10_000_000);
}

/// A tmpfs of this size that is mounted nowhere and gone with its descriptor.
fn tmpfs(size: &str) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", size)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn create(directory: BorrowedFd<'_>, name: &str) -> OwnedFd {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR).unwrap()
}

/// A small disk with a log, and something else on it that can make room.
struct SmallDisk {
    ballast: OwnedFd,
    files: [OwnedFd; 2],
}

impl SmallDisk {
    fn new() -> Option<Self> {
        let disk = tmpfs("256k").ok()?;
        let ballast = create(disk.as_fd(), "ballast");
        pwrite(&ballast, &[0; 64 << 10], 0).unwrap();
        let files = FILE_NAMES.map(|name| create(disk.as_fd(), name));
        pwrite(&files[0], &first_header(), 0).unwrap();
        Some(Self { ballast, files })
    }

    /// Takes what is left of it.
    fn fill(&self) {
        let mut end = fstat(&self.ballast).unwrap().st_size.cast_unsigned();
        while let Ok(written) = pwrite(&self.ballast, &[0; 4096], end) {
            end += written as u64;
        }
    }

    fn reader(&self) -> Reader {
        Reader::new(clones(&self.files))
    }

    fn writer(&self, bytes_max: u64) -> Writer {
        Writer::new(clones(&self.files), bytes_max)
    }
}

#[test]
fn a_log_continues_when_a_full_disk_has_space_again() {
    let Some(disk) = SmallDisk::new() else {
        skip!("no tmpfs can be made without privileges");
    };
    let (mut reader, mut writer) = (disk.reader(), disk.writer(1 << 20));
    // Longer than a page: of the first one that does not fit, a part does.
    for number in 0..60 {
        let chunk = numbered(number * 1000..number * 1000 + 1000);
        writer.append_at(1, Stream::Stdout, chunk.as_bytes());
    }
    let before = text_of(&rest(&mut reader));
    assert!(numbered(0..60_000).starts_with(&before) && !before.is_empty());
    let dropped_bytes = writer.dropped_bytes();
    assert_eq!(dropped_bytes + before.len() as u64, 60 * 12_000);

    ftruncate(&disk.ballast, 0).unwrap();
    writer.append_at(2, Stream::Stderr, b"room again\n");
    writer.append_at(3, Stream::Stdout, b"and more\n");
    let expected = [
        (2, Stream::Stderr, dropped_bytes, "room again\n".to_owned()),
        (3, Stream::Stdout, 0, "and more\n".to_owned()),
    ];
    assert_eq!(rest(&mut reader), expected);
    assert_eq!(reader.missed_at_end().unwrap(), 0);
    assert_eq!(writer.dropped_bytes(), dropped_bytes);
}

#[test]
fn bytes_dropped_last_by_a_full_disk_are_reported_once() {
    let Some(disk) = SmallDisk::new() else {
        skip!("no tmpfs can be made without privileges");
    };
    disk.fill();
    let (mut reader, mut writer) = (disk.reader(), disk.writer(1 << 20));
    // Not one record was ever kept.
    writer.append_at(1, Stream::Stdout, &[b'x'; 5000]);
    assert_eq!(writer.dropped_bytes(), 5000);
    assert_eq!(rest(&mut reader), []);
    assert_eq!(reader.missed_at_end().unwrap(), 5000);
    assert_eq!(reader.missed_at_end().unwrap(), 0);
    ftruncate(&disk.ballast, 0).unwrap();
    writer.append_at(2, Stream::Stdout, b"kept");
    let kept = (2, Stream::Stdout, 0, "kept".to_owned());
    assert_eq!(rest(&mut reader), [kept]);
    disk.fill();
    writer.append_at(3, Stream::Stdout, &[b'x'; 6000]);
    writer.append_at(3, Stream::Stdout, &[b'x'; 7000]);
    assert_eq!(reader.missed_at_end().unwrap(), 13_000);
    assert_eq!(reader.missed_at_end().unwrap(), 0);
    // A reader that stops here learns it too, whatever comes later.
    let mut reader = disk.reader();
    let end = reader.end().unwrap();
    ftruncate(&disk.ballast, 0).unwrap();
    writer.append_at(4, Stream::Stdout, b"later");
    let mut missed_bytes = 0;
    while let Some(entry) = reader.next_entry_before(&end).unwrap() {
        missed_bytes += entry.missed_bytes;
    }
    assert_eq!(missed_bytes + reader.missed_before(&end), 18_000);
}

#[test]
fn a_full_disk_at_a_segment_change_is_reported_and_loses_no_later_record() {
    let whole_segment = (BYTES_MAX / 2) as usize - SEGMENT_HEADER_BYTES - RECORD_OVERHEAD;
    // Room for nothing at all, or for a part of the first record.
    for pages in [0, 1] {
        let Some(disk) = SmallDisk::new() else {
            skip!("no tmpfs can be made without privileges");
        };
        let (mut reader, mut writer) = (disk.reader(), disk.writer(BYTES_MAX));
        writer.append_at(1, Stream::Stdout, &vec![b'x'; whole_segment]);
        disk.fill();
        let end = fstat(&disk.ballast).unwrap().st_size.cast_unsigned();
        ftruncate(&disk.ballast, end - pages * 4096).unwrap();
        for _ in 0..2 {
            writer.append_at(2, Stream::Stdout, &[b'y'; 9000]);
        }
        assert_eq!(writer.dropped_bytes(), 18_000);
        assert_eq!(rest(&mut reader).len(), 1);
        assert_eq!(reader.missed_at_end().unwrap(), 18_000);

        ftruncate(&disk.ballast, 0).unwrap();
        writer.append_at(3, Stream::Stdout, b"room again");
        let expected = (3, Stream::Stdout, 0, "room again".to_owned());
        assert_eq!(rest(&mut reader), [expected]);
        let missed: Vec<u64> = rest(&mut disk.reader()).iter().map(|it| it.2).collect();
        assert_eq!(missed, [0, 18_000]);
    }
}
