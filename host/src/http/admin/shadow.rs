//! `/admin/policies/{name}/shadow` and `/admin/shadows`: a version answers along with the live one, to be compared.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use fulcrum_coordinator::groups::check_name;
use fulcrum_policy::shadow::{self, Report, Summary, Wanted};
use serde::Serialize;
use serde_json::{Map, Value};

use super::order;
use crate::app::Services;
use crate::http::Result;
use crate::http::error::Error;
use crate::http::extract::Json;
use crate::http::instances::parameter;

pub(super) fn routes() -> Router<Services> {
    Router::new()
        .route("/admin/shadows", get(list))
        .route("/admin/policies/{name}/shadow", get(show).post(start).delete(stop))
}

#[derive(Serialize)]
struct Overview {
    shadows: Vec<Summary>,
}

async fn list(State(services): State<Services>) -> Json<Overview> {
    Json(Overview { shadows: services.shadows.list() })
}

async fn start(
    State(services): State<Services>,
    name: std::result::Result<Path<String>, PathRejection>,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Report>> {
    let (name, wanted) = (parameter(name)?, wanted(&body)?);
    order(services, move |services| services.shadows.start(&name, &wanted))
        .await?
        .map(Json)
        .map_err(|error| refused(&error))
}

async fn show(
    State(services): State<Services>,
    name: std::result::Result<Path<String>, PathRejection>,
) -> Result<Json<Report>> {
    services.shadows.report(&parameter(name)?).map(Json).map_err(|error| refused(&error))
}

async fn stop(
    State(services): State<Services>,
    name: std::result::Result<Path<String>, PathRejection>,
) -> Result<Json<Report>> {
    let name = parameter(name)?;
    order(services, move |services| services.shadows.stop(&name))
        .await?
        .map(Json)
        .map_err(|error| refused(&error))
}

/// Reads what the shadow should answer; nothing means all it can.
fn wanted(body: &Map<String, Value>) -> Result<Wanted> {
    let refuse = |message: String| Error::new(StatusCode::BAD_REQUEST, "invalid_body", message);
    let mut wanted = Wanted::default();
    for (key, value) in body {
        match (key.as_str(), value) {
            ("scoring", Value::Bool(asked)) => wanted.scoring = Some(*asked),
            ("claiming", Value::Bool(asked)) => wanted.claiming = Some(*asked),
            ("groups", Value::Array(groups)) => {
                for group in groups {
                    let Some(group) = group.as_str() else {
                        return Err(refuse("\"groups\" must hold names of groups".to_owned()));
                    };
                    check_name("group", group)?;
                    wanted.groups.insert(group.to_owned());
                }
            }
            ("scoring" | "claiming", _) => return Err(refuse(format!("{key:?} must be true or false"))),
            ("groups", _) => return Err(refuse("\"groups\" must be a list of names".to_owned())),
            _ => {
                return Err(refuse(format!(
                    "unknown key {key:?}, expected \"scoring\", \"claiming\" or \"groups\""
                )));
            }
        }
    }
    Ok(wanted)
}

fn refused(error: &shadow::Error) -> Error {
    let (status, code) = match error {
        shadow::Error::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_policy"),
        shadow::Error::NotRunning(_) => (StatusCode::NOT_FOUND, "no_shadow"),
        shadow::Error::Unusable { .. } => (StatusCode::CONFLICT, "unusable_policy"),
        shadow::Error::WrongRole { .. } => (StatusCode::CONFLICT, "wrong_role"),
        shadow::Error::Serving(_) => (StatusCode::CONFLICT, "already_serves"),
        shadow::Error::TooMany { .. } => (StatusCode::CONFLICT, "too_many_shadows"),
        shadow::Error::Nothing | shadow::Error::Groups | shadow::Error::TooManyGroups { .. } => {
            (StatusCode::BAD_REQUEST, "invalid_body")
        }
        shadow::Error::Thread(error) => {
            tracing::error!(%error, "cannot start the thread of a shadow");
            return Error::internal();
        }
    };
    Error::new(status, code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bodies_are_checked() {
        let check = |body: Value, expected: std::result::Result<Wanted, &str>| {
            let found = wanted(body.as_object().expect("an object"));
            let found = found.as_ref().map_err(Error::code);
            assert_eq!(found, expected.as_ref().map_err(|code| *code), "{body}");
        };
        check(json!({}), Ok(Wanted::default()));
        let both = Wanted { scoring: Some(true), claiming: Some(false), ..Wanted::default() };
        check(json!({ "scoring": true, "claiming": false }), Ok(both));
        let groups = ["a".to_owned(), "b".to_owned()].into();
        check(json!({ "groups": ["b", "a", "b"] }), Ok(Wanted { groups, ..Wanted::default() }));
        check(json!({ "scoring": "yes" }), Err("invalid_body"));
        check(json!({ "group": ["a"] }), Err("invalid_body"));
        check(json!({ "groups": "a" }), Err("invalid_body"));
        check(json!({ "groups": [1] }), Err("invalid_body"));
        check(json!({ "groups": [""] }), Err("invalid_value"));
    }
}
