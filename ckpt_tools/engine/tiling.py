"""Cutting moves into tiles that fit a buffer."""

from __future__ import annotations

from collections.abc import Iterator

from .moves import Dequant, Move, some_rows


def tiles(move: Move, limit: int) -> Iterator[Move]:
    """The move cut so that the source span of a tile fits `limit` bytes; contiguous rows are merged into one run."""
    contiguous = move.source_stride == move.width and move.target_stride == move.target_width
    if move.rows > 1 and contiguous and not isinstance(move.cast, Dequant):
        width, wide = move.width * move.rows, move.target_width * move.rows
        move = move._replace(width=width, target_width=wide, source_stride=width, target_stride=wide, rows=1)
    if move.rows == 1:
        step = limit // 64 * 64
        for start in range(0, move.width, step):
            yield _columns(move, start, min(step, move.width - start))
        return
    if move.width > limit:
        for row in range(move.rows):
            yield from tiles(some_rows(move, row, 1), limit)
        return
    step = max(1, (limit - move.width) // move.source_stride + 1)
    if isinstance(move.cast, Dequant) and step > move.cast.scale.block[0]:
        step -= step % move.cast.scale.block[0]  # rows that share their scales stay together
    for row in range(0, move.rows, step):
        yield some_rows(move, row, min(step, move.rows - row))


def _columns(move: Move, start: int, width: int) -> Move:
    """`width` source bytes from byte `start` of a move of one row."""
    cast = move.cast._replace(column=move.cast.column + start) if isinstance(move.cast, Dequant) else move.cast
    shift, wide = (n * move.target_width // move.width for n in (start, width))
    return move._replace(
        source=move.source + start, target=move.target + shift, width=width, target_width=wide, cast=cast
    )
