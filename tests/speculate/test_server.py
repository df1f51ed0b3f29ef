"""`smoke --server` against a small HTTP server that answers as SGLang does, and as it should not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools.speculate.decode import Limits, plain
from ckpt_tools.speculate.target import load_target
from tests.conftest import Command

from . import worlds
from .conftest import Clockwork

Answer = Callable[[dict[str, Any]], dict[str, Any]]
COUNTED = {
    "spec_verify_ct": 5,
    "spec_num_correct_drafts": 6,
    "spec_num_proposed_drafts": 15,
    "spec_correct_drafts_histogram": [2, 1, 1, 1],
}
OLDER = {"spec_verify_ct": 5, "spec_accept_token_num": 6, "spec_draft_token_num": 15}


@contextmanager
def answering(answer: Answer, info: dict[str, Any] | None = None) -> Iterator[str]:
    """A server; `info` is what it says of itself, None for one that has no such page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if info is not None and self.path == "/server_info" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(info).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = json.dumps(answer(body)).encode()
            self.send_response(200 if self.path == "/generate" else 404)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def run(clockwork: Clockwork, command: Command, tmp_path: Path) -> Callable[..., Any]:
    target = clockwork("llama")
    head = worlds.eagle(tmp_path / "head", target)
    prompts = worlds.write_prompts(tmp_path / "p.json")
    text = plain(load_target(target), worlds.START, Limits(12)).tokens

    def call(
        meta: dict[str, Any],
        code: int,
        edit: Callable[[list[int]], Any] = lambda tokens: tokens,
        info: dict[str, Any] | None = None,
        more: tuple[object, ...] = (),
    ) -> Any:
        asked: list[dict[str, Any]] = []

        def answer(body: dict[str, Any]) -> dict[str, Any]:
            asked.append(body)
            return {"output_ids": edit(list(text)), "meta_info": meta}

        with answering(answer, info) as url:
            words = ("smoke", target, head, "--prompts", prompts, "--max-new-tokens", 12, "--server", url, "--json")
            ran = command(*words, *more, code=code)
        assert asked[0]["input_ids"] == worlds.START
        assert asked[0]["sampling_params"] == {"temperature": 0, "max_new_tokens": 12, "stop_token_ids": [2]}
        return ran

    return call


@pytest.mark.parametrize("meta", [COUNTED, OLDER])
def test_its_counters_become_our_figures(meta: dict[str, Any], run: Callable[..., Any]) -> None:
    result = run(meta, 0).result
    assert result["lossless"] is True
    assert result["setting"]["steps"] == 3
    acceptance = result["acceptance"]
    assert (acceptance["accept_length"], acceptance["accept_rate"]) == (2.2, 0.4)


def started_with(steps: int, topk: int, tokens: int) -> dict[str, Any]:
    values = (steps, topk, tokens)
    return dict(
        zip(("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"), values, strict=True)
    )


TREE = COUNTED | {"spec_num_proposed_drafts": 35}


def test_what_it_was_started_with_counts(run: Callable[..., Any]) -> None:
    """A tree of 8 tokens: 7 drafts a verification, of which 3 can be accepted, whatever was asked for here."""
    for more in ((), ("--steps", 5), ("--topk", 4, "--draft-tokens", 9)):
        result = run(TREE, 0, info=started_with(3, 2, 8), more=more).result
        setting, acceptance = result["setting"], result["acceptance"]
        assert (setting["steps"], setting["topk"], setting["num_draft_tokens"]) == (3, 2, 8)
        assert (acceptance["proposed"], acceptance["accept_rate"], acceptance["histogram"]) == (
            35,
            6 / 35,
            [2, 1, 1, 1],
        )


def test_a_tree_that_it_does_not_tell_is_asked_for(run: Callable[..., Any]) -> None:
    result = run(TREE, 0, more=("--steps", 3, "--topk", 2, "--draft-tokens", 8)).result
    assert (result["setting"]["topk"], len(result["acceptance"]["histogram"])) == (2, 4)


@pytest.mark.parametrize("numbers", [(3, 2, 9), (2, 3, 8), (3, 1, 4)])
def test_numbers_that_its_counters_contradict(numbers: tuple[int, int, int], run: Callable[..., Any]) -> None:
    assert run(TREE, 1, info=started_with(*numbers)).codes == ["server-answer"]


def test_another_text_than_the_targets_is_an_error(run: Callable[..., Any]) -> None:
    ran = run(COUNTED, 1, lambda tokens: [*tokens[:5], (tokens[5] + 1) % 40, *tokens[6:]])
    assert "token 5" in ran.finding("smoke-not-lossless")["what"]


def test_no_accepted_draft_is_an_error(run: Callable[..., Any]) -> None:
    assert "smoke-no-accept" in run(COUNTED | {"spec_num_correct_drafts": 0}, 1).codes


@pytest.mark.parametrize("meta", [{}, {"spec_verify_ct": 5}])
def test_a_server_that_does_not_speculate(meta: dict[str, Any], run: Callable[..., Any]) -> None:
    assert run(meta, 1).codes == ["server-answer"]


def test_no_server_is_not_found(clockwork: Clockwork, command: Command, tmp_path: Path) -> None:
    target = clockwork("llama")
    head, prompts = worlds.eagle(tmp_path / "head", target), worlds.write_prompts(tmp_path / "p.json")
    words = ("smoke", target, head, "--prompts", prompts, "--server", "http://127.0.0.1:9", "--json")
    assert command(*words, code=3).codes == ["server-not-reached"]
