//! `/admin/policies/{name}`: upload, removal, promotion and the way back.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::routing::{post, put};
use fulcrum_coordinator::groups::{self, check_name};
use fulcrum_policy::lifecycle::{self, Promote, TriedOn};
use fulcrum_policy::status::Status;
use serde::Serialize;
use serde_json::{Map, Value};

use super::bindings::{bind_error, gone_code};
use super::{in_turn, order, upload};
use crate::app::Services;
use crate::http::Result;
use crate::http::error::Error;
use crate::http::extract::{Json, Query};
use crate::http::instances::{invalid_query, parameter};
use crate::http::query;

/// When an order that found no room may find some.
const RETRY_AFTER_SECS: u32 = 5;

pub(super) fn routes() -> Router<Services> {
    Router::new()
        .route("/admin/policies/{name}", put(push).delete(remove))
        .route("/admin/policies/{name}/promote", post(promote))
        .route("/admin/policies/{name}/rollback", post(roll_back))
}

type Name = std::result::Result<Path<String>, PathRejection>;
type Pairs = Query<Vec<(String, String)>>;

/// What is left of a name.
#[derive(Serialize)]
struct Left {
    name: String,
    /// Null if nothing at all is kept of it.
    status: Option<Status>,
}

async fn push(
    State(services): State<Services>,
    name: Name,
    Query(query): Pairs,
    request: Request,
) -> Result<Json<Status>> {
    let name = parameter(name)?;
    expect_only(&query, &["candidate"])?;
    let is_candidate = flag(&query, "candidate")?;
    let (mut upload, turn) = upload::read(&services, request).await?;
    upload.is_candidate = is_candidate;
    let pushed = {
        let (name, turns) = (name.clone(), services.pushes.clone());
        in_turn(turns, services.clone(), move |services| {
            let pushed = services.policies.push(&name, upload);
            drop(turn);
            pushed
        })
    };
    pushed.await?.map_err(|error| refused(&error))?;
    status(&services, name).await
}

async fn remove(State(services): State<Services>, name: Name, Query(query): Pairs) -> Result<Json<Left>> {
    let name = parameter(name)?;
    expect_only(&query, &["candidate", "force"])?;
    let (is_candidate, force) = (flag(&query, "candidate")?, flag(&query, "force")?);
    let own_groups = match is_candidate || force {
        true => Vec::new(),
        false => own_groups(&services, &name).await?,
    };
    let wanted = name.clone();
    let removed = order(services.clone(), move |services| match is_candidate {
        true => services.policies.drop_candidate(&wanted),
        false => services.policies.remove(&wanted, force, own_groups),
    });
    removed.await?.map_err(|error| refused(&error))?;
    let status = find(&services, &name);
    Ok(Json(Left { name, status }))
}

async fn promote(
    State(services): State<Services>,
    name: Name,
    Query(query): Pairs,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Status>> {
    let name = parameter(name)?;
    expect_only(&query, &[])?;
    let mut wish = wish(&body)?;
    let mut running = services.shadows.running().into_iter();
    if let Some((_, scope)) = running.find(|(shadow, _)| *shadow == name) {
        wish.tried_on = TriedOn {
            scoring: scope.scoring,
            claiming: scope.claiming && scope.groups.is_empty(),
            groups: scope.groups.into_iter().filter(|_| scope.claiming).collect(),
        };
    }
    wish.own_groups = own_groups(&services, &name).await?;
    for group in &wish.groups {
        expect_no_own_policy(&services, group).await?;
    }
    let wanted = name.clone();
    let promoted = order(services.clone(), move |services| {
        services.policies.promote(&wanted, wish)?;
        services.shadows.promoted(&wanted);
        Ok(())
    });
    promoted.await?.map_err(|error| refused(&error))?;
    status(&services, name).await
}

async fn roll_back(
    State(services): State<Services>,
    name: Name,
    Query(query): Pairs,
    Json(body): Json<Map<String, Value>>,
) -> Result<Json<Left>> {
    let name = parameter(name)?;
    expect_only(&query, &[])?;
    let to = destination(&body)?;
    let wanted = name.clone();
    let rolled_back =
        order(services.clone(), move |services| services.policies.roll_back(&wanted, to.as_deref())).await?;
    rolled_back.map_err(|error| refused(&error))?;
    let status = find(&services, &name);
    Ok(Json(Left { name, status }))
}

/// Returns the groups that name a policy in their own settings.
async fn own_groups(services: &Services, policy: &str) -> Result<Vec<String>> {
    let mut own = Vec::new();
    for group in services.groups.names() {
        match services.groups.view(&group).await {
            Ok(view) if view.spec.policy.as_deref() == Some(policy) => own.push(group),
            // One that was deleted meanwhile needs nothing.
            Ok(_) | Err(groups::Error::UnknownGroup(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(own)
}

/// Refuses to bind a group that is not there, or whose own setting would win.
async fn expect_no_own_policy(services: &Services, group: &str) -> Result<()> {
    let view = match services.groups.view(group).await {
        Err(groups::Error::UnknownGroup(_)) => {
            let message = format!(
                "there is no group `{group}` whose members own partitions; it can be bound in advance with \
                 `fulcrum policy bind --group {group}=NAME`"
            );
            return Err(Error::new(StatusCode::NOT_FOUND, "unknown_group", message));
        }
        view => view?,
    };
    match view.spec.policy {
        None => Ok(()),
        Some(own) => {
            let message = format!(
                "the group `{group}` has a policy of its own, `{own}`, which would win; push a candidate of that and \
                 promote it, or take the policy out of the settings of the group first"
            );
            Err(Error::new(StatusCode::CONFLICT, "own_policy", message))
        }
    }
}

/// Returns how a policy stands after a change.
async fn status(services: &Services, name: String) -> Result<Json<Status>> {
    find(services, &name).map(Json).ok_or_else(|| {
        let error = lifecycle::Error::Overtaken(name);
        refused(&error)
    })
}

fn find(services: &Services, name: &str) -> Option<Status> {
    services.planner.statuses().into_iter().find(|status| status.name == name)
}

/// Refuses other parameters than these, and ones without a value: an order that is half understood is none.
fn expect_only(pairs: &[(String, String)], known: &[&str]) -> Result<()> {
    for (key, value) in pairs {
        if !known.contains(&key.as_str()) {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("unknown parameter {key:?}, expected {known}");
            return Err(Error::new(StatusCode::BAD_REQUEST, "invalid_query", message));
        }
        if value.is_empty() {
            return Err(invalid_query(key, "1 or 0"));
        }
    }
    Ok(())
}

/// Reads a parameter that is on or off; absent is off.
fn flag(pairs: &[(String, String)], name: &str) -> Result<bool> {
    match query::text(pairs, name) {
        None | Some("0" | "false") => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(_) => Err(invalid_query(name, "1 or 0")),
    }
}

/// Reads which version is wanted.
fn destination(body: &Map<String, Value>) -> Result<Option<String>> {
    let mut to = None;
    for (key, value) in body {
        match (key.as_str(), value) {
            ("digest", Value::Null) => {}
            ("digest", Value::String(digest)) => to = Some(digest.clone()),
            ("digest", _) => {
                return Err(invalid("\"digest\" must be the start of a digest, or \"embedded\""));
            }
            _ => return Err(invalid(&format!("unknown key {key:?}, expected \"digest\""))),
        }
    }
    Ok(to)
}

/// Reads what a promotion shall bind and what may fail.
fn wish(body: &Map<String, Value>) -> Result<Promote> {
    let mut wish = Promote::default();
    let count = |key: &str, value: &Value, least: u32| {
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        count
            .filter(|count| *count >= least)
            .ok_or_else(|| invalid(&format!("{key:?} must be a whole number, {least} or more")))
    };
    for (key, value) in body {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            ("scoring", Value::Bool(wanted)) => wish.scoring = *wanted,
            ("claiming", Value::Bool(wanted)) => wish.claiming = *wanted,
            ("scoring" | "claiming", _) => return Err(invalid(&format!("{key:?} must be true or false"))),
            ("groups", Value::Array(groups)) => {
                for group in groups {
                    let group = group.as_str().ok_or_else(|| invalid("\"groups\" must hold names"))?;
                    check_name("group", group)?;
                    wish.groups.push(group.to_owned());
                }
            }
            ("groups", _) => return Err(invalid("\"groups\" must be a list of names")),
            ("accept", Value::Bool(wanted)) => wish.accept = *wanted,
            ("again", Value::Bool(wanted)) => wish.again = *wanted,
            ("accept" | "again", _) => return Err(invalid(&format!("{key:?} must be true or false"))),
            ("failuresMax", _) => wish.failures_max = Some(count(key, value, 0)?),
            ("decisions", _) => wish.decisions = Some(count(key, value, 1)?),
            _ => {
                return Err(invalid(&format!(
                    "unknown key {key:?}, expected \"scoring\", \"claiming\", \"groups\", \"failuresMax\", \
                     \"decisions\", \"accept\" or \"again\""
                )));
            }
        }
    }
    Ok(wish)
}

fn invalid(message: &str) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "invalid_body", message)
}

fn refused(error: &lifecycle::Error) -> Error {
    use lifecycle::Error as E;
    let (status, code) = match error {
        E::Refused(refusal) if refusal.is_retryable() => {
            let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, refusal.code(), error.to_string());
            return error.retry_after(RETRY_AFTER_SECS);
        }
        E::Refused(refusal) => (StatusCode::UNPROCESSABLE_ENTITY, refusal.code()),
        E::Bind(error) => return bind_error(error),
        E::Name => (StatusCode::BAD_REQUEST, "invalid_name"),
        E::Nothing => (StatusCode::BAD_REQUEST, "invalid_body"),
        E::Unknown(_) | E::NoComponent(_) => (StatusCode::NOT_FOUND, "unknown_policy"),
        E::NoCandidate(_) => (StatusCode::NOT_FOUND, "no_candidate"),
        E::NoVersion { .. } => (StatusCode::NOT_FOUND, "unknown_version"),
        E::Embedded(_) => (StatusCode::CONFLICT, "embedded_policy"),
        E::Removed(_) => (StatusCode::CONFLICT, "removed_policy"),
        E::OnlyCandidate(_) => (StatusCode::CONFLICT, "only_candidate"),
        E::TooManyCandidates { .. } => (StatusCode::CONFLICT, "too_many_candidates"),
        E::InUse { .. } => (StatusCode::CONFLICT, "policy_in_use"),
        E::WayBack { .. } => (StatusCode::CONFLICT, "way_back"),
        E::Ambiguous { .. } => (StatusCode::CONFLICT, "ambiguous_version"),
        E::NoFormer(_) => (StatusCode::CONFLICT, "no_former_version"),
        E::AlreadyInUse(_) => (StatusCode::CONFLICT, "already_in_use"),
        E::Unusable { .. } => (StatusCode::CONFLICT, "unusable_policy"),
        E::NothingToPromote(_) => (StatusCode::CONFLICT, "nothing_to_promote"),
        E::OnTrial { .. } => (StatusCode::CONFLICT, "on_trial"),
        E::TakenBack { .. } => (StatusCode::CONFLICT, "taken_back"),
        E::NoRole(_) => (StatusCode::CONFLICT, "no_role"),
        E::Overtaken(_) => (StatusCode::CONFLICT, "overtaken"),
        E::Folder { .. } => (StatusCode::SERVICE_UNAVAILABLE, "folder_unwritable"),
        E::State { .. } => (StatusCode::SERVICE_UNAVAILABLE, "state_unwritable"),
        E::Gone(gone) => gone_code(*gone),
    };
    Error::new(status, code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::response::IntoResponse as _;
    use fulcrum_policy::{Failure, Refusal};
    use serde_json::json;

    #[test]
    fn what_may_pass_later_says_so() {
        let check = |refusal: Refusal, expected: (u16, &str, bool)| {
            let answer = refused(&lifecycle::Error::Refused(refusal));
            let code = answer.code();
            let response = answer.into_response();
            let found = (response.status().as_u16(), code, response.headers().contains_key("retry-after"));
            assert_eq!(found, expected);
        };
        check(Refusal::Busy, (503, "busy", true));
        let failure = Failure::NoRoom("none".to_owned());
        check(Refusal::Start { failure }, (503, "no_room", true));
        check(Refusal::Empty, (422, "empty", false));
    }

    #[test]
    fn bodies_of_promotions_are_checked() {
        let check = |body: Value, expected: std::result::Result<Promote, &str>| {
            let found = wish(body.as_object().expect("an object"));
            let found = found.as_ref().map_err(Error::code);
            assert_eq!(found, expected.as_ref().map_err(|code| *code), "{body}");
        };
        check(json!({}), Ok(Promote::default()));
        check(json!({ "scoring": null, "claiming": false }), Ok(Promote::default()));
        let all = Promote {
            scoring: true,
            claiming: true,
            groups: vec!["a".to_owned()],
            failures_max: Some(0),
            decisions: Some(1),
            accept: true,
            again: true,
            ..Promote::default()
        };
        let body = json!({
            "scoring": true, "claiming": true, "groups": ["a"], "failuresMax": 0, "decisions": 1, "accept": true,
            "again": true,
        });
        check(body, Ok(all));
        for body in [
            json!({ "scoring": 1 }),
            json!({ "groups": "a" }),
            json!({ "groups": [1] }),
            json!({ "decisions": 0 }),
            json!({ "failuresMax": -1 }),
            json!({ "failuresMax": 4_294_967_296_u64 }),
            json!({ "accept": "yes" }),
            json!({ "force": true }),
        ] {
            check(body, Err("invalid_body"));
        }
    }

    #[test]
    fn parameters_of_orders_are_all_known_and_have_a_value() {
        let check = |pairs: &[(&str, &str)], known: &[&str], expected: std::result::Result<bool, &str>| {
            let pairs: Vec<_> =
                pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let found = expect_only(&pairs, known).and_then(|()| flag(&pairs, "candidate"));
            assert_eq!(
                found.as_ref().map_err(Error::code),
                expected.as_ref().map_err(|code| *code),
                "{pairs:?}"
            );
        };
        let both = ["candidate", "force"];
        check(&[], &[], Ok(false));
        check(&[("candidate", "1")], &both, Ok(true));
        check(&[("candidate", "true"), ("force", "0")], &both, Ok(true));
        check(&[("candidate", "false")], &both, Ok(false));
        check(&[("candidate", "")], &both, Err("invalid_query"));
        check(&[("candidate", ""), ("candidate", "1")], &both, Err("invalid_query"));
        check(&[("candidate", "yes")], &both, Err("invalid_query"));
        check(&[("force", "1")], &["candidate"], Err("invalid_query"));
        check(&[("Candidate", "1")], &both, Err("invalid_query"));
        check(&[("candidate", "1")], &[], Err("invalid_query"));
    }

    #[test]
    fn bodies_of_rollbacks_are_checked() {
        let check = |body: Value, expected: std::result::Result<Option<&str>, &str>| {
            let found = destination(body.as_object().expect("an object"));
            let found = found.as_ref().map(Option::as_deref).map_err(Error::code);
            assert_eq!(found, expected, "{body}");
        };
        check(json!({}), Ok(None));
        check(json!({ "digest": null }), Ok(None));
        check(json!({ "digest": "ab" }), Ok(Some("ab")));
        check(json!({ "digest": 1 }), Err("invalid_body"));
        check(json!({ "to": "ab" }), Err("invalid_body"));
    }
}
