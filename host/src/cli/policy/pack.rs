//! `fulcrum policy pack`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

/// Arguments of `policy pack`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fulcrum policy pack target/wasm32-unknown-unknown/release/my_policy.wasm
  fulcrum policy pack policy.wat -o my-policy.wasm --world scoring-policy")]
pub(in crate::cli) struct Pack {
    /// Core module a compiler wrote (or WebAssembly text)
    core: PathBuf,
    /// Where to write the component [default: the module's name in this folder, with - for _]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// World of a module that carries no type information of its own
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(fulcrum_pack::WORLDS))]
    world: Option<String>,
}

impl Pack {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let shown = self.core.display();
        let core = super::read(&self.core)?;
        let component =
            fulcrum_pack::component(&core, fulcrum_pack::Options { world: self.world.as_deref() })
                .with_context(|| format!("cannot pack {shown}"))?;
        let output = self.output.clone().unwrap_or_else(|| {
            PathBuf::from(super::name_of(&self.core).replace('_', "-")).with_added_extension("wasm")
        });
        let same = |path: &PathBuf| path.canonicalize().ok();
        if same(&output).is_some_and(|output| Some(output) == same(&self.core)) {
            bail!("the component would replace {shown}; name another file with --output");
        }
        super::place::put(&output, &component)?;
        crate::cli::print(&format!("{}, {} bytes\n", output.display(), component.len()))
    }
}
