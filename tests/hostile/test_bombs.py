"""Archives that would unpack to more than memory holds."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from ckpt_tools.drafts.spec import open_draft
from ckpt_tools.errors import CkptError


def test_a_zip_bomb_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4}))
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(200 << 20))
    assert (tmp_path / "pytorch_model.bin").stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CkptError) as caught:
            open_draft(tmp_path, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "209,715,200 bytes" in caught.value.findings[0].actual
    assert peak < 32 << 20
