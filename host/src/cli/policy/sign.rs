//! `fulcrum policy sign`.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use fulcrum_policy::artifact::digest;
use fulcrum_policy::trust::{Content, PrivateKey};

/// Arguments of `policy sign`.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes FILE.sig. A component's signature holds under any name; a configuration's only for the policy it is named after.

Example:
  fulcrum policy sign my-policy.wasm --key release.key")]
pub(in crate::cli) struct Sign {
    /// Component (NAME.wasm) or configuration (NAME.json)
    file: PathBuf,
    /// Private key of `fulcrum policy keygen`
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

impl Sign {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let shown = self.key.display();
        let text = std::fs::read_to_string(&self.key).with_context(|| format!("cannot read {shown}"))?;
        let key = PrivateKey::parse(&text).map_err(|error| anyhow!("{shown} is {error}"))?;
        let digest = digest(&super::read(&self.file)?);
        let name = super::name_of(&self.file);
        let content = match self.file.extension().and_then(|extension| extension.to_str()) {
            Some("wasm") => Content::Component { digest: &digest },
            Some("json") => Content::Config { policy: &name, digest: &digest },
            _ => bail!(
                "{} is neither NAME.wasm nor NAME.json; nothing else in a policies folder is signed",
                self.file.display()
            ),
        };
        let output = self.file.with_added_extension("sig");
        // Written aside and renamed: a host that watches the folder never sees half a file.
        let aside = output.with_added_extension("part");
        std::fs::write(&aside, key.sign(content))
            .with_context(|| format!("cannot write {}", aside.display()))?;
        std::fs::rename(&aside, &output).with_context(|| format!("cannot write {}", output.display()))?;
        crate::cli::print(&format!("{}, for sha256 {digest}, key {}\n", output.display(), key.public()))
    }
}
