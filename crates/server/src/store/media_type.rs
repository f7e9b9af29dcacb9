//! The media type of a file, by the extension of its name. The server never looks at the
//! content, and downloads tell browsers not to either.

const EXTENSION_BYTES_MAX: usize = 16;
const UNKNOWN: &str = "application/octet-stream";

/// Returns what follows the last dot of the last path component. It becomes part of names that
/// clients see, so only short alphanumeric text counts as an extension.
pub fn extension(name: &str) -> Option<&str> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let (before, end) = last.rsplit_once('.')?;
    let is_plain = !end.is_empty()
        && end.len() <= EXTENSION_BYTES_MAX
        && end.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_plain && !before.is_empty()).then_some(end)
}

pub fn of(name: &str) -> &'static str {
    let extension = extension(name).map(str::to_ascii_lowercase);
    match extension.as_deref().unwrap_or_default() {
        "txt" | "text" | "log" | "ini" | "conf" | "cfg" | "toml" | "env" | "diff" | "patch"
        | "tex" | "c" | "h" | "cc" | "cpp" | "hpp" | "rs" | "go" | "java" | "kt" | "swift"
        | "rb" | "php" | "pl" | "r" | "jl" | "lua" | "scala" | "sql" | "sh" | "bash" | "ts"
        | "tsx" | "jsx" | "d" | "f90" => "text/plain; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "tsv" => "text/tab-separated-values; charset=utf-8",
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "md" | "markdown" => "text/markdown; charset=utf-8",
        "py" => "text/x-python; charset=utf-8",
        "js" | "mjs" | "cjs" => "text/javascript; charset=utf-8",
        "ics" => "text/calendar; charset=utf-8",
        "json" | "geojson" => "application/json",
        "ndjson" | "jsonl" => "application/x-ndjson",
        "ipynb" => "application/x-ipynb+json",
        "xml" | "xsd" | "xsl" => "application/xml",
        "yaml" | "yml" => "application/yaml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "bmp" => "image/bmp",
        "tif" | "tiff" => "image/tiff",
        "avif" => "image/avif",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "ogg" | "oga" => "audio/ogg",
        "mp4" | "m4v" => "video/mp4",
        "webm" => "video/webm",
        "pdf" => "application/pdf",
        "rtf" => "application/rtf",
        "doc" => "application/msword",
        "xls" => "application/vnd.ms-excel",
        "ppt" => "application/vnd.ms-powerpoint",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "parquet" => "application/vnd.apache.parquet",
        "sqlite" | "sqlite3" | "db" => "application/vnd.sqlite3",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "epub" => "application/epub+zip",
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_extension_decides_the_media_type() {
        assert_eq!(of("a/b.d/plot.PNG"), "image/png");
        assert_eq!(of("table.csv"), "text/csv; charset=utf-8");
        for unknown in ["", "plain", ".env", "a.d/plain", "x.weird", "x.", "a.p\u{e4}"] {
            assert_eq!(of(unknown), UNKNOWN, "{unknown:?}");
        }
        assert_eq!(extension("archive.tar.gz"), Some("gz"));
        assert_eq!(extension("a.b\"c"), None);
    }
}
