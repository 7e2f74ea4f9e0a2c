//! `fulcrum policy push`: sends a component, a configuration or both to a running host.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use fulcrum_policy::artifact::digest;
use fulcrum_policy::trust::{Content, PrivateKey};
use reqwest::Method;
use reqwest::multipart::{Form, Part};

use super::lines;
use crate::cli::client::{Client, escaped};

/// Arguments of `policy push`.
#[derive(Debug, Args)]
#[command(after_help = "\
The host proves what it gets first, and refuses it or puts it into its policies folder and into use. Without --config
the present configuration stays; with FILE a NAME.json, only the configuration changes. If the version in use is on
trial, the trial goes on with the new one. Signatures beside the files (FILE.sig, of `fulcrum policy sign`) are sent along.
A configuration's signature holds for one policy name: for another --name sign it anew, or use --sign-key.

Examples:
  fulcrum policy push mine.wasm --candidate
  fulcrum policy push mine.wasm --config mine.json
  fulcrum policy push weighted.json")]
pub(in crate::cli) struct Push {
    /// Component (NAME.wasm) or configuration (NAME.json)
    file: PathBuf,
    #[command(flatten)]
    client: Client,
    /// Name the host knows it by [default: that of the file]
    #[arg(long)]
    name: Option<String>,
    /// Configuration to send along with a component, a JSON file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Keep it as the candidate: it does not serve until `fulcrum policy promote`
    #[arg(long)]
    candidate: bool,
    /// Private key of `fulcrum policy keygen` to sign with, in place of the signatures beside the files
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Print JSON, as the host answers it
    #[arg(long)]
    json: bool,
}

impl Push {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let name = self.name.clone().unwrap_or_else(|| super::name_of(&self.file));
        let is_config = self.file.extension().is_some_and(|extension| extension == "json");
        if is_config && self.config.is_some() {
            bail!("{} is a configuration itself; leave --config out", self.file.display());
        }
        let key = self.sign_key.as_deref().map(super::sign::read_key).transpose()?;
        let main = Piece::read(&self.file, is_config, &name, key.as_ref())?;
        let beside =
            self.config.as_deref().map(|path| Piece::read(path, true, &name, key.as_ref())).transpose()?;
        let query = if self.candidate { "?candidate=1" } else { "" };
        let path = format!("/admin/policies/{}{query}", escaped(&name));
        let status = self.client.send(Method::PUT, &path, |request| match beside {
            None => {
                let request = match &main.signature {
                    Some(signature) => request.header("fulcrum-signature", signature),
                    None => request,
                };
                let kind = if is_config { "application/json" } else { "application/wasm" };
                request.header("content-type", kind).body(main.bytes)
            }
            Some(config) => request.multipart(form(main, config)),
        })?;
        if self.json {
            return crate::cli::print_json(&status);
        }
        crate::cli::print(&(lines::pushed(&status, self.candidate) + &lines::serves(&self.client)?))
    }
}

/// A file with what vouches for it.
struct Piece {
    bytes: Vec<u8>,
    signature: Option<String>,
}

impl Piece {
    fn read(path: &Path, is_config: bool, name: &str, key: Option<&PrivateKey>) -> anyhow::Result<Self> {
        let bytes = super::read(path)?;
        let beside = path.with_added_extension("sig");
        let signature = match key {
            Some(key) => {
                let digest = digest(&bytes);
                let content = match is_config {
                    true => Content::Config { policy: name, digest: &digest },
                    false => Content::Component { digest: &digest },
                };
                Some(key.sign(content))
            }
            None if beside.exists() => Some(
                std::fs::read_to_string(&beside)
                    .with_context(|| format!("cannot read {}", beside.display()))?,
            ),
            None => None,
        };
        // A header is one line.
        Ok(Self { bytes, signature: signature.map(|signature| signature.trim().to_owned()) })
    }
}

/// Joins a component and its configuration.
fn form(component: Piece, config: Piece) -> Form {
    let part = |form: Form, name: &'static str, piece: Piece| {
        let form = form.part(name, Part::bytes(piece.bytes));
        match piece.signature {
            Some(signature) => form.text(format!("{name}Signature"), signature),
            None => form,
        }
    };
    part(part(Form::new(), "component", component), "config", config)
}
