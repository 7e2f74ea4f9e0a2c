#!/bin/sh
# Asks the built policy the questions in test/cases.jsonl and compares its answers with test/expected.jsonl.
set -eu
cd "$(dirname "$0")"
"${FULCRUM:-fulcrum}" policy eval build/near-first.wasm --role scoring --config test/config.json < test/cases.jsonl > build/answers.jsonl
diff test/expected.jsonl build/answers.jsonl
echo "all answers are as expected"
