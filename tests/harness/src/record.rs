//! Reads and forges the lines of a record without tare's code.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The lines of a record.
pub fn lines(record: &Path) -> Vec<Value> {
    let text = fs::read_to_string(record.join("record.json")).expect("it is ours");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

pub fn write_lines(record: &Path, lines: &[Value]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(record.join("record.json"), text).expect("it is ours");
}

/// Changes what a line of a record says: `intent`, or `keeper`.
pub fn change(record: &Path, line: &str, changes: &Value) {
    let mut lines = lines(record);
    let said = lines.iter_mut().find_map(|it| it.get_mut(line));
    let said = said.unwrap_or_else(|| panic!("there is no {line} on record"));
    for (key, value) in changes.as_object().expect("an object") {
        assert!(said.get(key).is_some(), "a record has no {key} any more");
        said[key] = value.clone();
    }
    write_lines(record, &lines);
}
