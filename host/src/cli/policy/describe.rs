//! `fulcrum policy describe`.

use clap::Args;
use fulcrum_policy::Limits;
use fulcrum_policy::json::Plain;
use serde_json::{Value, json};

/// Arguments of `policy describe`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Describe {
    /// Name of an embedded policy, or a component file
    #[arg(value_name = "NAME|FILE")]
    policy: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    mode: super::Mode,
}

impl Describe {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let runtime = self.mode.runtime(Limits::default())?;
        let (_, artifact) = super::load(&runtime, &self.policy)?;
        let about = artifact.describe();
        let roles = super::role_names(artifact.roles());
        // Checked when the artifact was loaded; an empty schema allows any object.
        let Plain(schema) = serde_json::from_str(&about.config_schema).unwrap_or_default();
        if self.json {
            return crate::cli::print_json(&json!({
                "name": about.name, "version": about.version, "summary": about.summary, "roles": roles,
                "digest": artifact.digest(), "sizeBytes": artifact.size_bytes(), "configSchema": schema,
            }));
        }
        let schema = match schema {
            Value::Null => "any JSON object".to_owned(),
            schema => serde_json::to_string_pretty(&schema)?,
        };
        crate::cli::print(&format!(
            "{} {}\n{}\n\nroles          {}\nsize           {} bytes\nsha256         {}\n\nconfiguration (JSON Schema):\n{}\n",
            about.name,
            about.version,
            about.summary,
            roles.join(", "),
            artifact.size_bytes(),
            artifact.digest(),
            schema
        ))
    }
}
