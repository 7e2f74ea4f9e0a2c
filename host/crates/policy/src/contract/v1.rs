//! Generated bindings of `fulcrum:policy@1.0.0`.

wasmtime::component::bindgen!({
    path: "../../../wit",
    world: "policy",
    ownership: Borrowing { duplicate_if_necessary: true },
});
