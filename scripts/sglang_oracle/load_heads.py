#!/usr/bin/env python3
"""Load draft heads through sglang's own config, registry, classes and `load_weights`; one JSON object per folder.

Every parameter is first filled with NaN and every stored tensor with a number of its own, so that what was written, from
what, and what was never touched can be told afterwards. sglang itself says nothing about either.

  unwritten   parameters that no tensor reached; those of the target (embedding, lm_head) are replaced by the server
  partial     parameters of which only a part was written
  ignored     stored floating tensors that reached no parameter
  hot_ids     the first target ids that the draft's ids stand for
"""

import json
import logging
import sys
import traceback
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402


def start():
    """One process that is its own tensor-parallel group."""
    from sglang.test.layer_ut_utils import init_single_process_dist

    init_single_process_dist(backend="gloo")
    torch.set_default_dtype(torch.float32)


def built(folder):
    """(architecture as sglang resolves it, an instance of its class)."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader.loader import resolve_shared_experts_config
    from sglang.srt.models.registry import ModelRegistry
    from sglang.srt.runtime_context import get_model

    config = ModelConfig(str(folder), is_draft_model=True, dtype="float32", trust_remote_code=True)
    kind, architecture = ModelRegistry.resolve_model_cls(config.hf_config.architectures)
    shared = resolve_shared_experts_config(kind, config.hf_config, None)
    with get_model().override(shared_experts=shared):
        model = kind(config=config.hf_config)
    model.shared_experts_config = shared
    return architecture, model


def marked(folder):
    """(name, tensor) of the folder, floating ones filled with 1, 2, 3, ...; and name -> number."""
    numbers, tensors = {}, []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as stream:
            for name in stream.keys():  # noqa: SIM118
                tensor = stream.get_tensor(name)
                if tensor.is_floating_point():
                    numbers[name] = float(len(numbers) + 1)
                    tensor = torch.full(tensor.shape, numbers[name])
                tensors.append((name, tensor))
    return tensors, numbers


def check(folder):
    architecture, model = built(folder)
    parameters = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    for parameter in parameters.values():
        parameter.data.fill_(float("nan"))
    tensors, numbers = marked(folder)
    model.load_weights(iter(tensors))
    unwritten, partial, seen = [], [], set()
    for name, parameter in parameters.items():
        gaps = torch.isnan(parameter.data)
        if gaps.all():
            unwritten.append(name)
        elif gaps.any():
            partial.append(name)
        seen |= set(torch.unique(parameter.data[~gaps]).tolist())
    hot = getattr(model, "hot_token_id", None)
    return {
        "architecture": architecture,
        "written": len(parameters) - len(unwritten),
        "unwritten": unwritten,
        "partial": partial,
        "ignored": [name for name, number in numbers.items() if number not in seen],
        "hot_ids": None if hot is None else hot.tolist()[:16],
    }


def main():
    start()
    status = 0
    for folder in sys.argv[1:]:
        try:
            found = check(Path(folder))
        except Exception as problem:
            at = traceback.extract_tb(problem.__traceback__)[-1]
            found = {"error": f"{type(problem).__name__}: {problem}", "at": f"{Path(at.filename).name}:{at.lineno}"}
            status = 1
        print(json.dumps({"folder": folder, **found}), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
