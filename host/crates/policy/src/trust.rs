//! Signatures of policy files: whose word a host takes for what it is given to run.
//!
//! A detached signature is ed25519 over a text that names the kind of file and its sha256, in base64 on one line. A
//! component's vouches for its content under any name. A configuration's vouches for its content under one policy's name:
//! what is harmless for one policy need not be for another.
//!
//! Invariants: verification is strict (no malleable signatures, no weak keys); a private key is never shown by `Debug` or
//! in an error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

/// What a private key's file starts with.
const PRIVATE_MARK: &str = "fulcrum-private-key-1";

/// Says whether a text has a private key in it, which must not be repeated anywhere.
#[must_use]
pub fn holds_private_key(text: &str) -> bool {
    text.contains(PRIVATE_MARK)
}

/// A key or a signature is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("not a public key: expected base64 of 32 bytes, as `fulcrum policy keygen` prints it")]
    PublicKey,
    #[error("a weak public key: anyone can make signatures that fit it")]
    WeakKey,
    #[error("not a private key of `fulcrum policy keygen`")]
    PrivateKey,
    #[error("it is not a signature: expected base64 of 64 bytes")]
    SignatureSyntax,
    #[error(
        "none of the trusted keys made it for this content; sign the file as it is now, with a key that is in policy.trusted_keys"
    )]
    Stranger,
    // It cannot be told from the signature which name it was made for.
    #[error(
        "{}; a configuration's signature holds for one policy name: this one must be made for `{policy}` (sign it under the name {policy}.json, or push with --sign-key)",
        Self::Stranger
    )]
    ConfigStranger { policy: String },
}

/// What is signed.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// A component, by the lower-case hex sha256 of its bytes.
    Component {
        /// The digest.
        digest: &'a str,
    },
    /// The configuration of a policy, by the digest of its text.
    Config {
        /// The policy's name.
        policy: &'a str,
        /// The digest.
        digest: &'a str,
    },
}

impl Content<'_> {
    /// Returns the bytes that are signed. No two contents have the same: names hold no line ends.
    fn message(&self) -> Vec<u8> {
        match self {
            Self::Component { digest } => format!("fulcrum policy component 1\n{digest}\n"),
            Self::Config { policy, digest } => {
                format!("fulcrum policy configuration 1\n{policy}\n{digest}\n")
            }
        }
        .into_bytes()
    }
}

/// The public keys a host trusts; at least one.
#[derive(Clone, Debug)]
pub struct TrustedKeys(Vec<VerifyingKey>);

impl TrustedKeys {
    /// Reads keys, each in base64; `None` if there are none.
    pub fn parse<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Option<Self>, Error> {
        let keys = keys.into_iter().map(public_key).collect::<Result<Vec<_>, _>>()?;
        Ok((!keys.is_empty()).then_some(Self(keys)))
    }

    /// Returns how many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Checks that one of the keys signed a content; `signature` is the text of its file.
    pub fn check(&self, content: Content<'_>, signature: &str) -> Result<(), Error> {
        let bytes: [u8; 64] = decode(signature).ok_or(Error::SignatureSyntax)?;
        let (signature, message) = (Signature::from_bytes(&bytes), content.message());
        let is_signed = self.0.iter().any(|key| key.verify_strict(&message, &signature).is_ok());
        match content {
            _ if is_signed => Ok(()),
            Content::Component { .. } => Err(Error::Stranger),
            Content::Config { policy, .. } => Err(Error::ConfigStranger { policy: policy.to_owned() }),
        }
    }
}

/// Reads a public key in base64.
fn public_key(text: &str) -> Result<VerifyingKey, Error> {
    let bytes: [u8; 32] = decode(text).ok_or(Error::PublicKey)?;
    let key = VerifyingKey::from_bytes(&bytes).map_err(|_| Error::PublicKey)?;
    if key.is_weak() { Err(Error::WeakKey) } else { Ok(key) }
}

/// A key that signs.
pub struct PrivateKey(SigningKey);

impl PrivateKey {
    /// Makes the key that belongs to 32 unguessable bytes.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// Reads the text of a private key's file.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let seed = text.trim().strip_prefix(PRIVATE_MARK).and_then(decode).ok_or(Error::PrivateKey)?;
        Ok(Self::from_seed(&seed))
    }

    /// Returns the text of its file: whoever reads it can sign.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{PRIVATE_MARK} {}\n", BASE64.encode(self.0.to_bytes()))
    }

    /// Returns its public half in base64.
    #[must_use]
    pub fn public(&self) -> String {
        BASE64.encode(self.0.verifying_key().to_bytes())
    }

    /// Returns the text of a signature's file.
    #[must_use]
    pub fn sign(&self, content: Content<'_>) -> String {
        format!("{}\n", BASE64.encode(self.0.sign(&content.message()).to_bytes()))
    }
}

fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    BASE64.decode(text.trim()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const OTHER: &str = "f3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn trusted(keys: &[&PrivateKey]) -> TrustedKeys {
        let keys: Vec<_> = keys.iter().map(|key| key.public()).collect();
        TrustedKeys::parse(keys.iter().map(String::as_str)).expect("they are keys").expect("there are some")
    }

    #[test]
    fn only_what_was_signed_by_a_trusted_key_is_vouched_for() {
        let (mine, yours) = (PrivateKey::from_seed(&[1; 32]), PrivateKey::from_seed(&[2; 32]));
        let component = Content::Component { digest: DIGEST };
        let config = |policy| Content::Config { policy, digest: DIGEST };
        let check = |keys: &[&PrivateKey], signed: Content<'_>, shown: Content<'_>, expected| {
            let found = trusted(keys).check(shown, &mine.sign(signed));
            assert_eq!(found, expected, "{signed:?} shown as {shown:?}");
        };
        check(&[&mine], component, component, Ok(()));
        check(&[&yours, &mine], component, component, Ok(()));
        check(&[&mine], config("a"), config("a"), Ok(()));
        check(&[&yours], component, component, Err(Error::Stranger));
        check(&[&mine], component, Content::Component { digest: OTHER }, Err(Error::Stranger));
        let stranger = |policy: &str| Err(Error::ConfigStranger { policy: policy.to_owned() });
        check(&[&mine], config("a"), config("b"), stranger("b"));
        check(&[&yours], config("a"), config("a"), stranger("a"));
        check(&[&mine], config("a"), component, Err(Error::Stranger));
        check(&[&mine], component, config("a"), stranger("a"));
    }

    #[test]
    fn a_configuration_is_told_the_name_its_signature_must_be_for() {
        let check = |error: Error, expected| {
            let found = error.to_string();
            assert!(found.starts_with("none of the trusted keys made it for this content; sign"), "{found}");
            assert_eq!(
                found.contains("must be made for `other` (sign it under the name other.json,"),
                expected
            );
        };
        check(Error::Stranger, false);
        check(Error::ConfigStranger { policy: "other".to_owned() }, true);
    }

    #[test]
    fn damaged_signatures_are_refused() {
        let key = PrivateKey::from_seed(&[1; 32]);
        let content = Content::Component { digest: DIGEST };
        let signature = key.sign(content);
        let bytes = BASE64.decode(signature.trim()).expect("base64");
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            let found = trusted(&[&key]).check(content, &BASE64.encode(bytes));
            assert_eq!(found, Err(Error::Stranger), "byte {at}");
        }
        for text in ["", "no", &signature[..40], &BASE64.encode([0; 63]), &BASE64.encode([0; 65])] {
            assert_eq!(trusted(&[&key]).check(content, text), Err(Error::SignatureSyntax), "{text}");
        }
        assert_eq!(trusted(&[&key]).check(content, &format!("  {}\r\n", signature.trim())), Ok(()));
    }

    #[test]
    fn keys_are_read_and_written() {
        let key = PrivateKey::from_seed(&[7; 32]);
        let again = PrivateKey::parse(&key.to_text()).expect("it is one");
        assert_eq!(again.public(), key.public());
        for text in ["", "x", key.public().as_str(), "fulcrum-private-key-1 AAAA"] {
            assert_eq!(PrivateKey::parse(text).err(), Some(Error::PrivateKey), "{text}");
        }
        let check = |text: &str, expected| {
            assert_eq!(TrustedKeys::parse([text]).err(), Some(expected), "{text}");
        };
        check("", Error::PublicKey);
        check("AAAA", Error::PublicKey);
        check(&key.to_text(), Error::PublicKey);
        // Half of all numbers are no point of the curve.
        let not_on_the_curve = (2..20).map(|y| [[y].as_slice(), &[0; 31]].concat()).find(|bytes| {
            TrustedKeys::parse([BASE64.encode(bytes).as_str()]).err() == Some(Error::PublicKey)
        });
        assert!(not_on_the_curve.is_some());
        // The neutral element, of which every signature can be made.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        check(&BASE64.encode(neutral), Error::WeakKey);
        assert!(TrustedKeys::parse([]).expect("none is fine").is_none());
    }
}
