//! Figures, reports and spreadsheets, written by common libraries, are returned complete with their
//! names and types.

use serde_json::{Value, json};
use tare_harness::{skip, tare};

use crate::librechat::client::{Chat, file, with_packages};

const MADE: &str = "import os, openpyxl
from matplotlib import pyplot
pyplot.plot([1, 4, 9])
for name in ['figure.png', 'figure.jpg', 'drawing.svg', 'report.pdf']:
    pyplot.savefig(name, dpi=100)
book = openpyxl.Workbook()
book.active['A1'], book.active['B1'] = 'sum', 42
os.mkdir('tables')
book.save('tables/sheet.xlsx')";

/// Reads the returned files with the same libraries and Pillow.
const READ: &str = "import openpyxl
from PIL import Image
for name in ['figure.png', 'figure.jpg']:
    image = Image.open(name)
    image.load()
    print(image.format, *image.size)
sheet = openpyxl.load_workbook('tables/sheet.xlsx').active
print(sheet['A1'].value, sheet['B1'].value)";

/// Its name, type, first bytes and last ones.
type Document = (&'static str, &'static str, &'static [u8], &'static [u8]);

const DOCUMENTS: [Document; 5] = [
    ("figure.png", "image/png", b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"),
    ("figure.jpg", "image/jpeg", b"\xff\xd8\xff", b"\xff\xd9"),
    ("drawing.svg", "image/svg+xml", b"<?xml", b"</svg>\n"),
    ("report.pdf", "application/pdf", b"%PDF-", b"%%EOF\n"),
    (
        "tables/sheet.xlsx",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        b"PK\x03\x04",
        b"\0\0",
    ),
];

#[test]
fn figures_reports_and_spreadsheets_are_returned_unchanged_with_their_types() {
    let Some(packages) = with_packages() else {
        skip!("matplotlib and openpyxl are not installed: ./check does that");
    };
    let tare = tare!();
    let chat = Chat::configured(&tare, "", &packages);
    let answer = chat.exec(json!({ "lang": "py", "code": MADE, "user_id": "u1" }));
    assert_eq!(answer["code"], 0, "{answer}");
    let count = answer["files"].as_array().map(Vec::len);
    assert_eq!(count, Some(DOCUMENTS.len()), "{answer}");
    let mut sent_back = Vec::new();
    for (name, media_type, begin, end) in DOCUMENTS {
        let named = file(&answer, name);
        let content = chat.download(named);
        assert_eq!(content.header("content-type"), Some(media_type), "{name}");
        assert!(content.body.starts_with(begin), "{name}");
        assert!(content.body.ends_with(end), "{name}");
        sent_back.push(reference(named));
    }
    let request = json!({ "lang": "py", "code": READ, "user_id": "u1", "files": sent_back });
    let read = chat.exec(request);
    let expected = "PNG 640 480\nJPEG 640 480\nsum 42\n";
    assert_eq!(read["stdout"], expected, "{read}");
    chat.stop(&tare);
}

/// As a client gives the next code a file that the last one made.
fn reference(file: &Value) -> Value {
    let mut reference = file.clone();
    reference["kind"] = "user".into();
    reference["resource_id"] = "u1".into();
    reference
}
