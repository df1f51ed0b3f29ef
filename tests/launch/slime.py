"""Launch scripts in the form of slime's (scripts/run-*.sh with scripts/models/*.sh), around the flags that those give.

The model flags are those of tests/golden/slime_args.json; the other flags are facts of the published scripts. Texts, names and
comments are written here. Each script spells its flags with another means of the shell, as the published ones do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden import load, slime_args

CHAIN = {3: "3 1 4", 4: "4 1 5"}


@dataclass(frozen=True)
class Published:
    """One published run: its model script, the release it trains, parallel sizes, server and MTP flags."""

    name: str
    model: str
    golden: str
    nodes: str
    parallel: str
    server: str
    steps: int = 3
    mtp: str = ""
    fills: dict[str, Any] = field(default_factory=dict)


PUBLISHED = {
    run.name: run
    for run in (
        Published(
            "mimo-7B",
            "mimo-7B-rl",
            "MiMo-7B",
            "1",
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --context-parallel-size 1"
            " --expert-model-parallel-size 1 --expert-tensor-parallel-size 1",
            "--rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.7 --sglang-attention-backend fa3",
            mtp="--enable-mtp-training --mtp-loss-scaling-factor 0.2",
        ),
        Published(
            "glm4.7-flash",
            "glm4.7-30B-A3B",
            "GLM-4.7-Flash",
            "1",
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2"
            " --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --decoder-last-pipeline-num-layers 23",
            "--rollout-num-gpus-per-engine 8 --sglang-enable-dp-attention --sglang-dp-size 8 --sglang-enable-dp-lm-head"
            " --sglang-moe-dense-tp-size 1 --sglang-cuda-graph-max-bs 64 --sglang-max-running-requests 512",
            mtp="--mtp-num-layers 1 --enable-mtp-training --mtp-loss-scaling-factor 0.2",
        ),
        Published(
            "glm4.7",
            "glm4.5-355B-A32B",
            "GLM-4.5",
            "${ACTOR_NUM_NODES:-8}",
            "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --context-parallel-size 2"
            " --expert-model-parallel-size 16 --expert-tensor-parallel-size 1",
            "--rollout-num-gpus-per-engine 32 --sglang-enable-dp-attention --sglang-dp-size 4 --sglang-ep-size 32"
            " --sglang-enable-dp-lm-head --sglang-moe-dense-tp-size 1",
        ),
        Published(
            "glm5.2",
            "glm5.2-744B-A40B",
            "GLM-5.2",
            "32",
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 --decoder-first-pipeline-num-layers 14"
            " --decoder-last-pipeline-num-layers 16 --context-parallel-size 8 --expert-model-parallel-size 32"
            " --expert-tensor-parallel-size 1",
            "--rollout-num-gpus-per-engine 64 --sglang-enable-dp-attention --sglang-ep-size 64 --sglang-dp-size 64"
            " --sglang-nsa-decode-backend flashmla_kv --sglang-nsa-prefill-backend flashmla_sparse"
            " --sglang-attention-backend nsa --sglang-kv-cache-dtype fp8_e4m3 --sglang-cuda-graph-max-bs 8"
            ' --sglang-config "${SGLANG_CONFIG_FILE}" --sglang-speculative-draft-attention-backend nsa',
            steps=4,
        ),
        Published(
            "qwen3-next",
            "qwen3-next-80B-A3B",
            "Qwen3-Next-80B-A3B-Instruct",
            '"${ACTOR_NUM_NODES:-4}"',
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 9"
            ' --context-parallel-size "${CP_SIZE:-4}" --expert-model-parallel-size 8 --expert-tensor-parallel-size 1',
            "--rollout-num-gpus-per-engine 8 --sglang-ep-size 8 --sglang-cuda-graph-bs 1 2 4 8 $(seq 16 8 128)"
            " --sglang-max-running-requests 256",
        ),
        Published(
            "qwen3.5-27B",
            "qwen3.5-27B",
            "Qwen3.5-27B",
            '"${ACTOR_NUM_NODES:-4}"',
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 30"
            ' --context-parallel-size "${CP_SIZE:-4}" --expert-model-parallel-size 1 --expert-tensor-parallel-size 1',
            "--rollout-num-gpus-per-engine 2 --sglang-mamba-scheduler-strategy extra_buffer",
            # not recorded of this release; those of a sister release of the same sizes, and one that no flag depends on
            fills={
                "rms_norm_eps": 1e-6,
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
                "max_position_embeddings": 262144,
            },
        ),
        Published(
            "deepseek-r1",
            "deepseek-v3",
            "DeepSeek-R1",
            "16",
            "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --context-parallel-size 4"
            " --expert-model-parallel-size 32 --expert-tensor-parallel-size 1 --decoder-last-pipeline-num-layers 13",
            "--rollout-num-gpus-per-engine 64 --sglang-ep-size 64 --sglang-enable-dp-attention --sglang-dp-size 8"
            " --sglang-moe-dense-tp-size 1 --sglang-enable-dp-lm-head --sglang-moe-a2a-backend deepep"
            " --sglang-deepep-mode auto --sglang-server-concurrency 1024",
        ),
    )
}


def config_of(run: Published) -> dict[str, Any]:
    """The release's config; of one that is not recorded whole, filled up."""
    config = load(run.golden).config
    config.get("text_config", config).update(run.fills)
    return config


def flag_lines(model: str) -> list[str]:
    """The flags of a model script, one per line."""
    lines = []
    for flag, value in slime_args()[model].flags.items():
        words = [] if value is True else [str(v) for v in value] if isinstance(value, list) else [str(value)]
        lines.append(" ".join([flag, *(f'"{word}"' if word.startswith("[") else word for word in words)]))
    return lines


def model_script(model: str) -> str:
    """A models/*.sh: layer counts by arithmetic, layer patterns by a loop where the published script has one."""
    lines = flag_lines(model)
    head = ["# sizes of " + model]
    for number, line in enumerate(lines):
        flag, _, value = line.partition(" ")
        if flag == "--moe-layer-freq" and "*" in value:
            dense = int(value.strip('"').split("*")[1].split("+")[0])
            head += [f"DENSE={dense}", f"MOE={value.strip(chr(34)).rpartition('*')[2]}"]
            lines[number] = "--moe-layer-freq [0]*$DENSE+[1]*$MOE"
        elif flag == "--moe-layer-freq":
            pattern = json.loads(json.loads(value) if value.startswith('"[\\') else value.strip('"'))
            head += loop(len(pattern), pattern.count(0))
            lines[number] = '--moe-layer-freq "$PATTERN"'
    counted = "DENSE + MOE" if any("$DENSE" in line for line in lines) else ""
    lines = [f"--num-layers $(({counted}))" if counted and line.startswith("--num-layers ") else line for line in lines]
    return "\n".join([*head, "MODEL_ARGS=(", *("    " + line for line in lines), ")"])


def loop(count: int, dense: int) -> list[str]:
    return [
        f'COUNT="${{LAYERS_OVERRIDE:-{count}}}"',
        f"FIRST_DENSE={dense}",
        "kinds=()",
        "for ((n = 0; n < COUNT; n++)); do",
        "  if (( n < FIRST_DENSE )); then",
        "    kinds+=(0)",
        "  else",
        "    kinds+=(1)",
        "  fi",
        "done",
        """printf -v PATTERN "[%s]" "$(IFS=', '; echo "${kinds[*]}")\"""",
    ]


def write(run: Published, folder: Path, target: Path, torch_dist: Path | str, extra: str = "") -> Path:
    """The run script and its model script below `folder`; `extra` flags come last."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    (folder / "models" / f"{run.model}.sh").write_text(model_script(run.model))
    steps, topk, tokens = CHAIN[run.steps].split()
    text = f"""#!/bin/bash
set -ex
if [ -z "${{MASTER_ADDR:-}}" ]; then
  echo "no master"; exit 1
fi
HERE="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" &>/dev/null && pwd)"
source "${{HERE}}/models/{run.model}.sh"
SGLANG_CONFIG_FILE=$(mktemp)
cat > "$SGLANG_CONFIG_FILE" <<CFG
sglang: [ # not bash: it's ( yaml
CFG

CKPT_ARGS=(
   --hf-checkpoint {target}
   # --hf-checkpoint /somewhere/else
   --ref-load {torch_dist}
   --load {folder}/not-started-yet/
   --save {folder}/not-started-yet/
)
PERF_ARGS=(
   {run.parallel}
   --use-dynamic-batch-size   # packs
)
MTP_ARGS=(
   {run.mtp}
)
WANDB_ARGS=(
   # --use-wandb
)
SGLANG_ARGS=(
   {run.server}

   # mtp
   --sglang-speculative-algorithm EAGLE
   --sglang-speculative-num-steps {steps}
   --sglang-speculative-eagle-topk {topk}
   --sglang-speculative-num-draft-tokens {tokens}
)
ray job submit --address="http://127.0.0.1:8265" \\
   -- python3 train.py \\
   --actor-num-nodes {run.nodes} \\
   --actor-num-gpus-per-node 8 \\
   --colocate \\
   ${{MODEL_ARGS[@]}} \\
   ${{CKPT_ARGS[@]}} \\
   "${{WANDB_ARGS[@]}}" \\
   ${{PERF_ARGS[@]}} \\
   ${{SGLANG_ARGS[@]}} \\
   ${{MTP_ARGS[@]}} {extra}
"""
    path = folder / f"run-{run.name}.sh"
    path.write_text(text)
    return path
