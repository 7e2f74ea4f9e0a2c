#!/bin/sh
# Builds build/near-first.wasm. `fulcrum policy build` runs it after it has looked for the tools.
set -eu
cd "$(dirname "$0")"
mkdir -p build
# Any clang that knows WASI will do; `fulcrum policy build` names the one it found in WASI_CC.
# shellcheck disable=SC2086
${WASI_CC:-zig cc --target=wasm32-wasi} -mexec-model=reactor -std=c11 -O2 -s -Wall -Wextra -Wl,-z,stack-size=65536 \
    -I gen policy.c gen/scoring_policy.c -o build/core.wasm
"${FULCRUM:-fulcrum}" policy pack build/core.wasm --world scoring-policy -o build/near-first.wasm
