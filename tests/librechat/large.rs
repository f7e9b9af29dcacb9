//! A file of the largest size that a client sends costs the server little memory.

use std::io::{Read, Write};

use tare_harness::{Answer, tare};

use crate::librechat::client::{BOUNDARY, Chat, Form, reference};

/// Just below what a client sends at most.
const SIZE: usize = 140 << 20;
const PIECE: usize = 1 << 20;
/// The largest resident size that the server may reach: a small part of the file.
const MOST_RESIDENT: u64 = 40 << 20;

#[test]
fn a_file_of_140_mb_is_copied_in_and_out_in_constant_memory() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let piece: Vec<u8> = (0..PIECE).map(|n| (n % 249) as u8).collect();
    let begin = Form::of_user("u1").file("large.bin", b"").unfinished();
    let begin = &begin[..begin.len() - 2];
    let end = format!("\r\n--{BOUNDARY}--\r\n");
    let length = begin.len() + SIZE + end.len();
    let mut stream = chat.server.connect();
    let head = format!(
        "POST /v1/upload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: {length}\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.write_all(begin).expect("it reads");
    for _piece in 0..SIZE / PIECE {
        stream.write_all(&piece).expect("it reads");
    }
    stream.write_all(end.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let sent = reference(&Answer::parse(&answer).was(200).json());
    assert_peak(chat.server.pid());

    let path = format!("/v1/download/{sent}?kind=user&id=u1");
    let mut stream = chat.server.send("GET", &path, &[], b"");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let mut got = vec![0; PIECE];
    for _piece in 0..SIZE / PIECE {
        stream.read_exact(&mut got).expect("all of it comes");
        assert!(got == piece, "every byte");
    }
    assert_eq!(stream.read(&mut byte).expect("an end"), 0);
    assert_peak(chat.server.pid());
    chat.server.stop().ok();
}

#[track_caller]
fn assert_peak(pid: u32) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let peak = kib.expect("a number") << 10;
    assert!(peak < MOST_RESIDENT, "it had {} MiB", peak >> 20);
}
