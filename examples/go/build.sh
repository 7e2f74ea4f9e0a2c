#!/bin/sh
# Builds build/near-first.wasm. `fulcrum policy build` runs it after it has looked for the tools.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/.venv/bin:$PATH"
# Nothing is downloaded: the one dependency lies in pkg/.
export GOTOOLCHAIN=local GOPROXY=off GOSUMDB=off GOFLAGS=-mod=mod
mkdir -p build
GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags="-checklinkname=0 -s -w" -o build/core.wasm ./gen
# Go's runtime wants WASI preview 1; `pack` answers it inside the component, so that the policy imports nothing.
"${FULCRUM:-fulcrum}" policy pack build/core.wasm --world scoring-policy -o build/near-first.wasm
