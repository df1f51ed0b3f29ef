"""The tensors that are not the language model's: refused, dropped, or carried along byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..engine.moves import Located, Move, box_moves
from ..errors import CkptError, error
from ..mapping.rules import hf_shapes
from ..model import HF_COPY, Model
from ..quantised import SUFFIXES
from ..report import listed
from ..stores import hf_folder
from ..stores.base import Image, Source, Tensor
from ..stores.torch_dist.reader import TorchDist
from .options import CARRY, REFUSE, Options
from .plan import natural_order

CARRIED = f"{HF_COPY}/other_towers.safetensors"


def rest_of(model: Model, options: Options) -> Source | None:
    """The tensors to carry, with their files; raises CkptError where there are some and the user has not said what to do."""
    source = _beside(model) if isinstance(model.store, TorchDist) else _towers(model)
    if not source.tensors or options.rest == CARRY:
        return source if source.tensors else None
    carried_by_us = isinstance(model.store, TorchDist) and source.root == model.store.root / HF_COPY
    if options.rest == REFUSE and carried_by_us:
        return source
    if options.rest == REFUSE:
        raise error(
            CkptError,
            "rest-undecided",
            f"{len(source.tensors)} tensors are not the language model's",
            where=str(source.root),
            expected="--rest carry (they travel byte for byte) or --rest drop",
            actual=listed(sorted(source.tensors)),
            fix="say which",
        )
    return None


def _towers(model: Model) -> Source:
    return Source(model.store.root, model.store.files, {name: model.store.tensors[name] for name in model.towers})


def _beside(model: Model) -> Source:
    """Tensors of the reference folder that no table row makes: carried ones, or those of a full original."""
    folder = hf_folder.open_folder(model.config_path.parent)
    made = {*hf_shapes(model.table_with(model.family.mtp_limit if model.family.mtp_field else 0))}
    made |= {*model.table.recomputed, *(d.hf for d in model.table.duplicates)}
    made |= {name + suffix for name in made for suffix in SUFFIXES}
    return Source(folder.root, folder.files, {name: t for name, t in folder.tensors.items() if name not in made})


def carried_image(source: Source) -> Image:
    """One safetensors file inside the carried copy."""
    image = hf_folder.lay_out(entries(source), max_file=1 << 62)
    return replace(image, files=[(CARRIED, size) for _, size in image.files], small_files={})


def entries(source: Source) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(n, source.tensors[n].dtype, source.tensors[n].shape) for n in sorted(source.tensors, key=natural_order)]


def merged(first: Image, second: Image) -> Image:
    """Both images in one, the second's files after the first's."""
    shift = len(first.files)
    moved = {name: shifted(tensor, shift) for name, tensor in second.tensors.items()}
    literals = [*first.literals, *(literal._replace(file=literal.file + shift) for literal in second.literals)]
    small = {**first.small_files, **second.small_files}
    return Image([*first.files, *second.files], literals, {**first.tensors, **moved}, small)


def shifted(tensor: Tensor, files: int) -> Tensor:
    return tensor._replace(chunks=tuple(chunk._replace(file=chunk.file + files) for chunk in tensor.chunks))


def copies(source: Source, image: Image, first_file: int) -> Iterator[Move]:
    """Moves of every carried tensor; `first_file` is the number of the source's first file in the program."""
    for name, tensor in source.tensors.items():
        origin = (0,) * len(tensor.shape)
        here = Located(list(shifted(tensor, first_file).chunks), tensor.dtype)
        there = Located(list(image.tensors[name].chunks), tensor.dtype)
        yield from box_moves((here, origin), (there, origin), tensor.shape)
