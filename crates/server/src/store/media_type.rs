//! What a file is, by the end of its name. Nobody looks into it, and whoever gets it
//! over HTTP is told not to either.

/// What follows the last dot of the last name, if it looks like an extension: it becomes
/// a part of names that clients are shown.
pub fn extension(name: &str) -> Option<&str> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let (before, end) = last.rsplit_once('.')?;
    let is_plain = !end.is_empty()
        && end.len() <= EXTENSION_BYTES_MAX
        && end.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_plain && !before.is_empty()).then_some(end)
}

const EXTENSION_BYTES_MAX: usize = 16;
const UNKNOWN: &str = "application/octet-stream";

pub fn of(name: &str) -> &'static str {
    let Some(extension) = extension(name) else {
        return UNKNOWN;
    };
    let extension = extension.to_ascii_lowercase();
    let known = TYPES.iter().find(|(_, ends)| ends.contains(&&*extension));
    known.map_or(UNKNOWN, |(media_type, _)| media_type)
}

const TYPES: [(&str, &[&str]); 41] = [
    (
        "text/plain; charset=utf-8",
        &[
            "txt", "text", "log", "ini", "conf", "cfg", "toml", "env", "diff", "patch", "tex", "c",
            "h", "cc", "cpp", "hpp", "rs", "go", "java", "kt", "swift", "rb", "php", "pl", "r",
            "jl", "lua", "scala", "sql", "sh", "bash", "ts", "tsx", "jsx", "d", "f90",
        ],
    ),
    ("text/csv; charset=utf-8", &["csv"]),
    ("text/tab-separated-values; charset=utf-8", &["tsv"]),
    ("text/html; charset=utf-8", &["html", "htm"]),
    ("text/css; charset=utf-8", &["css"]),
    ("text/markdown; charset=utf-8", &["md", "markdown"]),
    ("text/x-python; charset=utf-8", &["py"]),
    ("text/javascript; charset=utf-8", &["js", "mjs", "cjs"]),
    ("text/calendar; charset=utf-8", &["ics"]),
    ("application/json", &["json", "geojson"]),
    ("application/x-ndjson", &["ndjson", "jsonl"]),
    ("application/x-ipynb+json", &["ipynb"]),
    ("application/xml", &["xml", "xsd", "xsl"]),
    ("application/yaml", &["yaml", "yml"]),
    ("image/png", &["png"]),
    ("image/jpeg", &["jpg", "jpeg"]),
    ("image/gif", &["gif"]),
    ("image/webp", &["webp"]),
    ("image/svg+xml", &["svg"]),
    ("image/bmp", &["bmp"]),
    ("image/tiff", &["tif", "tiff"]),
    ("image/avif", &["avif"]),
    ("audio/mpeg", &["mp3"]),
    ("audio/wav", &["wav"]),
    ("audio/ogg", &["ogg", "oga"]),
    ("video/mp4", &["mp4", "m4v"]),
    ("video/webm", &["webm"]),
    ("application/pdf", &["pdf"]),
    ("application/rtf", &["rtf"]),
    ("application/msword", &["doc"]),
    ("application/vnd.ms-excel", &["xls"]),
    ("application/vnd.ms-powerpoint", &["ppt"]),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", &["xlsx"]),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", &["docx"]),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation", &["pptx"]),
    ("application/vnd.apache.parquet", &["parquet"]),
    ("application/vnd.sqlite3", &["sqlite", "sqlite3", "db"]),
    ("application/zip", &["zip"]),
    ("application/gzip", &["gz", "tgz"]),
    ("application/x-tar", &["tar"]),
    ("application/epub+zip", &["epub"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_its_last_extension_says() {
        assert_eq!(of("a/b.d/plot.PNG"), "image/png");
        assert_eq!(of("table.csv"), "text/csv; charset=utf-8");
        for unknown in ["", "plain", ".env", "a.d/plain", "x.weird", "x.", "a.p\u{e4}"] {
            assert_eq!(of(unknown), UNKNOWN, "{unknown:?}");
        }
        assert_eq!(extension("archive.tar.gz"), Some("gz"));
        assert_eq!(extension("a.b\"c"), None);
    }

    #[test]
    fn no_extension_is_two_things() {
        let all: Vec<&str> = TYPES.iter().flat_map(|(_, ends)| ends.iter().copied()).collect();
        for (place, end) in all.iter().enumerate() {
            assert!(!all[..place].contains(end), "{end}");
        }
    }
}
