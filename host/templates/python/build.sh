#!/bin/sh
# Builds build/{{name}}.wasm. `fulcrum policy build` runs it after it has looked for the tools.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/.venv/bin:$PATH"
mkdir -p build
# --stub-wasi leaves no import but the host's log.
componentize-py --wit-path wit --world {{role}}-policy componentize --stub-wasi -p src app -o build/{{name}}.wasm
