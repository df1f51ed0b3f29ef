"""sglang's kernels have no CPU build on PyPI. Here is what serving chains and trees of drafts on a CPU calls, in plain
torch.

Whatever else is called says its name. Shapes and argument orders are those of sglang 0.5.23's own calls.
"""

import torch

from . import attention, places, tree

__version__ = "0"

PROVIDED = {name: getattr(module, name) for module in (places, tree) for name in dir(module) if name.endswith("_cpu")}


def _absent(name):
    def kernel(*args, **kwargs):
        raise NotImplementedError(f"no kernel {name} in this environment")

    return kernel


def _nothing(*args, **kwargs):
    return None


# Looked up when sglang's modules are imported.
ABSENT = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)

for _name in ABSENT:
    setattr(torch.ops.sgl_kernel, _name, _absent(_name))
torch.ops.sgl_kernel.extend_attention_cpu = attention.extend
torch.ops.sgl_kernel.decode_attention_cpu = attention.decode
for _name in ("init_cpu_threads_env", "initialize"):
    setattr(torch.ops.sgl_kernel, _name, _nothing)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return PROVIDED.get(name) or _absent(name)
