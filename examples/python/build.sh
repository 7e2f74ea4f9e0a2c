#!/bin/sh
# Builds build/near-first.wasm. `fulcrum policy build` runs it after it has looked for the tools.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/.venv/bin:$PATH"
mkdir -p build
# --stub-wasi leaves no import but the host's log.
componentize-py --wit-path wit --world scoring-policy componentize --stub-wasi -p src app -o build/near-first.wasm
