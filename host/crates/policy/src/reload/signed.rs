//! What vouches for the files of one policy, in the folder and in what is kept of it for a restart.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::artifact::digest;
use crate::refusal::Refusal;
use crate::trust::{Content, TrustedKeys};

/// The signatures of a policy's files; none of them checked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signatures {
    /// Text of `NAME.wasm.sig`.
    pub component: Option<String>,
    /// The configuration's file with its signature.
    pub config: Option<SignedConfig>,
}

/// A configuration's text as it was signed: the same JSON in other words would have another digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SignedConfig {
    /// Text of `NAME.json`.
    pub text: String,
    /// Text of `NAME.json.sig`.
    pub signature: String,
}

impl Signatures {
    /// Checks that trusted keys vouch for a component, by its digest (`None` for an embedded one, which is part of the
    /// host), and for its configuration. An empty configuration is as good as none and needs no signature.
    pub(super) fn check(
        &self,
        keys: &TrustedKeys,
        name: &str,
        component: Option<&str>,
        config: &Value,
    ) -> Result<(), Refusal> {
        if let Some(digest) = component {
            let file = format!("{name}.wasm");
            let Some(signature) = &self.component else { return Err(Refusal::Unsigned { file }) };
            vouch(keys, file, Content::Component { digest }, signature)?;
        }
        if config.as_object().is_some_and(serde_json::Map::is_empty) {
            return Ok(());
        }
        let file = format!("{name}.json");
        match &self.config {
            Some(signed)
                if serde_json::from_str::<Value>(&signed.text).is_ok_and(|found| found == *config) =>
            {
                let digest = digest(signed.text.as_bytes());
                vouch(keys, file, Content::Config { policy: name, digest: &digest }, &signed.signature)
            }
            _ => Err(Refusal::Unsigned { file }),
        }
    }
}

fn vouch(keys: &TrustedKeys, file: String, content: Content<'_>, signature: &str) -> Result<(), Refusal> {
    keys.check(content, signature).map_err(|error| Refusal::Signature { file, error: error.to_string() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::trust::PrivateKey;

    #[test]
    fn all_of_a_version_is_vouched_for() {
        let key = PrivateKey::from_seed(&[1; 32]);
        let public = key.public();
        let keys = TrustedKeys::parse([public.as_str()]).expect("a key").expect("one");
        let (component, text) = (digest(b"component"), "{ \"x\": 1 }");
        let config = Content::Config { policy: "a", digest: &digest(text.as_bytes()) };
        let whole = Signatures {
            component: Some(key.sign(Content::Component { digest: &component })),
            config: Some(SignedConfig { text: text.to_owned(), signature: key.sign(config) }),
        };
        let without_config = Signatures { config: None, ..whole.clone() };
        let without_component = Signatures { component: None, ..whole.clone() };
        let check =
            |signatures: &Signatures, name: &str, component: Option<&str>, config, expected: Option<&str>| {
                let found = signatures.check(&keys, name, component, &config).err();
                let code = found.as_ref().map(Refusal::code);
                assert_eq!(code, expected, "{name} {component:?} {config}: {found:?}");
            };
        let mine = Some(component.as_str());
        check(&whole, "a", mine, json!({"x": 1}), None);
        check(&whole, "a", Some(&digest(b"other")), json!({"x": 1}), Some("signature"));
        check(&whole, "a", mine, json!({"x": 2}), Some("unsigned"));
        check(&whole, "b", mine, json!({"x": 1}), Some("signature"));
        check(&without_config, "a", mine, json!({"x": 1}), Some("unsigned"));
        check(&without_config, "a", mine, json!({}), None);
        check(&without_component, "a", mine, json!({"x": 1}), Some("unsigned"));
        check(&without_component, "a", None, json!({"x": 1}), None);
    }
}
