"""sglang's kernels have no CPU build on PyPI. Classes are built and weights are loaded without calling one."""

import torch

__version__ = "0"


def _absent(name):
    def kernel(*args, **kwargs):
        raise NotImplementedError(f"no kernel {name}: this environment only loads weights")

    return kernel


def _nothing(*args, **kwargs):
    return None


# Looked up when sglang's modules are imported.
ABSENT = (
    "extend_attention_cpu",
    "decode_attention_cpu",
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)

for _name in ABSENT:
    setattr(torch.ops.sgl_kernel, _name, _absent(_name))
for _name in ("init_cpu_threads_env", "initialize"):
    setattr(torch.ops.sgl_kernel, _name, _nothing)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _absent(name)
