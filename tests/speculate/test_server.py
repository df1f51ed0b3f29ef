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
def answering(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
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

    def call(meta: dict[str, Any], code: int, edit: Callable[[list[int]], Any] = lambda tokens: tokens) -> Any:
        asked: list[dict[str, Any]] = []

        def answer(body: dict[str, Any]) -> dict[str, Any]:
            asked.append(body)
            return {"output_ids": edit(list(text)), "meta_info": meta}

        with answering(answer) as url:
            words = ("smoke", target, head, "--prompts", prompts, "--max-new-tokens", 12, "--server", url, "--json")
            ran = command(*words, code=code)
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
