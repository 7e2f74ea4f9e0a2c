//! Talking to a running host.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{Method, RequestBuilder, Url};
use serde_json::Value;

/// How long to wait for what a host knows anyway.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for what makes a host load and prove a policy: compiling alone may take two minutes.
const CHANGE_PATIENCE: Duration = Duration::from_secs(300);

/// Which host to ask.
#[derive(Debug, Args)]
pub(super) struct Client {
    /// URL of the running host; HOST:PORT stands for http://HOST:PORT
    #[arg(
        long,
        value_name = "URL",
        env = "FULCRUM_HOST",
        value_parser = host_url,
        default_value = "http://127.0.0.1:8080"
    )]
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

/// Reads what a `--host` argument says: a URL, or `HOST:PORT`, which becomes `http://HOST:PORT`.
///
/// Errors, with what to write instead, on what is neither.
pub(super) fn host_url(text: &str) -> Result<String, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    // A URL reads a number as an IPv4 address; who writes one alone means a port.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    match Url::parse(&url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && !is_number => Ok(url),
        _ => Err("expected a URL, like http://127.0.0.1:8080".to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_url_or_a_host_with_its_port() {
        let check = |text: &str, expected: Option<&str>| match (host_url(text), expected) {
            (Ok(url), Some(expected)) => assert_eq!(url, expected),
            (Err(error), None) => assert!(error.contains("like http://127.0.0.1:8080"), "{text:?}: {error}"),
            (found, expected) => panic!("{text:?}: {found:?}, expected {expected:?}"),
        };
        check("http://127.0.0.1:8080", Some("http://127.0.0.1:8080"));
        check("https://lb/fulcrum/", Some("https://lb/fulcrum/"));
        check("127.0.0.1:8192", Some("http://127.0.0.1:8192"));
        check("localhost:8080", Some("http://localhost:8080"));
        check("[::1]:8080", Some("http://[::1]:8080"));
        for text in ["", "8080", ":8080", "http://", "ftp://lb", "lb:port", "a host"] {
            check(text, None);
        }
    }
}
