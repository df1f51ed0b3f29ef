"""What converts and what loads where: derived from the family tables, for the command line and the README."""

from __future__ import annotations

from dataclasses import dataclass

from .families import FAMILIES

MARKDOWN_HEADERS = ("family", "models", "model_type", "convert", "MTP", "fp8", "SGLang draft class", "held against")


@dataclass(frozen=True, slots=True)
class FamilySupport:
    """`mtp_field` is the config field that counts MTP layers, "" without; `proof` what the mapping is held against."""

    name: str
    title: str
    model_types: tuple[str, ...]
    mtp_field: str
    draft_class: str
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
            family.proof,
        ]


def matrix() -> Support:
    return Support(
        tuple(FamilySupport(f.name, f.title, f.model_types, f.mtp_field, f.draft_class, f.proof) for f in FAMILIES)
    )
