//! `fulcrum policy sign`.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
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
        let key = read_key(&self.key)?;
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
        ensure!(
            fulcrum_policy::manager::is_policy_name(&name),
            "no host takes a file named {}: the name before the ending is 1 to 64 of a-z, A-Z, 0-9, - and _, beginning with \
             a letter or digit; rename it, then sign it",
            self.file.display()
        );
        let output = self.file.with_added_extension("sig");
        super::place::put(&output, key.sign(content).as_bytes())?;
        crate::cli::print(&format!("{}, for sha256 {digest}, key {}\n", output.display(), key.public()))
    }
}

/// Reads a private key's file.
///
/// Errors if others may read or change it: then it is no secret, or not the key it was.
pub(super) fn read_key(path: &Path) -> anyhow::Result<PrivateKey> {
    let shown = path.display();
    let unread = || format!("cannot read {shown}");
    let mut file = File::open(path).with_context(unread)?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(unread)?;
    let key = PrivateKey::parse(&text).map_err(|error| anyhow!("{shown} is {error}"))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let mode = file.metadata().with_context(unread)?.mode();
        ensure!(
            mode & 0o077 == 0,
            "others may read or write {shown}: run `chmod 600 {}` if nobody did, else make a new pair with `fulcrum policy \
             keygen`",
            super::shell::quoted(path)
        );
    }
    Ok(key)
}
