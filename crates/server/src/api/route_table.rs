//! The routes of the API, for the errors of requests that no route serves.

use axum::http::Method;
use utoipa::openapi::OpenApi;

use crate::api::openapi::methods;
use crate::error::ServiceError;

/// How many similar routes an error names.
const SIMILAR_MAX: usize = 3;
/// How much of a path an error shows.
const SHOWN_MAX: usize = 100;

/// Every path of the description, with its methods.
#[derive(Debug)]
pub struct RouteTable(Vec<(String, Vec<&'static str>)>);

impl RouteTable {
    pub fn of(api: &OpenApi) -> Self {
        let paths = api.paths.paths.iter();
        Self(paths.map(|(path, item)| (path.clone(), methods(item).collect())).collect())
    }

    pub fn no_route(&self, method: &Method, path: &str) -> ServiceError {
        let message = format!("there is no route {method} {}", shown(path));
        let similar = self.similar(path).join(", ");
        let hint = match similar.as_str() {
            "" => "GET /openapi.json describes all routes".to_owned(),
            similar => format!("there are {similar}; GET /openapi.json describes all routes"),
        };
        ServiceError::not_found("no_such_route", message).with_hint(hint)
    }

    pub fn wrong_method(&self, method: &Method, path: &str) -> ServiceError {
        let mut error = ServiceError::wrong_method();
        error.message = format!("the route {} does not support {method}", shown(path));
        let found = self.0.iter().find(|(route, _)| distance(route, path) == Some(0));
        match found {
            Some((_, methods)) => error.with_hint(format!("use {}", methods.join(" or "))),
            None => error.with_hint("GET /openapi.json lists the methods of each route"),
        }
    }

    /// The routes that differ least from the path, as `METHOD PATH`.
    fn similar(&self, path: &str) -> Vec<String> {
        let near = self.0.iter().filter_map(|(route, methods)| {
            Some(((distance(route, path)?, different_letters(route, path)), route, methods))
        });
        let mut near: Vec<_> = near.collect();
        near.sort_by_key(|(difference, _, _)| *difference);
        let lines = near.into_iter().take(SIMILAR_MAX);
        lines.map(|(_, route, methods)| format!("{} {route}", methods.join("|"))).collect()
    }
}

/// Returns how many names of the path differ from those of the route. `None` if no names are alike except
/// for a parameter and the version.
fn distance(route: &str, path: &str) -> Option<usize> {
    let ((route_version, route), (path_version, path)) = (names(route), names(path));
    let is_parameter = |name: &str| name.starts_with('{');
    let pairs = || route.iter().zip(&path);
    let is_alike = pairs().any(|(name, other)| !is_parameter(name) && are_alike(name, other));
    let different = pairs().filter(|(name, other)| !is_parameter(name) && name != other).count();
    let other_version = usize::from(route_version != path_version);
    is_alike.then(|| different + other_version + route.len().abs_diff(path.len()))
}

/// Returns the version at the beginning of a path, and the names after it.
fn names(path: &str) -> (Option<&str>, Vec<&str>) {
    let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
    let is_version =
        |name: &&str| name.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
    (names.next_if(is_version), names.collect())
}

/// Whether one name begins with the other: `run` and `runs`, `box` and `boxes`.
fn are_alike(name: &str, other: &str) -> bool {
    const LETTERS_MIN: usize = 3;
    let (short, long) = if name.len() < other.len() { (name, other) } else { (other, name) };
    short.len() >= LETTERS_MIN && long.starts_with(short)
}

/// Returns how many letters of the last name are different from those of the route.
fn different_letters(route: &str, path: &str) -> usize {
    let last = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
    let (route, path) = (last(route), last(path));
    let shared = route.chars().zip(path.chars()).take_while(|(one, other)| one == other).count();
    route.len().max(path.len()) - shared
}

fn shown(path: &str) -> String {
    let mut shown: String = path.chars().take(SHOWN_MAX).collect();
    if shown.len() < path.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> RouteTable {
        let all = [
            ("/v1/boxes", vec!["GET", "POST"]),
            ("/v1/boxes/{id}", vec!["GET", "DELETE"]),
            ("/v1/boxes/{id}/stop", vec!["POST"]),
            ("/v1/run", vec!["POST"]),
        ];
        RouteTable(all.map(|(path, methods)| (path.to_owned(), methods)).to_vec())
    }

    fn hint(error: &ServiceError) -> String {
        format!("{:?}", error.hint)
    }

    #[test]
    fn a_missing_route_is_named_with_those_that_are_similar() {
        let error = table().no_route(&Method::POST, "/v1/boxes/web/stops");
        assert_eq!(error.message, "there is no route POST /v1/boxes/web/stops");
        let said = hint(&error);
        assert!(said.contains("POST /v1/boxes/{id}/stop"), "{said}");
        assert!(!said.contains("/v1/run"), "{said}");
        for path in ["/v1/runs", "/run", "/v2/run"] {
            let said = hint(&table().no_route(&Method::POST, path));
            assert!(said.contains("POST /v1/run;"), "{path}: {said}");
        }
        let said = hint(&table().no_route(&Method::GET, "/v1/box"));
        assert!(said.contains("GET|POST /v1/boxes,"), "{said}");
        let error = table().no_route(&Method::GET, "/v2");
        assert!(hint(&error).contains("GET /openapi.json"), "{error:?}");
        let long = table().no_route(&Method::GET, &format!("/{}", "x".repeat(10_000)));
        assert!(long.message.len() < 200);
    }

    #[test]
    fn a_wrong_method_is_answered_with_the_right_ones() {
        let error = table().wrong_method(&Method::PUT, "/v1/boxes/web");
        assert_eq!(error.message, "the route /v1/boxes/web does not support PUT");
        assert!(hint(&error).contains("GET or DELETE"), "{error:?}");
    }
}
