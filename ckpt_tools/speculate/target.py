"""The target: transformers' own model with a cache that can be rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..drafts.formats.targets import Target as TargetFacts
from ..drafts.formats.targets import read_target
from ..errors import CkptError, error
from ..quantised import quantisation
from ..report import listed
from .draft import Draft
from .head import Tables, additive

# Model types that transformers does not know and whose body is that of another: MiMo-7B is Qwen2 with MTP layers,
# Kimi-K2 is DeepSeek-V3, and MiMo-V2's releases say mimo_v2 where transformers says mimo_v2_flash.
BODIES = {"mimo": "qwen2", "kimi_k2": "deepseek_v3", "mimo_v2": "mimo_v2_flash"}
NOT_OF_THE_BODY = ("model_type", "architectures", "auto_map", "transformers_version", "dtype", "torch_dtype")


@dataclass(eq=False)
class Target:
    """`model` is the causal language model, `body` its decoder; `tables` are shared with the head."""

    facts: TargetFacts
    model: Any
    body: Any
    tables: Tables

    @property
    def config(self) -> Any:
        """The decoder's transformers config."""
        return self.model.config.get_text_config()

    @property
    def device(self) -> torch.device:
        return self.tables.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.tables.embedding.dtype

    @property
    def vocab_size(self) -> int:
        return self.tables.output.shape[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """`[..., V]` from states after the final norm."""
        found: Tensor = self.model.lm_head(hidden)
        return found


def load_target(folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Target:
    """Load a Hugging Face folder; its MTP layers stay where they are.

    Raises NotFound without config, and CkptError where transformers does not know the model or does not find its tensors.
    """
    import transformers

    facts = read_target(folder)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    loader: Any = transformers.AutoModelForCausalLM
    try:
        config = _config(folder, facts)
        model, info = loader.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as problem:
        quantised = quantisation(facts.config) is not None
        again = "; or dequantise it: `ckpt-tools convert` to torch-dist, and back" if quantised else ""
        raise error(
            CkptError,
            "target-not-loaded",
            "transformers does not load this target",
            where=str(folder),
            expected="a model that transformers has",
            actual=str(problem).strip().splitlines()[0],
            fix=f"a server can still be measured: `smoke --server URL`{again}",
        ) from problem
    _check(folder, info)
    model = model.eval().requires_grad_(False).to(device)
    return of_model(model, facts)


def of_model(model: Any, facts: TargetFacts) -> Target:
    """A loaded transformers model as a target."""
    tables = Tables(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    return Target(facts, model, model.get_decoder(), tables)


def _config(folder: Path, facts: TargetFacts) -> Any:
    """transformers' config; no code of the folder is run."""
    from transformers import AutoConfig

    kind = facts.config.get("model_type")
    body = BODIES.get(str(kind))
    if body is None:
        return _dequantising(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    fields = {name: value for name, value in facts.config.items() if name not in NOT_OF_THE_BODY}
    return _dequantising(AutoConfig.for_model(body, **fields))


def _dequantising(config: Any) -> Any:
    """Float8 in blocks is dequantised while loading, also on a GPU that could compute with it: so is the head."""
    scheme = getattr(config, "quantization_config", None)
    if isinstance(scheme, dict) and scheme.get("quant_method") == "fp8":
        config.quantization_config = {**scheme, "dequantize": True}
    return config


def _check(folder: Path, info: Any) -> None:
    """A target with fresh tensors in it would verify nothing."""
    if wrong := [*map(str, info["missing_keys"]), *map(str, info["mismatched_keys"])]:
        raise error(
            CkptError,
            "target-incomplete",
            f"{len(wrong)} tensors of the target are not what its config says",
            where=str(folder),
            expected="every tensor of the model",
            actual=listed(sorted(wrong)),
            fix="`ckpt-tools inspect` says what is wrong with the folder",
        )


@dataclass(frozen=True, eq=False)
class _States:
    """The states of one recurrent layer as they were."""

    conv: dict[int, Tensor | None]
    recurrent: dict[int, Tensor | None]
    started: dict[int, bool]

    @classmethod
    def of(cls, layer: Any) -> _States:
        conv, recurrent = (
            {i: None if s is None else s.clone() for i, s in states.items()}
            for states in (layer.conv_states, layer.recurrent_states)
        )
        return cls(conv, recurrent, dict(layer.has_previous_state))

    def restore(self, layer: Any) -> None:
        layer.conv_states, layer.recurrent_states = dict(self.conv), dict(self.recurrent)
        layer.has_previous_state = dict(self.started)


@dataclass(eq=False)
class Run:
    """One sequence in the target's cache. `length` counts cached tokens.

    Recurrent states (gated delta nets) have no past to go back to: they are kept from before the last `feed`, and what
    stays of it is fed again.
    """

    target: Target
    boundaries: tuple[int, ...] = ()
    length: int = 0
    cache: Any = field(init=False)
    _before: list[_States] = field(init=False, default_factory=list)
    _fed: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.target.model.config)
        self._recurrent = [layer for layer in self.cache.layers if hasattr(layer, "recurrent_states")]
        if not self._recurrent:
            self.cache.activate_past_recording()

    @property
    def not_branching(self) -> list[str]:
        """The kinds of cache, by class, of which single tokens in the middle cannot be dropped."""
        from transformers.cache_utils import DynamicLayer

        return sorted({type(layer).__name__ for layer in self.cache.layers if type(layer) is not DynamicLayer})

    @torch.inference_mode()
    def feed(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append tokens; returns (states after the final norm `[1, T, H]`, features of a head `[1, T, F]`)."""
        if self._recurrent:
            self._before, self._fed = [_States.of(layer) for layer in self._recurrent], list(ids)
        return self._feed(ids)

    @torch.inference_mode()
    def feed_draft(self, last: int, draft: Draft) -> tuple[Tensor, Tensor]:
        """Append the last token and its drafts, each seeing those that lead to it; returns what `feed` does."""
        ids = [last, *draft.tokens]
        if not draft.parents:
            return self.feed(ids)
        positions = torch.tensor([[0, *draft.depths()]], device=self.target.device) + self.length
        mask = tree_mask(draft, self.length, self.target.tables.embedding)
        return self._feed(ids, attention_mask=mask, position_ids=positions)

    def _feed(self, ids: Sequence[int], **attending: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.tensor([list(ids)], device=self.target.device)
        out = self.target.body(
            input_ids=tokens,
            cache=self.cache,
            use_cache=True,
            output_hidden_states=bool(self.boundaries),
            **attending,
        )
        self.length += len(ids)
        last: Tensor = out.last_hidden_state
        if not self.boundaries:
            return last, last
        return last, torch.cat([out.hidden_states[boundary] for boundary in self.boundaries], dim=-1)

    @torch.inference_mode()
    def roll_back(self, length: int) -> None:
        """Forget everything after the first `length` tokens, of the last `feed` at most."""
        if not self._recurrent:
            self.cache.crop(length - self.length)
            self.length = length
        elif length < self.length:
            start = self.length - len(self._fed)
            for layer, states in zip(self._recurrent, self._before, strict=True):
                states.restore(layer)
            for layer in self.cache.layers:
                if layer not in self._recurrent:
                    layer.crop(start - self.length)
            self.length = start
            self._feed(self._fed[: length - start])

    @torch.inference_mode()
    def keep(self, draft: Draft, path: Sequence[int]) -> None:
        """Of the last `feed_draft`, leave the token and the drafts `path`."""
        start = self.length - len(draft.tokens) - 1
        if draft.parents:
            chosen = torch.tensor([0, *(number + 1 for number in path)], device=self.target.device) + start
            stop = start + 1 + len(path)
            for layer in self.cache.layers:
                for part in (layer.keys, layer.values):
                    part[..., start:stop, :] = part[..., chosen, :]
            self.cache.crop(stop - self.length)
            self.length = stop
        else:
            self.roll_back(start + 1 + len(path))


def tree_mask(draft: Draft, cached: int, like: Tensor) -> Tensor:
    """`[1, 1, k + 1, cached + k + 1]`: 0 where the token or a draft may look (all before, the drafts that lead to it,
    itself), the lowest number elsewhere."""
    count = len(draft.tokens) + 1
    seen = torch.zeros(count, count, dtype=torch.bool)
    seen[:, 0] = True
    for number in range(len(draft.tokens)):
        seen[number + 1] |= seen[draft.parent(number) + 1]
        seen[number + 1, number + 1] = True
    return additive(torch.cat([torch.ones(count, cached, dtype=torch.bool), seen], dim=1).to(like.device), like)
