//! The edge with small routers of its own: every refusal is JSON with a code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;
use axum::http::HeaderValue;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::Value;
use tower::ServiceExt;

#[derive(Deserialize)]
#[allow(dead_code, reason = "only parsed")]
struct Body_ {
    n: u32,
}

async fn ask(request: axum::http::request::Builder, body: &'static str) -> (u16, String) {
    let router = Router::<()>::new()
        .route("/json", post(|_: extract::Json<Body_>| async {}))
        .route("/query", get(|_: extract::Query<Body_>| async {}))
        .route("/path/{name}", get(|_: axum::extract::Path<String>| async {}))
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(100));
    let response = router.oneshot(request.body(Body::from(body)).expect("valid")).await.expect("infallible");
    let response = RequestIds::new(7).complete(response);
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.expect("short");
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if status >= 400 {
        assert!(body["error"].is_string(), "{body}");
        assert_eq!(body["requestId"], "00000007-1");
    }
    (status, body["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn refusals_have_a_status_and_a_code() {
    let json = || axum::http::Request::post("/json").header("content-type", "application/json");
    let check = async |request, body, status: u16, code: &str| {
        assert_eq!(ask(request, body).await, (status, code.to_owned()), "{body}");
    };
    check(json(), r#"{"n":1}"#, 200, "").await;
    check(json(), "{", 400, "invalid_json").await;
    check(json(), r#"{"n":-1}"#, 400, "invalid_body").await;
    check(json(), "{}", 400, "invalid_body").await;
    let long = r#"{"n":1,"long":"                                                                                        "}"#;
    check(json(), long, 413, "too_large").await;
    check(axum::http::Request::post("/json"), r#"{"n":1}"#, 415, "not_json").await;
    check(axum::http::Request::get("/query?n=1"), "", 200, "").await;
    check(axum::http::Request::get("/query?n=x"), "", 400, "invalid_query").await;
    check(axum::http::Request::get("/query"), "", 400, "invalid_query").await;
    check(axum::http::Request::get("/path/x"), "", 200, "").await;
    check(axum::http::Request::get("/path/%ff"), "", 400, "invalid_request").await;
    check(axum::http::Request::get("/json"), "", 405, "method_not_allowed").await;
    check(axum::http::Request::get("/nothing"), "", 404, "no_such_route").await;
}

#[tokio::test]
async fn a_panic_costs_its_own_request_only() {
    let router = Router::<()>::new()
        .route(
            "/panic",
            get(|| async {
                if true {
                    panic!("a broken invariant, on purpose")
                }
            }),
        )
        .route("/fine", get(|| async {}));
    for (path, status) in [("/panic", 500), ("/fine", 200)] {
        let request = axum::http::Request::get(path).body(Body::empty()).expect("valid");
        let response = surviving(router.clone().oneshot(request)).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn completing_keeps_other_headers() {
    let mut response = method_not_allowed(Method::GET, Uri::from_static("/x")).await.into_response();
    response.headers_mut().insert("allow", HeaderValue::from_static("POST"));
    let response = RequestIds::new(0).complete(response);
    assert_eq!(response.headers()["allow"], "POST");
    assert_eq!(response.headers()["x-request-id"], "00000000-1");
}

#[test]
fn pages_of_other_origins_are_told_apart() {
    let check = |host: &str, origin: Option<&str>, is_loopback: bool, expected: bool| {
        let edge = Edge {
            request_ids: RequestIds::new(0),
            body_bytes_max: 100,
            is_loopback,
            advertised_host: Some("lb.example".to_owned()),
        };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().expect("valid"));
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().expect("valid"));
        }
        let found = is_own_page(&headers, &Uri::from_static("/"), &edge);
        assert_eq!(found, expected, "{host} {origin:?} {is_loopback}");
    };
    check("127.0.0.1:8080", None, true, true);
    check("127.0.0.1:8080", Some("http://127.0.0.1:8080"), true, true);
    check("localhost:8080", Some("http://localhost:8080"), true, true);
    check("[::1]:8080", Some("http://[::1]:8080"), true, true);
    check("127.0.0.1:8080", Some("http://127.0.0.1:8081"), true, false);
    check("127.0.0.1:8080", Some("https://evil.example"), true, false);
    check("127.0.0.1:8080", Some("null"), true, false);
    // A foreign name that points to this machine.
    check("evil.example:8080", Some("http://evil.example:8080"), true, false);
    check("lb.example:8080", Some("http://lb.example:8080"), true, true);
    check("other.example", Some("https://other.example"), false, true);
    check("other.example", Some("https://evil.example"), false, false);
}

/// Returns a path with nothing in its braces: what they hold is named differently in code and documentation.
fn nameless(path: &str) -> String {
    let mut parts = path.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |before, part| before + "{" + part.find('}').map_or("", |at| &part[at..]))
}

/// Returns each call that a source makes a route of, for example `GET /groups/{}`. A router does not tell its routes.
fn calls_of(source: &str) -> Vec<String> {
    let mut calls = Vec::new();
    for route in source.split(".route(").skip(1) {
        // `"/path", get(one).put(other))`, or the name of a constant for the path.
        let (path, rest) = route.split_once(',').expect("a path, and what answers there");
        let path = path.trim();
        let constant = format!("const {path}: &str = ");
        let literal = source.split_once(&constant).map_or(path, |(_, value)| value);
        let path = literal.trim_start_matches('"').split('"').next().unwrap_or_default();
        let methods = rest.split("))").next().unwrap_or_default();
        for method in methods.split('.').filter_map(|method| method.trim().split('(').next()) {
            calls.push(format!("{} {}", method.to_uppercase(), nameless(path)));
        }
    }
    calls
}

/// Returns the calls of every source of this room.
fn calls() -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the sources are there") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("http/tests.rs") {
                calls.extend(calls_of(&fs::read_to_string(&path).expect("a source is text")));
            }
        }
    }
    calls
}

#[test]
fn every_call_is_in_the_docs() {
    let calls = calls();
    assert!(calls.len() > 50, "{calls:?}");
    let docs = include_str!("../../../docs/HTTP.md");
    let (table, _) = docs.split_once("## What all calls share").expect("the table of calls ends there");
    let mut told: BTreeSet<String> = docs.split('`').map(nameless).collect();
    for heading in docs.lines().filter_map(|line| line.strip_prefix("### ")) {
        assert!(calls.contains(&nameless(heading)), "there is no call {heading}");
        told.insert(nameless(heading));
        let anchor = heading.to_lowercase().replace(' ', "-").replace(['/', '{', '}'], "");
        assert!(table.contains(&format!("](#{anchor})")), "{heading} is not in the table of calls");
    }
    let untold: Vec<_> = calls.difference(&told).collect();
    assert!(untold.is_empty(), "docs/HTTP.md does not tell of {untold:?}");
}
