#!/bin/sh
# Builds build/near-first.wasm. `fulcrum policy build` runs it.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/.venv/bin:$PATH"
# The package ziglang has zig under another name.
zig="$(command -v python-zig || command -v zig || true)"
if [ -z "$zig" ]; then
    echo "zig is missing: run \`python3 -m venv .venv && .venv/bin/pip install -r requirements.txt\` in $PWD (pins" \
        "ziglang 0.17.1)" >&2
    exit 1
fi
mkdir -p build
# Without --stack a module begins with 16 MiB of memory.
"$zig" build-exe abi.zig -target wasm32-freestanding -O ReleaseFast -fstrip -fno-entry -rdynamic --stack 65536 \
    -femit-bin=build/core.wasm
"${FULCRUM:-fulcrum}" policy pack build/core.wasm --world scoring-policy -o build/near-first.wasm
