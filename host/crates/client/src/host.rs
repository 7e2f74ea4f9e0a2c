//! Single calls to one host.

use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::wire::{ErrorBody, Heartbeat, Held, Join, Joined, Orders, Place, Pulled};

/// Longest time a call without a wait may take.
const CALL: Duration = Duration::from_secs(10);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answered, or not in full; the call may have taken effect.
    #[error("cannot reach the host at {url}")]
    Lost {
        /// Its URL.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The host refused the call.
    #[error("the host refuses: {0}")]
    Refused(Refusal),
}

/// What a host says when it refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({status} {code})")]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Stable code.
    pub code: String,
    /// For people.
    pub message: String,
    /// The partition's present epoch, with `stale_epoch`.
    pub epoch: Option<u64>,
    /// When to try again, in milliseconds, with `duplicate_member`.
    pub retry_after_ms: Option<u64>,
}

impl Error {
    /// Returns the code of a refusal, empty when nobody answered.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Lost { .. } => "",
            Self::Refused(refusal) => &refusal.code,
        }
    }

    /// Says whether the host does not know the session any more: the member has to join again.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.code(), "unknown_member" | "unknown_group" | "fenced")
    }

    /// Says whether the same call may succeed later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Lost { .. } => true,
            Self::Refused(refusal) => refusal.status >= 500 || refusal.status == 429,
        }
    }
}

/// One host, by URL.
#[derive(Clone, Debug)]
pub struct Host {
    url: String,
    http: Client,
}

impl Host {
    /// Speaks to the host at `url`, for example `http://127.0.0.1:8080`.
    #[must_use]
    pub fn new(url: &str, http: Client) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), http }
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the same connections for another host.
    #[must_use]
    pub fn at(&self, url: &str) -> Self {
        Self::new(url, self.http.clone())
    }

    /// Asks where the next session of a client should go; empty if the host recommends nobody.
    pub async fn recommend(&self, client_id: &str) -> Result<String, Error> {
        let request = self.request(Method::GET, &["session", "recommend"]).query(&[("clientId", client_id)]);
        let answer: Value = self.send(request.timeout(CALL)).await?;
        Ok(answer["instanceUrl"].as_str().unwrap_or_default().to_owned())
    }

    /// Joins a group.
    pub async fn join(&self, group: &str, join: &Join) -> Result<Joined, Error> {
        let request = self.request(Method::POST, &["groups", group, "members"]).json(join);
        self.send(request.timeout(CALL)).await
    }

    /// Sends a heartbeat.
    pub async fn heartbeat(&self, group: &str, member: &str, beat: &Heartbeat<'_>) -> Result<Orders, Error> {
        let path = ["groups", group, "members", member, "heartbeat"];
        self.send(self.request(Method::POST, &path).json(beat).timeout(CALL)).await
    }

    /// Leaves the group.
    pub async fn leave(
        &self,
        group: &str,
        member: &str,
        session: &str,
        returning: bool,
    ) -> Result<(), Error> {
        let request = self.request(Method::DELETE, &["groups", group, "members", member]);
        let request =
            request.query(&[("session", session), ("returning", if returning { "1" } else { "0" })]);
        self.send::<Value>(request.timeout(CALL)).await.map(|_| ())
    }

    /// Pulls from an owned partition; waits up to `wait` for an event.
    #[allow(clippy::too_many_arguments, reason = "one call has that many parameters")]
    pub async fn pull(
        &self,
        group: &str,
        member: &str,
        session: &str,
        held: &Held,
        offset: Option<u64>,
        max: u32,
        wait: Duration,
    ) -> Result<Pulled, Error> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let request = self.request(Method::GET, &partition(group, &held.place, "events"));
        let mut request = request.query(&[("member", member), ("session", session)]).query(&[
            ("epoch", held.epoch),
            ("max", max.into()),
            ("timeoutMs", wait_ms),
        ]);
        if let Some(offset) = offset {
            request = request.query(&[("offset", offset)]);
        }
        self.send(request.timeout(CALL + wait)).await
    }

    /// Stores how far a partition was read: `offset` is the next one to read.
    pub async fn checkpoint(
        &self,
        group: &str,
        member: &str,
        session: &str,
        held: &Held,
        offset: u64,
    ) -> Result<(), Error> {
        let body = json!({ "member": member, "session": session, "epoch": held.epoch, "offset": offset });
        let request = self.request(Method::POST, &partition(group, &held.place, "checkpoint")).json(&body);
        self.send::<Value>(request.timeout(CALL)).await.map(|_| ())
    }

    /// Opens the stream of a member's orders.
    pub(crate) async fn watch(&self, group: &str, member: &str, session: &str) -> Result<Response, Error> {
        let path = ["groups", group, "members", member, "watch"];
        self.answer(self.request(Method::GET, &path).query(&[("session", session)])).await
    }

    /// Makes any other request with a JSON body, and returns the JSON answer.
    pub async fn call(&self, method: Method, path: &[&str], body: &impl Serialize) -> Result<Value, Error> {
        self.send(self.request(method, path).json(body).timeout(CALL)).await
    }

    fn request(&self, method: Method, path: &[impl AsRef<str>]) -> RequestBuilder {
        let mut url = self.url.clone();
        for part in path {
            url.push('/');
            url.push_str(&escaped(part.as_ref()));
        }
        self.http.request(method, url)
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Response, Error> {
        let response = request.send().await.map_err(|source| self.lost(source))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body: ErrorBody = response.json().await.unwrap_or_default();
        Err(Error::Refused(Refusal {
            status: status.as_u16(),
            code: body.code,
            message: body.error,
            epoch: body.epoch,
            retry_after_ms: body.retry_after_ms,
        }))
    }

    async fn send<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Error> {
        self.answer(request).await?.json().await.map_err(|source| self.lost(source))
    }

    fn lost(&self, source: reqwest::Error) -> Error {
        Error::Lost { url: self.url.clone(), source }
    }
}

fn partition(group: &str, place: &Place, last: &str) -> [String; 7] {
    let number = place.partition.to_string();
    ["groups", group, "topics", &place.topic, "partitions", &number, last].map(str::to_owned)
}

/// Percent-encodes a path segment.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    // Dots alone would be a relative path.
    match out.as_str() {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => out,
    }
}
