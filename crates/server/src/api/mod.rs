//! The native API: routes, handlers and JSON types. Handlers decide nothing: they turn requests into
//! calls of [`crate::work`], and results into JSON.

mod boxes;
mod events;
mod exec;
mod files;
mod lifecycle;
mod logs;
mod openapi;
mod operate;
mod processes;
mod requested;
mod route_table;
mod run;
mod stream;
mod terminal;

use std::sync::Arc;

use axum::http::{Method, Uri};
use axum::response::Html;
use axum::routing::get;
use axum::{Router, middleware};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::route_table::RouteTable;
use crate::app::AppState;
use crate::http::{auth, request_log};

/// Routes about the whole host and the server.
fn for_operators() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(operate::audit))
        .routes(routes!(operate::sweep))
        .routes(routes!(operate::metrics))
        .routes(routes!(operate::reload))
        .route_layer(middleware::from_fn(auth::admins_only))
}

/// All routes: those of the native API, and those of `others`, which have their own ways to
/// authenticate.
pub fn router(app: &AppState, others: Router<AppState>) -> Router {
    let (routes, api) = OpenApiRouter::with_openapi(openapi::description())
        .routes(routes!(run::run))
        .routes(routes!(boxes::create, boxes::list))
        .routes(routes!(boxes::inspect, boxes::remove))
        .routes(routes!(lifecycle::stop))
        .routes(routes!(lifecycle::pause))
        .routes(routes!(lifecycle::resume))
        .routes(routes!(lifecycle::lease))
        .routes(routes!(lifecycle::update))
        .routes(routes!(lifecycle::rename))
        .routes(routes!(lifecycle::kill))
        .routes(routes!(boxes::stats))
        .routes(routes!(boxes::receipt))
        .routes(routes!(boxes::explain))
        .routes(routes!(lifecycle::wait))
        .routes(routes!(exec::exec))
        .routes(routes!(terminal::open))
        .routes(routes!(processes::inspect))
        .routes(routes!(processes::output))
        .routes(routes!(processes::stdin))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::resize))
        .routes(routes!(files::get, files::put, files::delete))
        .routes(routes!(logs::logs))
        .routes(routes!(events::events))
        .routes(routes!(operate::health))
        .routes(routes!(operate::ready))
        .merge(for_operators())
        .split_for_parts();
    let api = openapi::complete(api);
    let page = openapi::page(&api);
    let routes_known = Arc::new(RouteTable::of(&api));
    let methods_known = Arc::clone(&routes_known);
    routes
        // The box's root: `{*path}` does not match an empty path.
        .route("/v1/boxes/{id}/files/", get(files::get))
        .route("/openapi.json", get(async move || axum::Json(api)))
        .route("/", get(async move || Html(page)))
        .fallback(async move |method: Method, uri: Uri| routes_known.no_route(&method, uri.path()))
        .method_not_allowed_fallback(async move |method: Method, uri: Uri| {
            methods_known.wrong_method(&method, uri.path())
        })
        .layer(middleware::from_fn_with_state(app.http.clone(), auth::layer))
        .merge(others)
        .layer(middleware::from_fn_with_state(app.http.clone(), request_log::layer))
        .with_state(app.clone())
}
