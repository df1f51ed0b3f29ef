"""Dealing the tasks of a program out to ranks."""

from __future__ import annotations

from collections.abc import Sequence

from .program import Task, files_of


def share_of(tasks: Sequence[tuple[int, Task]], rank: int, size: int) -> list[tuple[int, Task]]:
    """The tasks of one rank: those of whole files, dealt out by bytes. Every rank comes to the same division.

    A file belongs to one rank because network file systems do not keep two machines' writes within one page apart.
    """
    groups = _groups([files_of(task) for _, task in tasks])
    weights: dict[int, int] = {}
    for (_, task), group in zip(tasks, groups, strict=True):
        weights[group] = weights.get(group, 0) + task.nbytes
    loads, owner = [0] * size, {}
    for group, weight in sorted(weights.items(), key=lambda item: (-item[1], item[0])):
        owner[group] = loads.index(min(loads))
        loads[owner[group]] += weight
    return [task for task, group in zip(tasks, groups, strict=True) if owner[group] == rank]


def _groups(touched: list[set[int]]) -> list[int]:
    """For every task the lowest number of the files that hang together with its own."""
    root: dict[int, int] = {}

    def find(file: int) -> int:
        while root.setdefault(file, file) != file:
            file = root[file]
        return file

    for files in touched:
        lowest = min(map(find, files))
        for file in files:
            root[find(file)] = lowest
    return [find(min(files)) for files in touched]
