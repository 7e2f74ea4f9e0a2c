//! Talking to a running host.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

/// How long to wait for what a host knows anyway.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for what makes a host load and prove a policy: compiling alone may take two minutes.
const CHANGE_PATIENCE: Duration = Duration::from_secs(300);

/// Which host to ask.
#[derive(Debug, Args)]
pub(super) struct Client {
    /// URL of the running host
    #[arg(long, value_name = "URL", env = "FULCRUM_HOST", default_value = "http://127.0.0.1:8080")]
    host: String,
}

impl Client {
    /// Gets a JSON document.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::GET, path, |request| request.timeout(READ_PATIENCE))
    }

    /// Puts a JSON document; returns the answer.
    pub(super) fn put(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(Method::PUT, path, |request| request.json(body))
    }

    /// Posts a JSON document; returns the answer.
    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(Method::POST, path, |request| request.json(body))
    }

    /// Deletes something; returns the answer.
    pub(super) fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::DELETE, path, |request| request)
    }

    /// Sends a request that `complete` completes; returns the JSON it is answered with.
    ///
    /// Errors with the host's own words if it refuses.
    pub(super) fn send(
        &self,
        method: Method,
        path: &str,
        complete: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.host.trim_end_matches('/'));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the async runtime")?;
        runtime.block_on(async {
            let request = reqwest::Client::new().request(method, &url).timeout(CHANGE_PATIENCE);
            let asked = complete(request).send().await;
            let response =
                asked.with_context(|| format!("no host answers at {}, is it running there?", self.host))?;
            let status = response.status();
            let body: Value = response
                .json()
                .await
                .with_context(|| format!("what answers at {} is no host of Fulcrum ({status})", self.host))?;
            match body.get("error").and_then(Value::as_str) {
                Some(error) if !status.is_success() => bail!("{error}"),
                _ if !status.is_success() => bail!("the host at {} refuses: {status}", self.host),
                _ => Ok(body),
            }
        })
    }
}

/// Escapes a path segment.
pub(super) fn escaped(name: &str) -> String {
    let byte = |byte: u8| {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if plain { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    name.bytes().map(byte).collect()
}
