"""`ckpt-tools convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..convert import Options, Result, convert
from ..convert.options import (
    AUTO,
    CARRY,
    DROP,
    DTYPE_NAMES,
    HF,
    KEEP_MAIN,
    MTP_AUTO,
    MTP_DROP,
    PER_LAYER,
    REFUSE,
    STACKED,
    TORCH_DIST,
)
from ..errors import UsageProblem, error
from ..refs import resolve, resolve_headers
from ..stores.torch_dist.reader import is_torch_dist
from .options import hf_config, size, talking, writing
from .output import Output, human_bytes
from .pushing import Publication, pushing
from .together import together


def mtp_count(text: str) -> str | int:
    """auto, drop or a count."""
    if text in (MTP_AUTO, MTP_DROP):
        return text
    if not text.isdigit():
        raise click.BadParameter(f"{text!r} is neither auto, drop nor a count")
    return int(text)


@click.command("convert")
@click.argument("src")
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice([TORCH_DIST, HF]), help="The direction is read from SRC; this only asserts it.")
@hf_config
@click.option(
    "--mtp",
    type=mtp_count,
    metavar="auto|drop|N",
    default=MTP_AUTO,
    show_default=True,
    help="MTP layers to write; drop leaves the head out.",
)
@click.option(
    "--layout",
    type=click.Choice([AUTO, STACKED, PER_LAYER]),
    default=AUTO,
    show_default=True,
    help="Decoder keys in torch-dist.",
)
@click.option(
    "--norms",
    type=click.Choice(["fused", "separate"]),
    show_default="fused",
    help="Norm names in torch-dist: TransformerEngine's or a module of their own.",
)
@click.option(
    "--mtp-name",
    type=click.Choice(["transformer_layer", "mtp_model_layer"]),
    show_default="transformer_layer",
    help="Name of the layer inside an MTP layer in torch-dist.",
)
@click.option(
    "--gdn-layout",
    type=click.Choice(["mcore", "slime"]),
    show_default="mcore",
    help="Gated delta nets in torch-dist: Megatron's own tensors or those of slime's plugin.",
)
@click.option(
    "--dsa-layout",
    type=click.Choice(["mcore", "slime"]),
    show_default="mcore",
    help="DSA indexer in torch-dist: Megatron's own tensors or those of slime's plugin.",
)
@click.option(
    "--mtp-halves",
    type=click.Choice(["straight", "swapped"]),
    show_default="straight",
    help="Qwen3-Next only: slime exchanges the halves of the joint projection; swapped reads or writes that.",
)
@click.option(
    "--rest",
    type=click.Choice([REFUSE, DROP, CARRY]),
    default=REFUSE,
    show_default=True,
    help="Tensors that are not the language model's (vision, audio).",
)
@click.option(
    "--duplicates",
    type=click.Choice([REFUSE, KEEP_MAIN]),
    default=REFUSE,
    show_default=True,
    help="Copies of embedding and head in an MTP layer that differ from the main ones.",
)
@click.option(
    "--dtype",
    type=click.Choice(list(DTYPE_NAMES)),
    help="Cast floating tensors; by default every tensor keeps its own.",
)
@click.option(
    "--quantize",
    type=click.Choice(["fp8"]),
    help="Write block-fp8 again where the original had it (torch-dist to Hugging Face).",
)
@click.option(
    "--make-vocab-size-divisible-by", type=click.IntRange(min=1), default=128, show_default=True, help="As in Megatron."
)
@click.option(
    "--tp",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Tensor-parallel size that the vocabulary is padded for.",
)
@click.option("--max-shard-size", type=size, metavar="SIZE", default="5GB", show_default=True, help="Largest file.")
@click.option("--verify", is_flag=True, help="Read the output again and compare every tensor with the source.")
@click.option(
    "--checksums", is_flag=True, help="Record the SHA-256 of every file; `inspect --check` compares them later."
)
@pushing
@writing
@talking("convert")
def command(
    out: Output,
    src: str,
    dst: Path,
    hf_config: str | None,
    dtype: str | None,
    norms: str | None,
    mtp_name: str | None,
    gdn_layout: str | None,
    dsa_layout: str | None,
    mtp_halves: str | None,
    quantize: str | None,
    publication: Publication,
    **options: Any,
) -> int:
    """Convert SRC into the other format at DST.

    SRC is a Hugging Face folder, a Hub id, or a torch-dist directory (with its tracker file, or one iteration of it). Of a
    Hub id only headers are stored; its tensors are read by ranges while they are written.
    --layout, --norms and --mtp-name choose names in torch-dist; where SRC is torch-dist they assert what it holds.
    """
    variants = {"norms": norms, "mtp": mtp_name, "gdn": gdn_layout, "dsa": dsa_layout, "mtp_halves": mtp_halves}
    chosen = Options(
        hf_config=resolve(hf_config, weights=False) if hf_config else None,
        dtype=DTYPE_NAMES[dtype] if dtype else None,
        variants={kind: name for kind, name in variants.items() if name},
        quantize=bool(quantize),
        **options,
    )
    with together(out) as ranks:
        source = resolve_headers(src)
        if publication.repository and not is_torch_dist(source.path):
            raise error(
                UsageProblem,
                "push-torch-dist",
                "torch-dist is not published: it holds pickles",
                where=src,
                expected="--push-to-hub where Hugging Face files are written",
                actual="a Hugging Face source",
                fix="leave --push-to-hub out",
            )
        with out.progress("writing", shown=ranks.first) as starting:
            result, findings = convert(source.path, dst, chosen, starting, ranks)
        if not ranks.first:
            return 0
    result.source = result.source if source.complete else src
    sent = [] if chosen.dry_run else publication.send(out, dst)
    return out.finish(result, [*findings, *sent], lambda: _show(out, result))


def _show(out: Output, result: Result) -> None:
    padded = f"{result.vocab_size} rows, {result.padded_vocab_size} padded"
    rows = [
        (
            "wrote" if not result.dry_run else "would write",
            f"{result.destination} ({result.to}, {result.family}, {result.layout} layers)",
        ),
        ("tensors", f"{result.tensors} in {result.files} files, {human_bytes(result.nbytes)}"),
        *(_costs(result) if result.dry_run else ()),
        ("MTP layers", f"{result.mtp_found} found, {result.mtp_written} written"),
        ("vocabulary", padded),
    ]
    if result.to == HF or result.carried:
        rows.append(("carried", f"{result.carried} tensors of the original, byte for byte"))
    if result.resumed:
        rows.append(("continued", f"{human_bytes(result.resumed)} were there from an interrupted run"))
    rows.append(("sidecars", ", ".join(result.sidecars) or "none"))
    if result.absent:
        rows.append(("not there", ", ".join(result.absent)))
    if result.timing:
        seconds = result.timing["write_s"]
        speed = human_bytes(int((result.nbytes - result.resumed) / max(seconds, 1e-9)))
        rows.append(
            (
                "time",
                f"{seconds:.2f} s writing ({speed}/s), {result.timing['total_s']:.2f} s in all",
            )
        )
    if result.verified is not None:
        rows.append(("verified", "every tensor of the output equals the source"))
    out.pairs(rows)


def _costs(result: Result) -> list[tuple[str, str]]:
    """What a run would take."""
    return [
        ("reads", human_bytes(result.nbytes_read)),
        ("writes", human_bytes(result.nbytes)),
        ("memory", f"up to {human_bytes(result.memory)}"),
        ("disk", f"{human_bytes(result.disk_needed)} needed, {human_bytes(result.disk_free)} free"),
    ]
