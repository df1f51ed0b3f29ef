"""`ckpt-tools inspect`."""

from __future__ import annotations

import click

from ..drafts.identity import identity_hashes
from ..errors import ExitCode
from ..inspection import Inspection, inspect_checkpoint
from ..refs import Fetched, resolve, resolve_headers
from ..stores.hf_folder import INDEX, index_from_headers
from .options import hf_config, talking
from .output import Output, human_bytes


@click.command("inspect")
@click.argument("ref")
@hf_config
@click.option(
    "--check",
    is_flag=True,
    help="Also read every chunk's header, compare tensors that are stored twice and files with their recorded checksums, "
    "and sample the weights for their hash.",
)
@click.option("--write-index", is_flag=True, help="First write model.safetensors.index.json again, from the headers.")
@talking("inspect")
def command(out: Output, ref: str, hf_config: str | None, check: bool, write_index: bool) -> int:
    """Show format, family, dimensions, tensors folded by layer, MTP layers and every integrity finding of REF.

    Of a Hub id only config, tokenizer and headers are fetched; with --check also the sampled bytes.
    """
    fetched = Fetched(resolve(ref), True) if write_index else resolve_headers(ref)
    path = fetched.path
    if write_index:
        entries = index_from_headers(path)
        out.hint(f"{INDEX} written from the headers: {entries} tensors")
    config = resolve(hf_config, weights=False) if hf_config else None
    outcome = inspect_checkpoint(path, config, check, identity_hashes)
    outcome.result.path = outcome.result.path if fetched.complete else ref
    code = ExitCode.OK if outcome.sound else ExitCode.FAILED
    return out.finish(outcome.result, outcome.findings, lambda: _show(out, outcome.result), code)


def _show(out: Output, found: Inspection) -> None:
    rows = [("path", found.path), ("format", found.format), ("family", found.family or "unknown")]
    if found.dims:
        wanted = (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
        )
        rows.append(("dims", ", ".join(f"{name} {found.dims[name]}" for name in wanted)))
        rows.append(("tied", f"{'yes' if found.dims['tied'] else 'no'} ({found.tied_from})"))
    if found.mtp_found is not None:
        rows.append(("MTP layers", f"{found.mtp_found} found, {found.mtp_declared} declared"))
    if found.padded_vocab_size:
        rows.append(("padded vocab", str(found.padded_vocab_size)))
    rows += [(kind, value) for kind, value in found.variants.items()]
    rows += [(f"{kind} hash", value) for kind, value in found.identity.items()]
    if found.training_state:
        rows.append(("training state", f"{found.training_state} entries, not part of the model"))
    if found.checksums:
        rows.append(("checksums", f"{found.checksums} files compared"))
    dtypes = ", ".join(f"{dtype} {human_bytes(nbytes)}" for dtype, nbytes in found.dtypes.items())
    rows.append(("tensors", f"{found.tensors} in {found.files} files, {human_bytes(found.nbytes)} ({dtypes})"))
    out.pairs(rows)
    out.line()
    out.table(
        ("tensor", "dtype", "shape", "count", "bytes"),
        ((f.name, f.dtype, str(list(f.shape)), str(f.count), human_bytes(f.nbytes)) for f in found.folded),
        right=(3, 4),
    )
