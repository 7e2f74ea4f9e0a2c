//! The released contract is never edited: `wit/policy.wit` has the digest that `wit/policy.wit.sha256` says.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};

use crate::policies::hex;

/// The contract, from the root.
const TEXT: &str = "wit/policy.wit";
/// Its digest as it was released, as `sha256sum` writes it.
const RELEASED: &str = "wit/policy.wit.sha256";

/// Fails, saying what to do instead, if the contract is not the released text.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let read = |path: &str| fs::read(root.join(path)).with_context(|| format!("cannot read {path}"));
    let found = hex(&Sha256::digest(read(TEXT)?));
    let released = String::from_utf8(read(RELEASED)?).with_context(|| format!("{RELEASED} is not text"))?;
    let released = released.split_whitespace().next().with_context(|| format!("{RELEASED} is empty"))?;
    ensure!(
        found == released,
        "{TEXT} is not the released text (sha256 {found}, released {released}): a released contract is never \
         edited, not even its comments, because components and hosts in the field go by it. Restore the file and \
         make a new version: a new folder beside it with the next version number, a module for it in \
         host/crates/policy, a row in wit/HISTORY.md"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_released_text_passes() {
        let check = |text: &str, released: &str, expected: Result<(), &[&str]>| {
            let root = tempfile::tempdir().expect("a folder");
            fs::create_dir(root.path().join("wit")).expect("a folder");
            fs::write(root.path().join(TEXT), text).expect("a file");
            fs::write(root.path().join(RELEASED), released).expect("a file");
            match (super::check(root.path()), expected) {
                (Ok(()), expected) => assert_eq!(expected, Ok(()), "{text:?} passes"),
                (Err(error), Ok(())) => panic!("{text:?} is refused: {error:#}"),
                (Err(error), Err(words)) => {
                    let said = format!("{error:#}");
                    assert!(words.iter().all(|word| said.contains(word)), "{said}");
                }
            }
        };
        let released = format!("{}  policy.wit\n", hex(&Sha256::digest("package p;\n")));
        check("package p;\n", &released, Ok(()));
        let refusal = ["never edited", "new version", "new folder", "wit/HISTORY.md"];
        check("package q;\n", &released, Err(&refusal));
        check("/// A better comment.\npackage p;\n", &released, Err(&refusal));
        check("package p;\r\n", &released, Err(&refusal));
        check("package p;\n", "", Err(&["wit/policy.wit.sha256 is empty"]));
    }

    #[test]
    fn the_contract_of_this_repository_is_the_released_one() {
        super::check(&crate::root()).expect("it is never edited");
    }
}
