//! Talking to a running host.

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

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
        let url = format!("{}{path}", self.host.trim_end_matches('/'));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the async runtime")?;
        runtime.block_on(async {
            let asked =
                reqwest::Client::new().get(&url).timeout(std::time::Duration::from_secs(10)).send().await;
            let response =
                asked.with_context(|| format!("no host answers at {}, is it running there?", self.host))?;
            let status = response.status();
            let body: Value =
                response.json().await.with_context(|| format!("{url} answers {status} without JSON"))?;
            match body.get("error").and_then(Value::as_str) {
                Some(error) if !status.is_success() => bail!("{error}"),
                _ if !status.is_success() => bail!("{url} answers {status}"),
                _ => Ok(body),
            }
        })
    }
}
