"""What the tests of identity share: the document with the worked examples, and its hash function."""

from __future__ import annotations

import hashlib
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "identity.md"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()
