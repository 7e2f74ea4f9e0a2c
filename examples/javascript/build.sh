#!/bin/sh
# Builds build/near-first.wasm. `fulcrum policy build` runs it after it has looked for the tools.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/node_modules/.bin:$PATH"
mkdir -p build
# One file goes in: bundle dependencies first. Without --sync a host refuses it, without --stub-wasi it imports WASI.
componentize-qjs --wit wit --world scoring-policy --js policy.js --sync --stub-wasi --output build/near-first.wasm
