//! What a command about a policy is for: roles, and groups.

use clap::Args;
use serde_json::{Map, Value, json};

/// Arguments that choose roles and groups.
#[derive(Debug, Args)]
pub(super) struct Scope {
    /// For scoring
    #[arg(long)]
    scoring: bool,
    /// For claiming
    #[arg(long)]
    claiming: bool,
    /// For this group; may be given again
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
}

impl Scope {
    /// Says whether anything was chosen.
    pub(super) fn is_given(&self) -> bool {
        self.scoring || self.claiming || !self.groups.is_empty()
    }

    /// Returns the chosen ones as the host's API names them; what was not chosen is left out.
    pub(super) fn body(&self) -> Map<String, Value> {
        let mut body = Map::new();
        for (key, is_wanted) in [("scoring", self.scoring), ("claiming", self.claiming)] {
            if is_wanted {
                body.insert(key.to_owned(), json!(true));
            }
        }
        if !self.groups.is_empty() {
            body.insert("groups".to_owned(), json!(self.groups));
        }
        body
    }

    /// Says whether a shadow's scope, as the host shows it, is this one.
    pub(super) fn is_that_of(&self, shown: &Value) -> bool {
        let is = |key: &str| shown.get(key) == Some(&Value::Bool(true));
        let mut groups = self.groups.clone();
        groups.sort_unstable();
        groups.dedup();
        is("scoring") == self.scoring
            && is("claiming") == (self.claiming || !groups.is_empty())
            && shown.get("groups") == Some(&json!(groups))
    }
}
