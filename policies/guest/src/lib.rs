//! Helper for Fulcrum policies written in Rust.
//!
//! A policy is one type that implements [`Scoring`] or [`Claiming`]: pure code over plain types, with no trace of WIT
//! or WebAssembly. [`export_scoring!`] and [`export_claiming!`] wrap it into the guest shell when the target is wasm32
//! and do nothing elsewhere, so the same code runs natively in tests, benches and parity checks.
//!
//! - [`scoring`]: the types of the scoring role and its trait,
//! - [`claiming`]: the types of the claiming role and its trait, and what several claim policies share,
//! - [`cost`]: the load-cost maths and the kept board of costs that the default scoring policies share,
//! - [`config`]: configuration from JSON, with errors that name the field,
//! - [`seeded`]: choice from the seed of a decision,
//! - `testing` (a feature): the properties every scoring and every claiming policy must have.
//!
//! Invariants: time and chance come in as arguments only; nothing here reads a clock, an environment or entropy.

pub mod claiming;
pub mod config;
pub mod cost;
pub mod scoring;
pub mod seeded;

#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod shell;

#[cfg(feature = "testing")]
pub mod testing;

pub use claiming::{Changes, Claiming, Cycle, Member};
pub use scoring::{Description, Error, Loads, Recommendation, Request, Row, ScoreParts, Scoring, flag};

/// Exports a type that implements [`Scoring`] as the scoring role of a component. Does nothing natively.
///
/// Use it once, in the library root of a `cdylib` crate: `fulcrum_guest::export_scoring!(logic::Weighted);`
#[macro_export]
macro_rules! export_scoring {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, missing_docs, reason = "generated bindings and their C exports")]
        mod fulcrum_guest_shell {
            use ::core::cell::RefCell;
            use $crate::shell::{self, lifecycle, scoring};

            use super::*;

            ::std::thread_local! {
                static POLICY: RefCell<Option<$policy>> = const { RefCell::new(None) };
            }

            struct Shell;

            impl lifecycle::Guest for Shell {
                fn describe() -> lifecycle::Description {
                    shell::describe::<$policy>()
                }

                fn configure(config: ::std::string::String) -> ::core::result::Result<(), lifecycle::Error> {
                    shell::configure(&POLICY, &config)
                }
            }

            impl scoring::Guest for Shell {
                fn roster(instances: ::std::vec::Vec<scoring::Instance>) -> ::core::result::Result<(), lifecycle::Error> {
                    shell::roster(&POLICY, instances)
                }

                fn refresh(loads: scoring::Loads) -> ::core::result::Result<(), lifecycle::Error> {
                    shell::refresh(&POLICY, loads)
                }

                fn recommend(
                    request: scoring::Request,
                ) -> ::core::result::Result<scoring::Recommendation, lifecycle::Error> {
                    shell::recommend(&POLICY, &request)
                }

                fn explain(
                    request: scoring::Request,
                ) -> ::core::result::Result<::std::vec::Vec<scoring::ScoreParts>, lifecycle::Error> {
                    shell::explain(&POLICY, &request)
                }
            }

            $crate::shell::bindings::export_scoring_policy!(Shell with_types_in $crate::shell::bindings);
        }
    };
}

/// Exports a type that implements [`Claiming`] as the claiming role of a component. Does nothing natively.
///
/// Use it once, in the library root of a `cdylib` crate: `fulcrum_guest::export_claiming!(logic::Sticky);`
#[macro_export]
macro_rules! export_claiming {
    ($policy:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, missing_docs, reason = "generated bindings and their C exports")]
        mod fulcrum_guest_shell {
            use ::core::cell::RefCell;
            use $crate::shell::claiming::{self as shell, claiming, lifecycle};

            use super::*;

            ::std::thread_local! {
                static POLICY: RefCell<Option<$policy>> = const { RefCell::new(None) };
            }

            struct Shell;

            impl lifecycle::Guest for Shell {
                fn describe() -> lifecycle::Description {
                    shell::describe::<$policy>()
                }

                fn configure(config: ::std::string::String) -> ::core::result::Result<(), lifecycle::Error> {
                    shell::configure(&POLICY, &config)
                }
            }

            impl claiming::Guest for Shell {
                fn plan(cycle: claiming::Cycle) -> ::core::result::Result<claiming::Changes, lifecycle::Error> {
                    shell::plan(&POLICY, cycle)
                }
            }

            $crate::shell::claiming::bindings::export_claiming_policy!(
                Shell with_types_in $crate::shell::claiming::bindings
            );
        }
    };
}
