"""What a draft head is, whatever its format: kind, dimensions, flags, and its tensors under canonical names.

Canonical names are those of SGLang's classes for EAGLE heads, with layers always called `layers.{i}` (`midlayer` is
`layers.0`), and for MTP layers the Hugging Face names of the target's family.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..engine.moves import Located, Move, Scale, box_moves
from ..engine.view import View, handles_for
from ..errors import CkptError, Finding, error
from ..families.base import NONE, Family, Variants
from ..families.dims import Dims, Mla, Rope
from ..quantised import FLOAT8, SUFFIXES
from ..report import listed
from ..stores.base import Chunk, Tensor

MTP, EAGLE, EAGLE3 = "mtp", "eagle", "eagle3"
D2T, T2D = "d2t", "t2d"
INTEGERS, BOOLEANS = {"I64": "q", "I32": "i"}, ("BOOL", "U8")  # dtypes of the maps, with array's names of the integers
EMBED, HEAD, FC, FC_BIAS = "embed_tokens.weight", "lm_head.weight", "fc.weight", "fc.bias"


@dataclass(frozen=True, slots=True)
class HeadTensor:
    """A tensor of a head: its name in the source, and how its bytes are read.

    `tensor.dtype` and `tensor.shape` are what the head means; `moves` build those bytes from offset 0 out of `files`
    (a plain copy for most, an arrangement for what Megatron stores fused). `scale`: what a float8 tensor's values are times;
    it is a tensor of the head as well.
    """

    source: str
    tensor: Tensor
    files: tuple[Path, ...]
    moves: tuple[Move, ...]
    scale: Scale | None = None

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def read(self) -> bytes:
        """All bytes, row-major, little-endian."""
        handles = handles_for(list(self.files))
        try:
            view = View(self.tensor, list(self.moves), handles)
            return b"".join(bytes(view.read(start, stop)) for start, stop in view.row_tiles())
        finally:
            handles.close()


@dataclass(frozen=True, slots=True)
class Norms:
    """Where a head normalises beyond its layer.

    `before_residual`: the residual starts from the normed feature (speculators). `before_fc`: one norm over all features
    (`input_norm`). `fc`: one norm per feature (`fc_norm.{i}`). `output`: the next step is fed the hidden state after the
    final norm instead of before. `before_head`: the final norm stands before the lm_head.
    """

    before_residual: bool = False
    before_fc: bool = False
    fc: bool = False
    output: bool = False
    before_head: bool = True


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """A head as read; no tensor bytes have been read.

    `form` names the source format. `hidden_size` is the head's own, `target_hidden_size` that of the features it is fed.
    `vocab_size` is the target's; `draft_vocab_size` equals it where nothing is reduced. `max_position_embeddings` is None
    where the source states none. `aux` are boundaries: boundary k is the input of target layer k, which is the output of
    layer k-1; None is the server's default, (2, L//2, L-3) of a target of L layers. `aux_count` is how many features `fc`
    takes. `tied`: the lm_head is the embedding; `borrows_head`: the lm_head is the target's (`draft_vocab_size` null).
    `ids` are the target ids of the draft's ids where they came from a side file and not from a d2t.

    For MTP: `family`, `dims` (the target's), `variants` (of the family's names), `mtp_layers` (how many) and `mtp_index`
    (their numbers in Hugging Face names; empty where names spell none). `verifier` is the target that the source names,
    `config` the raw JSON of the source. `findings` is everything odd; errors among them mean that the head cannot serve.
    """

    kind: str
    form: str
    source: Path
    hidden_size: int
    target_hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    num_layers: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int | None
    rope: Rope
    rms_norm_eps: float
    config: Mapping[str, Any]
    config_path: Path
    tensors: Mapping[str, HeadTensor]
    aux: tuple[int, ...] | None = None
    aux_count: int = 0
    norms: Norms = Norms()
    borrows_head: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    ids: tuple[int, ...] = ()
    mla: Mla | None = None
    family: Family | None = None
    dims: Dims | None = None
    variants: Variants = field(default_factory=lambda: NONE)
    mtp_layers: int = 0
    mtp_index: tuple[int, ...] = ()
    verifier: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def architecture(self) -> str:
        """The first entry of the source's `architectures`, or ""."""
        return first_architecture(self.config)

    @property
    def nbytes(self) -> int:
        return sum(entry.tensor.nbytes for entry in self.tensors.values())

    def d2t(self) -> array[int] | None:
        """Offsets: draft id i is target id i + d2t[i]. None if the head has none, which means the identity.

        Raises CkptError for a d2t that is no list of integers.
        """
        if self.ids:
            return array("q", (target - number for number, target in enumerate(self.ids)))
        return _integers(self.tensors[D2T]) if D2T in self.tensors else None

    def t2d(self) -> bytes | None:
        """One byte per target id, 1 where the draft vocabulary has it. Raises CkptError for a t2d that is no list of flags."""
        return _flags(self.tensors[T2D]) if T2D in self.tensors else None

    def weights_hash(self) -> str:
        """`sha256:` over the canonical name, dtype, shape and bytes of every tensor: the same head in another folder."""
        digest = hashlib.sha256()
        for name, entry in sorted(self.tensors.items()):
            digest.update(f"{name} {entry.dtype} {list(entry.shape)}\n".encode())
            digest.update(entry.read())
        return f"sha256:{digest.hexdigest()}"

    def dequantised(self) -> DraftSpec:
        """The same head with its float8 tensors as bfloat16, as a conversion to torch-dist makes them, and without scales.

        Raises CkptError for a float8 tensor whose scale is not known.
        """
        scaled = [name for name, entry in self.tensors.items() if entry.scale]
        if unknown := [name for name, entry in self.tensors.items() if entry.dtype in FLOAT8 and not entry.scale]:
            raise error(
                CkptError,
                "scale-missing",
                "float8 tensors of the head have no scale that is understood",
                where=str(self.source),
                expected="a scale per block or channel beside every float8 weight, as quantization_config says",
                actual=listed(unknown),
                fix="without its scale a weight has no value; fetch the head again, or its config",
            )
        scales = {name + suffix for name in scaled for suffix in SUFFIXES}
        plain_ones = {name: entry for name, entry in self.tensors.items() if name not in scales}
        return replace(self, tensors=plain_ones | {name: _in_bfloat16(self.tensors[name]) for name in scaled})

    def raise_errors(self) -> None:
        if errors := self.errors:
            raise CkptError(*errors)


def first_architecture(config: Mapping[str, Any]) -> str:
    """The first entry of a config's `architectures`, or ""."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _integers(entry: HeadTensor) -> array[int]:
    if entry.dtype not in INTEGERS or len(entry.shape) != 1:
        raise _wrong_map(entry, "d2t holds no list of integers", "I64 [draft vocabulary]", "write it as int64 offsets")
    return array(INTEGERS[entry.dtype], entry.read())


def _flags(entry: HeadTensor) -> bytes:
    if entry.dtype not in BOOLEANS or len(entry.shape) != 1:
        raise _wrong_map(entry, "t2d holds no list of flags", "BOOL [vocabulary]", "write it as booleans")
    return entry.read()


def _wrong_map(entry: HeadTensor, what: str, expected: str, fix: str) -> CkptError:
    where = str(entry.files[0]) if entry.files else ""
    actual = f"{entry.dtype} {list(entry.shape)}"
    return error(CkptError, "d2t-dtype", what, where=where, expected=expected, actual=actual, fix=fix)


def plain(name: str, tensor: Tensor, files: tuple[Path, ...], scale: Scale | None = None) -> HeadTensor:
    """A stored tensor as it is, under a canonical name."""
    moves = _moves(Located(list(tensor.chunks), tensor.dtype), tensor.dtype, tensor.shape)
    return HeadTensor(tensor.name, tensor._replace(name=name), files, moves, scale)


def _in_bfloat16(entry: HeadTensor) -> HeadTensor:
    """A stored float8 tensor times its scales."""
    made = entry.tensor._replace(dtype="BF16")
    moves = _moves(Located(list(entry.tensor.chunks), entry.dtype, entry.scale), made.dtype, made.shape)
    return HeadTensor(entry.source, made, entry.files, moves)


def _moves(source: Located, dtype: str, shape: tuple[int, ...]) -> tuple[Move, ...]:
    """A whole stored tensor, as `dtype`, to offset 0."""
    origin = (0,) * len(shape)
    return tuple(box_moves((source, origin), (Located([Chunk(0, 0, origin, shape)], dtype), origin), shape))


def open_draft(path: Path, hf_config: Path | None = None, form: str | None = None) -> DraftSpec:
    """Read a head of any format: config and names decide which. Reads no tensor bytes.

    `hf_config` (a folder or a config.json) is for a Megatron directory or a training state that carries no config; `form`
    says who made an EAGLE head where its config does not tell. Raises NotFound if nothing is there and CkptError
    ("not-a-draft-head") if it is no head; anything else that is odd is in `findings`.
    """
    from .formats.detect import read_draft  # the formats make specs, so they import this module

    return read_draft(path, hf_config, form)
