//! Flags that are settings, shared by every command that reads the configuration.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;

use crate::config::{self, Layers, Loaded};

/// Settings: defaults < --config file < environment (FULCRUM_*) < flags. `fulcrum config print` lists all.
#[derive(Debug, Args)]
pub(super) struct Settings {
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE", env = "FULCRUM_CONFIG", hide_env = true)]
    config: Option<PathBuf>,
    /// Address to listen on; port 0 takes any free one [default: 127.0.0.1:8080]
    ///
    /// An address other than loopback needs --insecure.
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<String>,
    /// Address clients reach this host at
    ///
    /// With it the host is a row of its own roster and can recommend itself. Port 0 stands for the port it listens on.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Folder for everything the host keeps [default: fulcrum-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Folder watched for policies [default: policies in the data dir]
    #[arg(long, value_name = "DIR")]
    policies_dir: Option<String>,
    /// Listen beyond loopback although anyone who reaches the port can upload policies, which is running code
    #[arg(long)]
    insecure: bool,
    /// Any other setting, for example policy.scoring=weighted; may be given more than once
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

impl Settings {
    /// Reads all layers; errors with every problem there is.
    pub(super) fn load(&self) -> anyhow::Result<Loaded> {
        let text = match &self.config {
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read the settings file {}", path.display()))?,
            ),
            None => None,
        };
        let environment: Vec<_> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let flags = self.flags();
        let file = self.config.as_deref().zip(text.as_deref());
        config::load(Layers { file, environment: &environment, flags: &flags })
            .map_err(|problems| anyhow!(problems))
    }

    fn flags(&self) -> Vec<(String, String)> {
        let named = [
            ("listen", &self.listen),
            ("advertise", &self.advertise),
            ("data_dir", &self.data_dir),
            ("policies_dir", &self.policies_dir),
        ];
        let named = named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
        let insecure = self.insecure.then(|| ("insecure".to_owned(), "true".to_owned()));
        self.set.iter().cloned().chain(named).chain(insecure).collect()
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or("expected KEY=VALUE, for example policy.scoring=weighted")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}
