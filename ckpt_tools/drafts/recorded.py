"""The target that a head's `draft_manifest.json` records, without the models that check the whole file: their import takes
longer than all of verify-draft."""

from __future__ import annotations

import json
from pathlib import Path

from .identity import Identity, recorded

MANIFEST = "draft_manifest.json"
FORMAT_VERSION = 1


def recorded_target(root: Path) -> Identity:
    """Nothing where there is no manifest. Raises NotFound for one that is not readable."""
    path = root / MANIFEST
    if not path.is_file():
        return Identity()
    try:
        manifest = json.loads(path.read_bytes())
        identity = manifest["target"]["identity"]
        if manifest["version"] == FORMAT_VERSION and isinstance(identity, dict):
            return recorded(identity)
    except (OSError, ValueError, TypeError, LookupError):
        pass  # the models say what is wrong
    from .manifest import read_manifest

    return recorded(read_manifest(root).target.identity)
