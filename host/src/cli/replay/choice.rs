//! Which of the recorded decisions are replayed.

use clap::Args;
use fulcrum_policy::journal::Record;
use fulcrum_policy::seat::Identity;

/// Fewest digits that name a digest.
const DIGITS_MIN: usize = 4;

/// Arguments that choose decisions; all that are given must hold.
#[derive(Debug, Default, Args)]
pub(super) struct Choice {
    /// Only decisions that were up to this policy: its name, the start of its digest, or its version as shown
    /// (12345678…+12345678)
    #[arg(long, value_name = "NAME|DIGEST")]
    pub(super) only: Option<String>,
    /// Only decisions of this role
    #[arg(long, value_name = "ROLE", value_parser = ["scoring", "claiming"])]
    role: Option<String>,
    /// Only plans for this group
    #[arg(long, value_name = "GROUP", conflicts_with = "client")]
    group: Option<String>,
    /// Only decisions for this client
    #[arg(long, value_name = "CLIENT")]
    client: Option<String>,
}

impl Choice {
    /// Says whether anything is left out.
    pub(super) fn is_given(&self) -> bool {
        let Self { only, role, group, client } = self;
        [only, role, group, client].into_iter().any(Option::is_some)
    }

    /// Says whether a decision is one of them.
    pub(super) fn takes(&self, record: &Record) -> bool {
        let (role, group, client) = match record {
            Record::Scoring(scoring) => ("scoring", None, Some(&scoring.request.client_id)),
            Record::Claiming(claiming) => ("claiming", Some(&claiming.cycle.group), None),
        };
        let is =
            |wanted: &Option<String>, found: Option<&String>| wanted.is_none() || wanted.as_ref() == found;
        let asked = record.course().asked.as_deref();
        self.role.as_ref().is_none_or(|wanted| wanted == role)
            && is(&self.group, group)
            && is(&self.client, client)
            && self.only.as_ref().is_none_or(|only| asked.is_some_and(|asked| is_version(only, asked)))
    }
}

/// Says whether somebody means this version.
fn is_version(wanted: &str, version: &Identity) -> bool {
    if wanted == version.name {
        return true;
    }
    let (digest, config) = match wanted.split_once('+') {
        Some((digest, config)) => (digest, Some(config)),
        None => (wanted, None),
    };
    let starts = |of: &str, start: &str| start.len() >= DIGITS_MIN && of.starts_with(start);
    starts(&version.digest, digest.trim_end_matches('…'))
        && config.is_none_or(|config| version.config_digest().is_some_and(|of| starts(&of, config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_in_many_ways() {
        let version = Identity {
            name: "mine".to_owned(),
            digest: "0123456789abcdef".to_owned(),
            config: r#"{"a":1}"#.to_owned(),
        };
        let label = version.label();
        for (wanted, expected) in [
            ("mine", true),
            ("min", false),
            ("0123", true),
            ("012", false),
            ("0123456789abcdef", true),
            ("01234567…", true),
            ("1234", false),
            (&*label, true),
            ("01234567…+00000000", false),
            ("", false),
        ] {
            assert_eq!(is_version(wanted, &version), expected, "{wanted}");
        }
        let plain = Identity { config: "{}".to_owned(), ..version };
        assert!(!is_version(&label, &plain) && is_version(&plain.label(), &plain));
    }
}
