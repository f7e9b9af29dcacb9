//! The API for a person: one page, made from the same description.

use std::fmt::Write;

use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
    padding:0 1rem}code{font:14px ui-monospace,monospace}td{padding:.3rem 1rem .3rem 0;\
    vertical-align:top}";

pub fn of(description: &OpenApi) -> String {
    let mut rows = String::new();
    for (path, item) in &description.paths.paths {
        for (method, operation) in operations(item) {
            let summary = operation.summary.as_deref().unwrap_or_default();
            let row = format!(
                "<tr><td><code>{method}</code></td><td><code>{}</code></td><td>{}</td></tr>",
                escaped(path),
                escaped(summary)
            );
            // A text takes whatever is written to it.
            writeln!(rows, "{row}").ok();
        }
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>tare</title>\
         <style>{STYLE}</style><h1>tare</h1><p>{}. <a href=/openapi.json>openapi.json</a> has \
         every field.</p><table>{rows}</table></html>",
        escaped(description.info.description.as_deref().unwrap_or_default()),
    )
}

fn operations(item: &PathItem) -> impl Iterator<Item = (&'static str, &Operation)> {
    let all =
        [("GET", &item.get), ("PUT", &item.put), ("POST", &item.post), ("DELETE", &item.delete)];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
