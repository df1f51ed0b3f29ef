"""The same figures from a running SGLang server: its text against the target's, and its own accept counters.

SGLang answers POST /generate with `output_ids` and, where it speculates, `meta_info.spec_*` (0.5.23,
managers/tokenizer_manager.py; `spec_accept_token_num` and `spec_draft_token_num` before). GET /server_info (before:
/get_server_info) says with which three numbers it was started.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..drafts.spec import open_draft
from ..errors import CkptError, Finding, NotFound, error
from ..report import Outcome
from .counters import Counters
from .decode import Limits, plain
from .lossless import TOLERANCE, compare, tie_note
from .preconditions import check_options
from .prompts import Prompt, Texts, read_prompts
from .results import OWN, Piece, SmokeReport, Text, Tie, acceptance
from .smoke import DTYPES, Options, counters_of, no_accept, setting_of, target_hash
from .target import load_target
from .tree import TreeShape, chain_of
from .verification import GREEDY

PATIENCE = 600.0  # seconds for one prompt
VERIFICATIONS = "spec_verify_ct"
CORRECT = ("spec_num_correct_drafts", "spec_accept_token_num")
PROPOSED = ("spec_num_proposed_drafts", "spec_draft_token_num")
INFO = ("server_info", "get_server_info")
NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def smoke_server(
    url: str, target_path: Path, draft_path: Path, options: Options, progress: Callable[[str], None] = lambda text: None
) -> Outcome[SmokeReport]:
    """Send the prompts one by one, greedily, and compare with TARGET decoded here. The numbers that the server was started with
    count, those of `options` where it does not tell them.

    Raises NotFound if no server answers and CkptError if it does not speculate.
    """
    check_options(options.device, GREEDY, options.shape)
    told = _told(url)
    shape = told or (options.shape if options.topk > 1 else None)
    spec = open_draft(draft_path)
    progress("loading the target")
    target = load_target(target_path, options.device, DTYPES[options.dtype])
    texts = Texts(target)
    limits = Limits(options.max_new_tokens, texts.stop)
    counters = counters_of(shape) if shape else Counters(0)
    found, ties, shown = list[Finding](), list[Tie](), list[Text]()
    prompts = [texts.prompt(entry) for entry in read_prompts(options.prompts)[: options.most]]
    for number, prompt in enumerate(prompts):
        progress(f"prompt {number + 1} of {len(prompts)}")
        tokens, meta = _generate(url, prompt, limits)
        _count(counters, meta, len(tokens), url, shape)
        alone = plain(target, prompt.ids, limits).tokens
        near, wrong = compare(target, prompt.ids, alone, tokens, number)
        ties, found = ties + near, found + ([wrong] if wrong else [])
        text = texts.text(tokens)
        shown.append(Text(prompt.shown, text, len(tokens), alone == tokens, [Piece(OWN, text)]))
    measured = chain_of(counters.steps) if shape is None else shape
    options = replace(
        options,
        steps=measured.steps,
        topk=measured.topk,
        num_draft_tokens=None if measured.chain else measured.drafts + 1,
    )
    setting = setting_of(options, len(prompts))
    report = SmokeReport(
        target=str(target_path),
        draft=str(draft_path),
        kind=spec.kind,
        form=spec.form,
        target_hash=target_hash(target_path),
        draft_hash=spec.weights_hash(),
        setting=setting,
        lossless=not found,
        acceptance=acceptance(counters),
        ties=ties,
        texts=shown,
        server=url,
    )
    found += [tie_note(ties, TOLERANCE[target.dtype])] if ties else []
    return Outcome(report, [*found, *no_accept(report)])


def _told(url: str) -> TreeShape | None:
    """What the server says that it drafts; None where it says nothing of it. Raises NotFound if it does not answer."""
    for page in INFO:
        try:
            told = _answered(urllib.request.Request(f"{url.rstrip('/')}/{page}"), url)
        except urllib.error.HTTPError:
            continue
        steps, topk, tokens = (told.get(name) for name in NUMBERS)
        if isinstance(steps, int) and isinstance(topk, int) and isinstance(tokens, int):
            return TreeShape(steps, topk, tokens - 1)
    return None


def _generate(url: str, prompt: Prompt, limits: Limits) -> tuple[list[int], Mapping[str, Any]]:
    sampling = {"temperature": 0, "max_new_tokens": limits.new, "stop_token_ids": sorted(limits.stop)}
    answer = _post(f"{url.rstrip('/')}/generate", {"input_ids": prompt.ids, "sampling_params": sampling})
    tokens, meta = answer.get("output_ids"), answer.get("meta_info")
    if not isinstance(tokens, list) or not isinstance(meta, Mapping):
        raise _strange(url, "output_ids and meta_info", ", ".join(answer) or "nothing")
    return [int(token) for token in tokens], meta


def _post(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        return _answered(request, url)
    except urllib.error.HTTPError as problem:
        raise _strange(
            url, "an answer", f"HTTP {problem.code}: {problem.read(300).decode(errors='replace')}"
        ) from problem


def _answered(request: urllib.request.Request, url: str) -> dict[str, Any]:
    """A JSON object, empty for any other; raises HTTPError for a refusal."""
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as stream:
            found = json.load(stream)
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError, http.client.HTTPException) as problem:
        raise error(
            NotFound,
            "server-not-reached",
            "no SGLang server answers",
            where=url,
            expected="a running server, such as http://127.0.0.1:30000",
            actual=str(problem),
            fix="start it with the flags of `ckpt-tools serve-args`, and wait until it is ready",
        ) from problem
    return found if isinstance(found, dict) else {}


def _count(counters: Counters, meta: Mapping[str, Any], tokens: int, url: str, shape: TreeShape | None) -> None:
    """Add one answer's counters; without a known `shape`, a chain of as many steps as the server proposed per verification."""
    accepted, proposed = (next((meta[name] for name in names if name in meta), None) for names in (CORRECT, PROPOSED))
    verifications = meta.get(VERIFICATIONS)
    if not isinstance(verifications, int) or not isinstance(accepted, int) or not isinstance(proposed, int):
        raise _strange(url, f"{VERIFICATIONS}, {CORRECT[0]}, {PROPOSED[0]} in meta_info", "none: it does not speculate")
    accepting = meta.get("spec_correct_drafts_histogram") or []
    if shape is None:
        steps = proposed // verifications if verifications else 0
        counters.steps = max(counters.steps, steps)
    elif proposed != verifications * shape.drafts or any(accepting[shape.steps + 1 :]):
        raise _strange(
            url,
            f"{shape.drafts} drafts per verification, {shape.steps} of them accepted at most",
            f"{proposed} drafts in {verifications} verifications, by accepted drafts {accepting}",
        )
    counters.verifications += verifications
    counters.accepted += accepted
    counters.proposed += proposed
    counters.tokens += tokens
    for place, count in enumerate(accepting):
        counters.histogram += [0] * (place + 1 - len(counters.histogram))
        counters.histogram[place] += int(count)
    counters.histogram += [0] * (counters.steps + 1 - len(counters.histogram))


def _strange(url: str, expected: str, actual: str) -> CkptError:
    return error(
        CkptError,
        "server-answer",
        "the server does not answer as an SGLang does that speculates like this",
        where=url,
        expected=expected,
        actual=actual,
        fix="start it with --speculative-algorithm, --speculative-num-steps and the head's path",
    )
