#!/bin/sh
# Builds build/near-first.wasm. `fulcrum policy build` runs it after it has looked for the tools.
set -eu
cd "$(dirname "$0")"
target="${CARGO_TARGET_DIR:-target}"
# The flags in FULCRUM_CARGO_FLAGS build the standard library where the tool chain has none for this target.
# shellcheck disable=SC2086
"${CARGO:-cargo}" build --release --target wasm32-unknown-unknown ${FULCRUM_CARGO_FLAGS:-}
mkdir -p build
"${FULCRUM:-fulcrum}" policy pack "$target/wasm32-unknown-unknown/release/near_first.wasm" -o build/near-first.wasm
