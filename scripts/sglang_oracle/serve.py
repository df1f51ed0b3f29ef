#!/usr/bin/env python3
"""Serve a target with a draft head on a CPU through sglang's own HTTP server: greedy, float32, one request at
a time.

Config, loader, model classes, workers, counters and HTTP are sglang's; attention and the tree kernels are the stand-ins.
"""

import argparse

from sglang.srt.arg_groups import overrides


class Platform:
    """Says that the CPU has AMX: without it sglang takes a backend that refuses speculation."""

    has_amx = True

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real(), name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("algorithm", choices=("EAGLE", "EAGLE3"))
    parser.add_argument("draft")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--topk", type=int, default=1)
    parser.add_argument("--draft-tokens", type=int, help="default: a chain's")
    options = parser.parse_args()
    overrides.get_platform = lambda real=overrides.get_platform: Platform(real)

    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs

    launch_server(
        ServerArgs(
            model_path=options.target,
            speculative_algorithm=options.algorithm,
            speculative_draft_model_path=options.draft,
            speculative_num_steps=options.steps,
            speculative_eagle_topk=options.topk,
            speculative_num_draft_tokens=options.draft_tokens or options.steps + 1,
            port=options.port,
            device="cpu",
            dtype="float32",
            attention_backend="intel_amx",
            skip_tokenizer_init=True,
            disable_radix_cache=True,
            max_running_requests=2,
            max_total_tokens=2048,
            context_length=256,
            tp_size=1,
            random_seed=1,
            log_level="error",
            trust_remote_code=True,
            skip_server_warmup=True,
        )
    )


if __name__ == "__main__":
    main()
