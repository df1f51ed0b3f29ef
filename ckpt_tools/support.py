"""What converts and what loads where: derived from the family tables, for the command line and the README."""

from __future__ import annotations

from dataclasses import dataclass

from .families import FAMILIES
from .families.base import Family

# MiMo-V2: SGLang feeds each of its MTP layers the state before the final norm, with a window; measured on a server only.
SERVER_ONLY = ("mimo_v2", "nemotron_h")
MARKDOWN_HEADERS = (
    "family",
    "models",
    "model_type",
    "convert",
    "MTP",
    "fp8",
    "SGLang draft class",
    "smoke",
    "held against",
)


@dataclass(frozen=True, slots=True)
class FamilySupport:
    """`mtp_field` is the config field that counts MTP layers, "" without; `proof` what the mapping is held against.

    `smoke` says which heads the smoke test runs here: "EAGLE", "EAGLE, MTP", "EAGLE; MTP by server" or "by server".
    """

    name: str
    title: str
    model_types: tuple[str, ...]
    mtp_field: str
    draft_class: str
    smoke: str
    proof: str


@dataclass(frozen=True, slots=True)
class Support:
    """The matrix, one entry per family."""

    families: tuple[FamilySupport, ...]

    def row(self, family: FamilySupport) -> list[str]:
        return [
            family.name,
            family.title,
            ", ".join(family.model_types),
            "both ways",
            "yes" if family.mtp_field else "-",
            "read",
            family.draft_class or "-",
            family.smoke,
            family.proof,
        ]


def matrix() -> Support:
    return Support(
        tuple(
            FamilySupport(f.name, f.title, f.model_types, f.mtp_field, f.draft_class, smoke_of(f), f.proof)
            for f in FAMILIES
        )
    )


def smoke_of(family: Family) -> str:
    """EAGLE heads run on every target that transformers loads as a causal language model; MTP layers where its decoder layer
    is the family's own."""
    if not family.causal:
        return "by server"
    if family.name in SERVER_ONLY:
        return "EAGLE; MTP by server"
    return "EAGLE, MTP" if family.mtp_field else "EAGLE"
