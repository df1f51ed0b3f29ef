"""sglang's kernels have no CPU build on PyPI. Classes are built and weights are loaded without calling one."""

import torch

__version__ = "0"


def _absent(name):
    def kernel(*args, **kwargs):
        raise NotImplementedError(f"no kernel {name}: this environment only loads weights")

    return kernel


def _nothing(*args, **kwargs):
    return None


for _name in ("extend_attention_cpu", "decode_attention_cpu"):
    setattr(torch.ops.sgl_kernel, _name, _absent(_name))
for _name in ("init_cpu_threads_env", "initialize"):
    setattr(torch.ops.sgl_kernel, _name, _nothing)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _absent(name)
