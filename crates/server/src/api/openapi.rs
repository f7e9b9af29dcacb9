//! The OpenAPI description: the parts that all routes share, and the page that lists the routes.

use std::fmt::Write;

use serde::Deserialize;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder};
use utoipa::{IntoParams, OpenApi as _};

use crate::http::error::ErrorBody;

/// Fields of `env` and `labels`.
pub const VARIABLES_MAX: usize = 10_000;
/// Volumes of one box. The engine allows a few more, for tare's own.
pub const VOLUMES_MAX: usize = 100;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "tare",
        description = "Runs untrusted code, and leaves nothing behind"
    ),
    components(schemas(ErrorBody)),
    tags(
        (name = "run", description = "One command in its own box"),
        (name = "boxes", description = "Boxes that outlive their request"),
        (name = "execs", description = "Processes in boxes"),
        (name = "files", description = "Files of boxes"),
        (name = "server", description = "The server itself"),
    )
)]
struct Description;

/// The box that a path names.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct BoxPath {
    /// An id, the beginning of one, or a name
    pub id: String,
}

/// The detached process that a path names.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ExecPath {
    /// An id, the beginning of one, or a name
    pub id: String,
    /// The id of a detached process
    pub exec: String,
}

pub fn description() -> OpenApi {
    Description::openapi()
}

/// Adds to the description what all routes share.
pub fn complete(mut api: OpenApi) -> OpenApi {
    let paths = std::mem::take(&mut api.paths.paths);
    for (path, mut item) in paths {
        for operation in operations_mut(&mut item) {
            add_errors(operation);
        }
        // `{*path}` is the router's form of a parameter that contains slashes.
        api.paths.paths.insert(path.replace("{*", "{"), item);
    }
    api
}

/// Adds the errors that every route can have: a wrong key, too many connections, a server that stops.
fn add_errors(operation: &mut Operation) {
    for status in ["4XX", "5XX"] {
        let body = Ref::from_schema_name("ErrorBody");
        let content = ContentBuilder::new().schema(Some(body)).build();
        let response = ResponseBuilder::new().content("application/json", content);
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_owned()).or_insert_with(|| response.build().into());
    }
}

fn operations_mut(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
    all.into_iter().filter_map(Option::as_mut)
}

fn operations(item: &PathItem) -> impl Iterator<Item = (&'static str, &Operation)> {
    let all =
        [("GET", &item.get), ("PUT", &item.put), ("POST", &item.post), ("DELETE", &item.delete)];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

pub fn methods(item: &PathItem) -> impl Iterator<Item = &'static str> {
    operations(item).map(|(method, _)| method)
}

/// The routes as a page for people.
pub fn page(api: &OpenApi) -> String {
    let mut routes = String::new();
    for (path, item) in &api.paths.paths {
        for (method, operation) in operations(item) {
            let summary = operation.summary.as_deref().unwrap_or_default();
            // Writing to a string cannot fail.
            writeln!(routes, "<li><code>{method} {path}</code> {summary}").ok();
        }
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>tare</title><h1>tare</h1>\
         <p><a href=/openapi.json>openapi.json</a> has every field.<ul>\n{routes}</ul></html>"
    )
}
