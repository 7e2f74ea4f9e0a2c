//! `fulcrum config check|print`.

use clap::Subcommand;

use super::settings::Settings;
use crate::config::{Loaded, SETTINGS};

/// Commands about settings.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check the settings and name every problem
    Check(Settings),
    /// Print every setting with its meaning and where its value comes from, as a settings file
    Print(Settings),
}

impl Command {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let (Self::Check(settings) | Self::Print(settings)) = self;
        let loaded = settings.load()?;
        for warning in &loaded.warnings {
            super::warn(warning);
        }
        // What is no public key may be a private one, which is never printed.
        loaded.config.trusted_keys()?;
        match self {
            Self::Check(_) => super::print("the configuration is valid\n"),
            Self::Print(_) => super::print(&as_toml(&loaded)),
        }
    }
}

fn as_toml(loaded: &Loaded) -> String {
    let mut out = String::new();
    let mut table = "";
    for (setting, origin) in SETTINGS.iter().zip(&loaded.origins) {
        if setting.table != table {
            table = setting.table;
            out.push_str(&format!("[{table}]\n"));
        }
        for line in setting.about.lines() {
            out.push_str(&format!("#{line}\n"));
        }
        out.push_str(&format!("# From {}; environment: {}\n", origin, setting.variable()));
        match (setting.get)(&loaded.config) {
            Some(value) => out.push_str(&format!("{} = {value}\n\n", setting.name)),
            None => out.push_str(&format!("# {} is not set\n\n", setting.name)),
        }
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Layers};
    use std::path::Path;

    #[test]
    fn what_is_printed_can_be_read_back() {
        let flags = [("policy.scoring", "we\"ighted\n"), ("advertise", "lb:80"), ("capacity", "2")];
        let flags = flags.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let loaded = config::load(Layers { flags: &flags, ..Layers::default() }).expect("valid");
        let text = as_toml(&loaded);
        let file = Some((Path::new("printed.toml"), text.as_str()));
        let again = config::load(Layers { file, ..Layers::default() }).expect("printed settings are valid");
        assert_eq!(again.config, loaded.config, "{text}");
    }
}
