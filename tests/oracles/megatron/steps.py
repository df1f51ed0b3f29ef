"""The steps a rank can run. Every function returns a JSON-serialisable result of this rank alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException

from . import training_state
from .forward import HfForward
from .hybrid import is_hybrid
from .model import rotary_frequencies, stored_tensors
from .setting import Setting
from .sharding import Layout

Result = dict[str, Any]


def run_step(step: dict[str, Any], layout: Layout) -> Result:
    """Run one step of any kind."""
    kinds: dict[str, Callable[[Setting], Result]] = {
        "load": load,
        "logits": logits,
        "save": save,
        "dump": dump,
        "mtp_loss": mtp_loss,
        "resume": resume,
    }
    return kinds[step["kind"]](Setting.read(step, layout))


def _sharded_state_dict(model: GPTModel, metadata: dict[str, Any] | None) -> dict[str, Any]:
    """The model's sharded state dict under a checkpoint's content metadata, asked for as training does."""
    metadata = dict(metadata or {})
    metadata["dp_cp_group"] = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state: dict[str, Any] = model.sharded_state_dict(prefix="", metadata=metadata)
    return state


def load_model(setting: Setting) -> tuple[GPTModel, dict[str, Any]]:
    """A model loaded from the step's directory with the default strictness, and the checkpoint's common state."""
    model = setting.model()
    directory = setting.step["dir"]
    metadata = dist_checkpointing.load_content_metadata(directory)
    loaded = dist_checkpointing.load({"model": _sharded_state_dict(model, metadata)}, directory)
    model.load_state_dict(loaded.pop("model"), strict=True)
    return model, loaded


def load(setting: Setting) -> Result:
    """Load, then compare every parameter bit by bit with what this rank must hold."""
    model, common = load_model(setting)
    full = setting.expected_full()
    names, mismatches = [], []
    for local_name, tensor in stored_tensors(model):
        name, expected = setting.expected(local_name, full)
        names.append(name)
        difference = difference_of(tensor, expected)
        if difference:
            mismatches.append({"rank": torch.distributed.get_rank(), "parameter": name, "reason": difference})
    return {
        "compared": len(names),
        "mismatches": mismatches,
        "names": names,
        "expected_names": sorted(full),
        "common": {key: common.get(key) for key in ("checkpoint_version", "iteration", "content_metadata")},
        "common_keys": sorted(map(str, common)),
    }


def difference_of(found: torch.Tensor, expected: torch.Tensor) -> str | None:
    """How two tensors differ, or None when dtype, shape and every bit agree."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype} {tuple(found.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    same = found.contiguous().view(torch.uint8) == expected.contiguous().view(torch.uint8)
    if bool(same.all()):
        return None
    wrong = (found != expected) | found.isnan() | expected.isnan()
    largest = (found - expected).abs().nan_to_num(0.0).max().item()
    return f"{int(wrong.sum())} of {found.numel()} differ by up to {largest:.3g}, {int(found.isnan().sum())} not loaded"


def logits(setting: Setting) -> Result:
    """Load, then compare the main and the MTP logits of a fixed batch with Hugging Face's (one rank, fp32)."""
    _require_one_rank(setting)
    if setting.dtype is not torch.float32:
        raise ValueError("logits are compared in fp32 only")
    model, _ = load_model(setting)
    judge = HfForward(setting.step["hf"])
    size = setting.hf_tensors["model.embed_tokens.weight"].shape[0]
    generator = torch.Generator().manual_seed(setting.step.get("seed", 1234))
    ids = torch.randint(0, size, (2, setting.step.get("length", 16)), generator=generator)
    main, mtp = megatron_logits(model, ids)
    result: Result = {"main": _compare([main[..., :size]], [judge.logits(ids)])}
    if mtp:
        known = [logits[:, : -1 - k, :size] for k, logits in enumerate(mtp)]
        result["mtp"] = _compare(known, judge.mtp_logits(ids))
    if is_hybrid(setting.hf_config):
        return result
    found, wanted = rotary_frequencies(model), judge.inverse_frequencies()
    return result | {"rotary_relative_difference": ((found - wanted).abs() / wanted).max().item()}


def _compare(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> dict[str, Any]:
    """The largest difference, and the smallest scale, over all heads compared; NaN is the largest difference there is."""
    if [t.shape for t in found] != [t.shape for t in wanted]:
        raise ValueError(f"logits of shapes {[t.shape for t in found]} instead of {[t.shape for t in wanted]}")
    differences = [(a - b).abs().max().nan_to_num(float("inf")).item() for a, b in zip(found, wanted, strict=True)]
    scale = min(t.abs().max().item() for t in wanted)
    return {"max_abs_difference": max(differences), "scale": scale, "heads": len(found)}


@torch.no_grad()
def megatron_logits(model: GPTModel, ids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Main logits and every MTP depth's logits, all [batch, sequence, vocabulary].

    MTP logits only exist inside the loss computation: labels are given, and the output layer's results are caught in
    the order of its calls, MTP depths first, the main head last. They are cloned, for the loss overwrites them.
    """
    seen: list[torch.Tensor] = []
    hook = model.output_layer.register_forward_hook(
        lambda module, args, out: seen.append(out[0].transpose(0, 1).clone())
    )
    length = ids.shape[1]
    positions = torch.arange(length).expand_as(ids)
    masked = torch.triu(torch.ones(1, 1, length, length), diagonal=1).bool()
    try:
        with_mtp = {"loss_mask": torch.ones_like(ids, dtype=torch.float32)} if model.config.mtp_num_layers else {}
        model(ids, positions, masked, labels=ids, **with_mtp)
    finally:
        hook.remove()
    if len(seen) != 1 + (model.config.mtp_num_layers or 0):
        raise RuntimeError(f"the output layer ran {len(seen)} times")
    return seen[-1], seen[:-1]


def mtp_loss(setting: Setting) -> Result:
    """Megatron's MTP losses of a batch on the Hugging Face weights, and what their sum alone moves (one rank, fp32).

    The main loss is multiplied by 0, so that every gradient is the MTP loss's.
    """
    _require_one_rank(setting)
    model = _with_hf_weights(setting).train()
    model.output_layer.gather_output = (
        False  # as in training; on one rank the same, but the loss may then be differentiated
    )
    ids, labels = (torch.tensor(setting.step[name]) for name in ("ids", "labels"))
    length = ids.shape[1]
    masked = torch.triu(torch.ones(1, 1, length, length), diagonal=1).bool()
    MTPLossLoggingHelper.tracker.clear()
    positions = torch.arange(length).expand_as(ids)
    main = model(ids, positions, masked, labels=labels, loss_mask=torch.tensor(setting.step["loss_mask"]))
    (main * 0).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    save_file({name: gradient.contiguous() for name, gradient in gradients.items()}, setting.step["out"])
    return {
        "losses": MTPLossLoggingHelper.tracker["values"].tolist(),
        "factor": model.config.mtp_loss_scaling_factor,
        "moved": sorted(gradients),
    }


def _with_hf_weights(setting: Setting) -> GPTModel:
    model, full = setting.model(), setting.expected_full()
    with torch.no_grad():
        for local_name, tensor in stored_tensors(model):
            tensor.copy_(setting.expected(local_name, full)[1])
    return model


def save(setting: Setting) -> Result:
    """Let Megatron save the Hugging Face weights under this layout; with `training`, as a training iteration does."""
    model = _with_hf_weights(setting)
    metadata = setting.step.get("content_metadata")
    training = setting.step.get("training")
    if training is not None and training.get("optimizer") == "distributed":
        metadata = {"distrib_optim_sharding_type": training_state.DEFAULT_SHARDING, **(metadata or {})}
    state = {"model": _sharded_state_dict(model, metadata)}
    if training is not None:
        state |= _training_entries(setting, model, state["model"], metadata, training)
    directory = Path(setting.step["dir"])
    directory.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(state, str(directory), content_metadata=metadata)
    return {"saved": str(directory), "parameters": len(stored_tensors(model))}


def resume(setting: Setting) -> Result:
    """Load weights and optimizer as a run that goes on does: what Megatron refuses it with, "" if it does not."""
    model, directory = setting.model(), setting.step["dir"]
    metadata = dist_checkpointing.load_content_metadata(directory)
    state = {"model": _sharded_state_dict(model, metadata)}
    training = {"optimizer": setting.step["optimizer"]}
    state["optimizer"] = _training_entries(setting, model, state["model"], metadata, training)["optimizer"]
    try:
        dist_checkpointing.load(state, directory)
    except CheckpointException as problem:
        return {"refused": str(problem)}
    return {"refused": ""}


def _training_entries(
    setting: Setting,
    model: GPTModel,
    model_state: dict[str, Any],
    metadata: dict[str, Any] | None,
    training: dict[str, Any],
) -> dict[str, Any]:
    entries = training_state.common_state(
        setting.hf_config,
        setting.layout,
        mtp=setting.mtp,
        padded_vocab=setting.padded_vocab,
        dtype=setting.dtype,
        training=training,
    )
    if optimizer := training.get("optimizer"):
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        entries["optimizer"] = training_state.optimizer_state(
            model,
            model_state,
            distributed={"distributed": True, "adam": False}[optimizer],
            metadata={**(metadata or {}), "dp_cp_group": group},
            dtype=setting.dtype,
        )
        entries["opt_param_scheduler"] = training_state.scheduler_state()
    if training.get("rng"):
        entries["rng_state"] = training_state.rng_state(setting.layout)
        entries["rerun_state_machine"] = training_state.rerun_state()
    return entries


def dump(setting: Setting) -> Result:
    """Load, then write every parameter under its module name to the safetensors file `out` (one rank)."""
    _require_one_rank(setting)
    model, _ = load_model(setting)
    parameters = {name: tensor.contiguous() for name, tensor in stored_tensors(model)}
    save_file(parameters, setting.step["out"])
    return {"written": setting.step["out"], "parameters": len(parameters)}


def _require_one_rank(setting: Setting) -> None:
    if setting.layout.world_size != 1:
        raise ValueError(f"a {setting.step['kind']} step needs one rank")
