"""Casting element bytes: torch, loaded only when a program casts."""

from __future__ import annotations

from ..errors import CkptError, error
from ..stores.dtypes import BY_NAME
from .moves import Cast


def cast_bytes(data: memoryview, cast: Cast) -> bytes:
    """`data` in the target dtype, rounded to nearest even; raises CkptError if a finite value becomes infinite."""
    import torch

    source, target = (getattr(torch, BY_NAME[name].torch) for name in cast)
    values = torch.frombuffer(data, dtype=source)
    made = values.to(target)
    if not torch.equal(torch.isfinite(values), torch.isfinite(made)):
        raise error(
            CkptError,
            "cast-overflow",
            f"a value does not fit {cast.target}",
            expected=f"values within {torch.finfo(target).max:.4g}",
            actual=f"{values[torch.isfinite(values)].abs().max().item():.4g} in {cast.source}",
            fix="choose a dtype with a wider range (bfloat16 or float32)",
        )
    return made.contiguous().view(torch.uint8).numpy().tobytes()
