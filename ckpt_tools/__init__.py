"""Checkpoints between Hugging Face, Megatron and SGLang, with their draft heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .launch.preflight import preflight as preflight

__version__ = "0.1.0"
__all__ = ["preflight"]


def __getattr__(name: str) -> Any:
    """`preflight` is loaded when it is asked for: importing the package stays free of everything."""
    if name == "preflight":
        from .launch.preflight import preflight

        return preflight
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
