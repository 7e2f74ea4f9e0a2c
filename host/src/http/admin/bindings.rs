//! `/admin/bindings`: which policy serves what.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use fulcrum_coordinator::groups::check_name;
use fulcrum_policy::Gone;
use fulcrum_policy::manager::BindError;
use fulcrum_policy::status::{Bindings, Canary, Rebind};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{blocking, order};
use crate::app::Services;
use crate::http::Result;
use crate::http::error::Error;
use crate::http::extract::Json;

pub(super) fn routes() -> Router<Services> {
    Router::new().route("/admin/bindings", get(bindings).put(bind).delete(unbind))
}

/// Longest wait of a change of bindings for the proofs of the files it names: a large component compiles for seconds.
const PROOF_PATIENCE: Duration = Duration::from_secs(30);

async fn bindings(State(services): State<Services>) -> Json<Bindings> {
    Json(services.policies.bindings())
}

async fn bind(
    State(services): State<Services>,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Bindings>> {
    let rebind = rebind(&body)?;
    let (reply, proven) = oneshot::channel();
    let (policies, wanted) = (services.policies.clone(), rebind.clone());
    blocking(move || policies.when_proven(&wanted, |()| reply.send(()).unwrap_or_default())).await?;
    // Late or not, the change itself says how they stand.
    tokio::select! {
        _ = timeout(PROOF_PATIENCE, proven) => {}
        () = services.lifecycle.drained() => {}
    }
    order(services, move |services| services.policies.bind(rebind))
        .await?
        .map(Json)
        .map_err(|error| bind_error(&error))
}

async fn unbind(State(services): State<Services>) -> Result<Json<Bindings>> {
    order(services, move |services| services.policies.unbind())
        .await?
        .map(Json)
        .map_err(|error| bind_error(&error))
}

/// Reads which bindings the body changes; a group with `null` loses its own policy.
fn rebind(body: &Map<String, Value>) -> Result<Rebind> {
    let refuse = |message: String| Error::new(StatusCode::BAD_REQUEST, "invalid_body", message);
    let name = |key: &str, value: &Value| {
        value.as_str().map(str::to_owned).ok_or_else(|| refuse(format!("{key} must be the name of a policy")))
    };
    let mut rebind = Rebind::default();
    for (key, value) in body {
        match (key.as_str(), value) {
            ("scoring", _) => rebind.scoring = Some(name("\"scoring\"", value)?),
            ("claiming", _) => rebind.claiming = Some(name("\"claiming\"", value)?),
            ("groups", Value::Object(groups)) => {
                for (group, value) in groups {
                    check_name("group", group)?;
                    let policy =
                        if value.is_null() { None } else { Some(name("each group's value", value)?) };
                    rebind.groups.insert(group.clone(), policy);
                }
            }
            ("groups", _) => return Err(refuse("\"groups\" must be an object".to_owned())),
            ("canary", Value::Null) => rebind.canary = Some(None),
            ("canary", value) => rebind.canary = Some(Some(canary(value)?)),
            _ => {
                return Err(refuse(format!(
                    "unknown key {key:?}, expected \"scoring\", \"claiming\", \"groups\" or \"canary\""
                )));
            }
        }
    }
    Ok(rebind)
}

/// Reads who shall decide for a share of the clients.
fn canary(value: &Value) -> Result<Canary> {
    let message =
        "\"canary\" must be null or {\"policy\": a name, \"share\": a number above 0 and at most 1}";
    let refuse = || Error::new(StatusCode::BAD_REQUEST, "invalid_body", message);
    let fields = value.as_object().filter(|fields| fields.len() == 2).ok_or_else(refuse)?;
    let policy = fields.get("policy").and_then(Value::as_str).ok_or_else(refuse)?;
    let share = fields.get("share").and_then(Value::as_f64).filter(|share| *share > 0.0 && *share <= 1.0);
    Ok(Canary { policy: policy.to_owned(), share: share.ok_or_else(refuse)? })
}

pub(super) fn bind_error(error: &BindError) -> Error {
    let (status, code) = match error {
        BindError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_policy"),
        BindError::Removed(_) => (StatusCode::CONFLICT, "removed_policy"),
        BindError::OnlyCandidate(_) => (StatusCode::CONFLICT, "only_candidate"),
        BindError::Serves(_) => (StatusCode::CONFLICT, "already_serves"),
        BindError::Share => (StatusCode::BAD_REQUEST, "invalid_body"),
        BindError::Unsaved { .. } => (StatusCode::SERVICE_UNAVAILABLE, "state_unwritable"),
        BindError::WrongRole { .. } => (StatusCode::CONFLICT, "wrong_role"),
        BindError::TooMany { .. } => (StatusCode::CONFLICT, "too_many_bindings"),
        BindError::Unusable { .. } => (StatusCode::CONFLICT, "unusable_policy"),
        BindError::Gone(gone) => gone_code(*gone),
    };
    Error::new(status, code, error.to_string())
}

/// Says how an order is answered that the task of the policies did not answer.
pub(super) fn gone_code(gone: Gone) -> (StatusCode, &'static str) {
    match gone {
        Gone::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        Gone::Crashed => (StatusCode::INTERNAL_SERVER_ERROR, "policies_crashed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bodies_of_bindings_are_checked() {
        let check = |body: Value, expected: std::result::Result<Rebind, &str>| {
            let found = rebind(body.as_object().expect("an object"));
            assert_eq!(
                found.as_ref().map_err(Error::code),
                expected.as_ref().map_err(|code| *code),
                "{body}"
            );
        };
        let name = |name: &str| Some(name.to_owned());
        check(json!({}), Ok(Rebind::default()));
        let both = Rebind { scoring: name("weighted"), claiming: name("sticky"), ..Rebind::default() };
        check(json!({ "scoring": "weighted", "claiming": "sticky" }), Ok(both));
        let groups = [("a".to_owned(), name("greedy")), ("b".to_owned(), None)].into();
        check(json!({ "groups": {"a": "greedy", "b": null} }), Ok(Rebind { groups, ..Rebind::default() }));
        let canary = |canary| Rebind { canary: Some(canary), ..Rebind::default() };
        let tenth = Canary { policy: "mine".to_owned(), share: 0.1 };
        check(json!({ "canary": {"policy": "mine", "share": 0.1} }), Ok(canary(Some(tenth))));
        check(json!({ "canary": null }), Ok(canary(None)));
        for bad in [json!({}), json!("mine"), json!({"policy": "mine"}), json!({"policy": 1, "share": 1})] {
            check(json!({ "canary": bad }), Err("invalid_body"));
        }
        for share in [json!(0), json!(-0.1), json!(1.1), json!("0.5"), json!(null)] {
            check(json!({ "canary": {"policy": "mine", "share": share} }), Err("invalid_body"));
        }
        check(json!({ "scoring": 1 }), Err("invalid_body"));
        check(json!({ "scorin": "weighted" }), Err("invalid_body"));
        check(json!({ "groups": [] }), Err("invalid_body"));
        check(json!({ "groups": {"a": 1} }), Err("invalid_body"));
    }
}
