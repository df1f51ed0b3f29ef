"""The decoder layer of an EAGLE head as config files state it: a Llama-like config, nested or not."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from ..spec import DraftSpec
from .base import LAYER_CONFIG, nested


def written_layer(spec: DraftSpec, left_out: Collection[str]) -> dict[str, Any]:
    """The source's fields but those `left_out`, with the sizes that the tensors have; a rope that is stated stays as it is."""
    source = nested(spec.config, LAYER_CONFIG) or spec.config
    layer = {key: value for key, value in source.items() if key not in left_out}
    layer |= {"num_hidden_layers": spec.num_layers, "num_key_value_heads": spec.num_key_value_heads}
    if "rope_theta" not in layer and "rope_parameters" not in layer:
        layer["rope_theta"] = spec.rope.theta
    return layer


def dumped(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
