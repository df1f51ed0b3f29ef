"""The command line of every producer: write heads, or load heads and say how each went, one JSON object per line."""

import json
import sys
from pathlib import Path


def run(make, judge, context=0):
    """`make OUT TARGETS`, or `load [CONTEXT...] DIR...`: `judge(folder, *context)` of `context` paths gives what is said."""
    word, *paths = sys.argv[1], *map(Path, sys.argv[2:])
    if word == "make":
        make(*paths)
        return
    for folder in paths[context:]:
        try:
            found = judge(folder, *paths[:context])
        except Exception as problem:
            found = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps({"folder": str(folder), **found}), flush=True)
