//! Sessions: where should the next one go, and opening and closing them here; what flows on them has a file of its own.

mod turns;

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use axum::routing::{get, post};
use fulcrum_coordinator::{Ask, Pick, Recommended};
use fulcrum_core::NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Result;
use super::extract::{Json, Query};
use super::instances::{flag, invalid_query, parameter};
use crate::app::Services;
use crate::why;

/// Most candidates a client may ask for.
const LIMIT_MAX: usize = 100;

pub(crate) fn routes() -> Router<Services> {
    Router::new()
        .route("/session/recommend", get(recommend))
        .route("/session/open", post(open))
        .route("/session/close/{session_id}", post(close))
        .merge(turns::routes())
}

async fn recommend(
    State(services): State<Services>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<RecommendBody>> {
    let wish = Wish::read(&query)?;
    let ask = Ask {
        client_id: wish.client_id,
        exclude: &wish.exclude,
        labels: &wish.labels,
        limit: wish.limit,
        explain: wish.explain,
        dry_run: wish.dry_run,
        own_sessions: services.sessions.count_of(wish.client_id, services.clock.now()),
        traffic: services.meter.client(wish.client_id, services.clock.nanos()),
    };
    let answer = services.balancer.recommend(&ask);
    Ok(Json(RecommendBody::new(&answer, &wish)))
}

/// What a query asks for.
#[derive(Debug, Default, PartialEq)]
struct Wish<'a> {
    client_id: &'a str,
    exclude: Vec<String>,
    labels: Vec<(String, String)>,
    limit: Option<usize>,
    explain: bool,
    dry_run: bool,
}

impl<'a> Wish<'a> {
    /// Reads a query: lists may be repeated or comma-separated, unknown parameters are ignored.
    fn read(query: &'a [(String, String)]) -> Result<Self> {
        let dry_run = flag(query, "dryRun")?;
        // Whoever asks what would be chosen wants to know why.
        let explain = flag(query, "explain")? || dry_run;
        let mut wish = Self { explain, dry_run, ..Self::default() };
        for (name, value) in query {
            let items = || value.split(',').map(str::trim).filter(|item| !item.is_empty());
            match &**name {
                "clientId" if value.len() > NAME_BYTES_MAX || value.contains(char::is_control) => {
                    return Err(invalid_query("clientId", "at most 256 bytes without control characters"));
                }
                "clientId" => wish.client_id = value,
                "exclude" => wish.exclude.extend(items().map(str::to_owned)),
                "label" => {
                    for item in items() {
                        let (key, value) =
                            item.split_once(':').ok_or_else(|| invalid_query("label", "key:value"))?;
                        wish.labels.push((key.to_owned(), value.to_owned()));
                    }
                }
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    wish.limit =
                        Some(limit.ok_or_else(|| invalid_query("limit", "a whole number of 1 to 100"))?);
                }
                _ => {}
            }
        }
        Ok(wish)
    }
}

/// The answer to a recommend call; a score that is not finite is null.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RecommendBody {
    instance_url: String,
    instance_id: String,
    score: Option<f64>,
    policy: String,
    digest: String,
    /// Only if the version has a configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_digest: Option<String>,
    /// Only if it is one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    candidates: Option<Vec<CandidateBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    score_parts: Option<Vec<ScorePartsBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<why::Why>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CandidateBody {
    instance_url: String,
    instance_id: String,
    score: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScorePartsBody {
    instance_id: String,
    score: f64,
    parts: BTreeMap<String, f64>,
}

impl RecommendBody {
    fn new(answer: &Recommended, wish: &Wish<'_>) -> Self {
        let candidates = || answer.candidates.iter();
        let listed = wish.limit.is_some().then(|| {
            let body = |candidate: &fulcrum_coordinator::Candidate| CandidateBody {
                instance_url: format!("http://{}", candidate.address),
                instance_id: candidate.id.to_string(),
                score: candidate.score.get(),
            };
            candidates().map(body).collect()
        });
        let score_parts = wish.explain.then(|| {
            let body = |candidate: &fulcrum_coordinator::Candidate| ScorePartsBody {
                instance_id: candidate.id.to_string(),
                score: candidate.score.get(),
                parts: candidate.parts.iter().cloned().collect(),
            };
            candidates().map(body).collect()
        });
        let pick = answer.pick.as_ref();
        Self {
            instance_url: match pick {
                Some(pick) => format!("http://{}", pick.address),
                None => answer.instead.as_deref().unwrap_or_default().to_owned(),
            },
            instance_id: pick.map(|pick| pick.id.to_string()).unwrap_or_default(),
            score: pick.map(|pick| pick.score.get()),
            policy: pick.map(|pick| pick.policy().to_owned()).unwrap_or_default(),
            digest: pick.map(|pick| pick.digest().to_owned()).unwrap_or_default(),
            config_digest: pick.and_then(Pick::config_digest),
            dry_run: wish.dry_run,
            candidates: listed,
            score_parts,
            why: wish.explain.then(|| why::why(pick, answer.grounds.as_ref())),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpenBody {
    client_id: String,
    model: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OpenedBody {
    session_id: String,
    agent_id: String,
    instance_url: String,
}

async fn open(
    State(services): State<Services>,
    headers: HeaderMap,
    Json(body): Json<OpenBody>,
) -> Result<Json<OpenedBody>> {
    let model = body.model.as_deref().filter(|model| !model.is_empty());
    let opened = services.sessions.open(&body.client_id, model, services.clock.now())?;
    let bytes = headers.get(CONTENT_LENGTH).and_then(|bytes| bytes.to_str().ok()?.parse().ok()).unwrap_or(0);
    services.meter.add_client(&body.client_id, bytes, 0, services.clock.nanos());
    Ok(Json(OpenedBody {
        session_id: opened.session_id.to_string(),
        agent_id: opened.agent_id.to_string(),
        instance_url: services.balancer.own_url().unwrap_or_default().to_owned(),
    }))
}

async fn close(
    State(services): State<Services>,
    session_id: std::result::Result<Path<String>, PathRejection>,
) -> Result<Json<Value>> {
    let session_id = parameter(session_id)?;
    services.sessions.close(&session_id, services.clock.now())?;
    Ok(Json(json!({ "status": "closed" })))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fulcrum_coordinator::Candidate;
    use fulcrum_core::Score;
    use fulcrum_policy::seat::Identity;

    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn queries_are_read() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let asked = query(&[
            ("clientId", "c"),
            ("limit", "100"),
            ("exclude", "a, http://b:1,"),
            ("exclude", "d"),
            ("label", "k:v:w,gpu:"),
            ("label", "z:1"),
            ("explain", "1"),
            ("other", "x"),
        ]);
        let expected = Wish {
            client_id: "c",
            exclude: ["a", "http://b:1", "d"].map(str::to_owned).to_vec(),
            labels: vec![pair("k", "v:w"), pair("gpu", ""), pair("z", "1")],
            limit: Some(100),
            explain: true,
            dry_run: false,
        };
        assert_eq!(Wish::read(&asked), Ok(expected));
        let dry = Wish { explain: true, dry_run: true, ..Wish::default() };
        assert_eq!(Wish::read(&query(&[("dryRun", "1")])), Ok(dry));
        assert_eq!(Wish::read(&[]), Ok(Wish::default()));
        assert_eq!(
            Wish::read(&query(&[("clientId", ""), ("explain", "0"), ("exclude", "")])),
            Ok(Wish::default())
        );
        let long = "x".repeat(257);
        for (name, value) in [
            ("limit", "0"),
            ("limit", "101"),
            ("limit", "-1"),
            ("limit", "x"),
            ("limit", ""),
            ("label", "k"),
            ("explain", "yes"),
            ("dryRun", "yes"),
            ("clientId", &long),
        ] {
            let refused = Wish::read(&query(&[(name, value)])).map_err(|error| error.code()).map(|_| ());
            assert_eq!(refused, Err("invalid_query"), "{name}={value}");
        }
    }

    #[test]
    fn answers_have_the_fields_of_the_design() {
        let json = |answer: &Recommended, lists: bool, explains| {
            let wish = Wish { limit: lists.then_some(9), explain: explains, ..Wish::default() };
            serde_json::to_value(RecommendBody::new(answer, &wish)).expect("plain data")
        };
        let nobody = Recommended { instead: Some(Arc::from("http://me:1")), ..Recommended::default() };
        let empty = json!({"instanceUrl": "http://me:1", "instanceId": "", "score": null, "policy": "", "digest": ""});
        assert_eq!(json(&nobody, false, false), empty);
        assert_eq!(json(&Recommended::default(), false, false)["instanceUrl"], "");
        let score = |value| Score::new(value).expect("not a NaN");
        let (id, address): (Arc<str>, Arc<str>) = (Arc::from("a"), Arc::from("h:1"));
        let candidate = Candidate {
            id: id.clone(),
            address: address.clone(),
            score: score(f64::INFINITY),
            parts: vec![("cpu".to_owned(), 2.5)],
        };
        let pick = Pick { id, address, score: score(f64::INFINITY), by: None };
        let answer = Recommended { pick: Some(pick), candidates: vec![candidate], ..Recommended::default() };
        let plain = json!({"instanceUrl": "http://h:1", "instanceId": "a", "score": null, "policy": "fallback", "digest": ""});
        assert_eq!(json(&answer, false, false), plain);
        let full = json(&answer, true, true);
        let listed = json!([{"instanceUrl": "http://h:1", "instanceId": "a", "score": null}]);
        assert_eq!(full["candidates"], listed);
        assert_eq!(full["scoreParts"], json!([{"instanceId": "a", "score": null, "parts": {"cpu": 2.5}}]));
        assert_eq!(full["why"]["terms"], json!([]));
        assert_eq!(json(&nobody, true, true)["why"]["terms"], json!([]));
        // Of two versions with one component the configuration tells which it was.
        let by = |config: &str| {
            let identity =
                Identity { name: "p".to_owned(), digest: "d".to_owned(), config: config.to_owned() };
            let pick = answer.pick.clone().map(|pick| Pick { by: Some(Arc::new(identity)), ..pick });
            Recommended { pick, ..Recommended::default() }
        };
        assert_eq!(json(&by("{}"), false, false).get("configDigest"), None);
        let expected = fulcrum_policy::artifact::digest(br#"{"a":1}"#);
        assert_eq!(json(&by(r#"{"a":1}"#), false, false)["configDigest"], expected);
    }
}
