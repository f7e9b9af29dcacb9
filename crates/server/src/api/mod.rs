//! The native API: its routes, and their description.

pub mod boxes;
mod cursor;
pub mod events;
pub mod exec;
pub mod files;
pub mod health;
pub mod logs;
pub mod operating;
pub mod processes;
pub mod proof;
pub mod run;
pub mod terminal;
pub mod watching;

use axum::http::StatusCode;
use axum::response::Html;
use axum::routing::get;
use axum::{Router, middleware};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::error::ServiceError;
use crate::http::auth;
use crate::http::page;
use crate::http::request_log;
use crate::librechat;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "tare",
        description = "Runs code that nobody trusts, and leaves nothing behind"
    ),
    tags(
        (name = "run", description = "One command in a box of its own"),
        (name = "boxes", description = "Boxes that live on"),
        (name = "execs", description = "Processes in boxes"),
        (name = "files", description = "Files of boxes"),
        (name = "server", description = "The server itself"),
    )
)]
struct Description;

/// Every route there is.
pub fn router(app: App) -> Router {
    let (routes, description) = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(run::run))
        .routes(routes!(boxes::create, boxes::list))
        .routes(routes!(boxes::inspect, boxes::remove))
        .routes(routes!(boxes::stop))
        .routes(routes!(boxes::pause))
        .routes(routes!(boxes::resume))
        .routes(routes!(boxes::lease))
        .routes(routes!(exec::exec))
        .routes(routes!(terminal::open))
        .routes(routes!(processes::inspect))
        .routes(routes!(processes::stream_of))
        .routes(routes!(processes::stdin))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::resize))
        .routes(routes!(files::get, files::put, files::delete))
        .routes(routes!(logs::logs))
        .routes(routes!(watching::stats))
        .routes(routes!(watching::wait))
        .routes(routes!(events::events))
        .routes(routes!(proof::audit))
        .routes(routes!(proof::sweep))
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
        .routes(routes!(operating::metrics))
        .routes(routes!(operating::reload))
        .split_for_parts();
    let description = in_openapi(description);
    let page = page::of(&description);
    routes
        // The box's root, of which no rest of a path is left.
        .route("/v1/boxes/{id}/files/", get(files::get))
        .route("/openapi.json", get(async move || axum::Json(description)))
        .route("/", get(async move || Html(page)))
        .fallback(async || {
            ServiceError::not_found("no_such_route", "there is nothing here")
                .with_hint("GET /openapi.json describes what there is")
        })
        .method_not_allowed_fallback(async || {
            let message = "this route does not have that method";
            let error = ServiceError::invalid("method_not_allowed", message)
                .with_hint("GET /openapi.json describes what can");
            (StatusCode::METHOD_NOT_ALLOWED, error)
        })
        .layer(middleware::from_fn_with_state(app.clone(), auth::layer))
        // It has its own ways to say who asks.
        .merge(librechat::router(&app))
        .layer(middleware::from_fn_with_state(app.clone(), request_log::layer))
        .with_state(app)
}

/// The rest of a path has another name there than in a router.
fn in_openapi(mut description: utoipa::openapi::OpenApi) -> utoipa::openapi::OpenApi {
    let paths = std::mem::take(&mut description.paths.paths);
    let renamed = |(path, item): (String, _)| (path.replace("{*", "{"), item);
    description.paths.paths = paths.into_iter().map(renamed).collect();
    description
}
