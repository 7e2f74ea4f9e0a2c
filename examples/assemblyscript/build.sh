#!/bin/sh
# Builds build/near-first.wasm. `fulcrum policy build` runs it.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/node_modules/.bin:$PATH"
if ! command -v asc > /dev/null; then
    echo "asc is missing: run \`npm ci\` in $PWD (package-lock.json pins assemblyscript 0.28.20)" >&2
    exit 1
fi
mkdir -p build
# Of the runtimes only this one collects by itself. Warning 235 is about classes, which are no exports of a module.
asc abi.ts -O3 --runtime incremental --use abort=abi/fail --transform ./names.mjs --disableWarning 235 \
    -o build/core.wasm
"${FULCRUM:-fulcrum}" policy pack build/core.wasm --world scoring-policy -o build/near-first.wasm
