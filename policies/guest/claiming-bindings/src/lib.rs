//! What `wit-bindgen` generates for the claiming world; empty unless the target is wasm32.
//!
//! A crate of its own because the macros it exports have the names of those of the scoring world. The conversions to
//! plain types are in `fulcrum-guest`.

#[cfg(target_arch = "wasm32")]
#[allow(
    unsafe_code,
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "generated: lowering and lifting of the component model's types"
)]
mod generated {
    wit_bindgen::generate!({
        world: "claiming-policy",
        path: "../../../wit",
        pub_export_macro: true,
        export_macro_name: "export_claiming_policy",
    });
}

#[cfg(target_arch = "wasm32")]
pub use generated::*;
