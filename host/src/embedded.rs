//! Default policies, built from `policies/` into `policies/prebuilt/` and compiled into the binary.

use fulcrum_policy::manager::Embedded;

/// The policy that serves scoring unless told otherwise; always embedded.
pub const DEFAULT_SCORING: &str = "p2c";

/// The policy that plans claims unless told otherwise.
pub const DEFAULT_CLAIMING: &str = "sticky";

macro_rules! policies {
    ($($name:literal),+ $(,)?) => {
        /// Returns the embedded policies, ordered by name.
        #[must_use]
        pub fn policies() -> Vec<Embedded> {
            vec![$(Embedded {
                name: $name,
                wasm: include_bytes!(concat!("../../policies/prebuilt/", $name, ".wasm")),
            }),+]
        }
    };
}

policies!(
    "average",
    "average-by-circle",
    "balanced",
    "by-config",
    "consistent-hash",
    "greedy",
    "machine-room",
    "machine-room-nearby",
    "p2c",
    "sticky",
    "weighted"
);

/// Returns the bytes of one embedded policy.
#[must_use]
pub fn find(name: &str) -> Option<&'static [u8]> {
    policies().into_iter().find(|policy| policy.name == name).map(|policy| policy.wasm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_embedded() {
        assert!(find(DEFAULT_SCORING).is_some());
        assert!(find(DEFAULT_CLAIMING).is_some());
        assert!(find("nothing").is_none());
    }
}
