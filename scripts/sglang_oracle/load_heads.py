#!/usr/bin/env python3
"""Load draft heads through sglang's own config, registry, classes and `load_weights`; one JSON object per folder.

Every parameter is first made float32 and filled with NaN, and every stored tensor filled with a number of its own, so that
what was written, from what, and what was never touched can be told afterwards, float8 weights and their scales included.
sglang itself says nothing about either.

  unwritten   parameters that no tensor reached; those of the target (embedding, lm_head) are replaced by the server
  partial     parameters of which only a part was written
  ignored     stored tensors that reached no parameter; d2t and t2d, which are no weights, left aside
  hot_ids     the first target ids that the draft's ids stand for
"""

import inspect
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

MAPS = (torch.int64, torch.int32, torch.bool)


def start():
    """One process that is its own tensor-parallel group."""
    from sglang.test.layer_ut_utils import init_single_process_dist

    init_single_process_dist(backend="gloo")
    torch.set_default_dtype(torch.bfloat16)


def built(folder, depth):
    """(architecture as sglang resolves it, an instance of its class), quantised as config.json says.

    `depth` is the MTP layer that the instance is for, of a class that has one instance per layer.
    """
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader import loader

    config = ModelConfig(str(folder), is_draft_model=True, dtype="bfloat16", trust_remote_code=True)
    kind, architecture = loader.get_model_architecture(config)
    per_layer = "draft_model_idx" in inspect.signature(kind.__init__).parameters
    load_config = LoadConfig(draft_model_idx=depth if per_layer else None)
    quantisation = loader._get_quantization_config(config, load_config)
    return architecture, loader._initialize_model(config, load_config, quantisation), per_layer


def marked(folder):
    """(name, tensor) of the folder, filled with 1, 2, 3, ... but for vocabulary maps; and name -> number."""
    numbers, tensors = {}, []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as stream:
            for name in stream.keys():  # noqa: SIM118
                tensor = stream.get_tensor(name)
                if tensor.dtype not in MAPS:
                    numbers[name] = float(len(numbers) + 1)
                    tensor = torch.full(tensor.shape, numbers[name])
                tensors.append((name, tensor))
    return tensors, numbers


def load(folder, depth=0):
    """What one instance of the class made of the folder."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    architecture, model, per_layer = built(folder, depth)
    parameters = {name: p for name, p in model.named_parameters() if p.dtype not in MAPS}
    for parameter in parameters.values():
        parameter.data = torch.full(parameter.shape, float("nan"))
    tensors, numbers = marked(folder)
    reaching = iter(tensors)
    if per_layer:
        reaching = DefaultModelLoader._filter_mtp_weights(reaching, "", depth)
    model.load_weights(reaching)
    unwritten, partial, seen = [], [], set()
    for name, parameter in parameters.items():
        gaps = torch.isnan(parameter.data)
        if gaps.all():
            unwritten.append(name)
        elif gaps.any():
            partial.append(name)
        seen |= set(torch.unique(parameter.data[~gaps]).tolist())
    hot = getattr(model, "hot_token_id", None)
    found = {
        "architecture": architecture,
        "written": len(parameters) - len(unwritten),
        "unwritten": unwritten,
        "partial": partial,
        "ignored": [name for name, number in numbers.items() if number not in seen],
        "hot_ids": None if hot is None else hot.tolist()[:16],
    }
    return found, per_layer


def check(folder):
    """Of a class with one instance per MTP layer: all of them together."""
    found, per_layer = load(folder)
    depth = 1
    while per_layer and any(f"model.mtp.layers.{depth}." in name for name in found["ignored"]):
        more, _ = load(folder, depth)
        found["unwritten"] = sorted({*found["unwritten"], *more["unwritten"]})
        found["partial"] = sorted({*found["partial"], *more["partial"]})
        found["ignored"] = [name for name in found["ignored"] if name in more["ignored"]]
        depth += 1
    return found


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
