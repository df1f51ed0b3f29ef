"""Is the text what the target alone would have produced?

Two right greedy decodings may part where two logits are equal up to rounding: a pass over four tokens adds in another
order than four passes over one. So a text that differs is read again by the target, whole, and every token of it must be
the likeliest up to a tolerance; the comparison thereby goes on after a tie instead of stopping there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import Finding
from .results import Tie
from .target import Run, Target

# Logits that differ by less are a tie: about 2^13 rounding steps of float32, 2^6 of the halves, at logits around 1.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.0625, torch.bfloat16: 0.5}


def compare(
    target: Target, prompt: Sequence[int], plain: Sequence[int], found: Sequence[int], number: int = 0
) -> tuple[list[Tie], Finding | None]:
    """(ties, what is wrong if the texts part at no tie). `number` is the prompt's, for the message."""
    if list(plain) == list(found):
        return [], None
    return judge(gaps(target, prompt, found), number, TOLERANCE[target.dtype])


@torch.inference_mode()
def gaps(target: Target, prompt: Sequence[int], text: Sequence[int]) -> torch.Tensor:
    """`[len(text)]`: how far each token's logit lies below the largest, in one pass over prompt and text."""
    hidden, _ = Run(target).feed([*prompt, *text[:-1]])
    logits = target.logits(hidden[:, len(prompt) - 1 :])[0].float()
    emitted = logits.gather(-1, torch.tensor(list(text), device=logits.device)[:, None])[:, 0]
    return logits.max(-1).values - emitted


def judge(below: torch.Tensor, number: int, tolerance: float) -> tuple[list[Tie], Finding | None]:
    """Gaps of one text: those within the tolerance are ties, the first beyond it is an error."""
    wrong = (below > tolerance).nonzero()[:, 0].tolist()
    until = wrong[0] if wrong else len(below)
    ties = [Tie(number, place, float(below[place])) for place in (below[:until] > 0).nonzero()[:, 0].tolist()]
    if not wrong:
        return ties, None
    return ties, Finding(
        "smoke-not-lossless",
        f"prompt {number}: the text parts from the target's own at token {wrong[0]}",
        expected=f"the likeliest token, or one within {tolerance:g} of its logit",
        actual=f"a token {float(below[wrong[0]]):.3g} below",
        fix="verification or the cache is broken; report it with the two folders",
    )


def tie_note(ties: Sequence[Tie], tolerance: float) -> Finding:
    first = ties[0]
    return Finding(
        "smoke-near-tie",
        f"{len(ties)} near {'tie' if len(ties) == 1 else 'ties'}: the first at token {first.token} of prompt {first.prompt}",
        expected=f"gaps up to {tolerance:g}",
        actual=f"gap {first.gap:.3g}",
        severity="note",
    )
