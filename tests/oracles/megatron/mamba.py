"""The real megatron-core MambaModel on a CPU, on the kernels of mamba_kernels.

MambaMixer itself is Megatron's: how it cuts the joint projection into z, x, B, C and dt, its parameters, its sharding and the
pieces in which it stores them.
"""

from __future__ import annotations

from typing import Any

from .hf import HfConfig, is_tied
from .stand_ins import Norm, NormedColumnLinear, StandInProvider, WholeLinear


def stack_spec() -> Any:
    """Megatron's own spec of the hybrid stack, of stand-ins for TransformerEngine's modules."""
    import megatron.core.extensions.transformer_engine as engine
    import megatron.core.models.gpt.moe_module_specs as moe_specs
    import megatron.core.transformer.moe.moe_layer as moe_layer
    from megatron.core.tensor_parallel.layers import RowParallelLinear
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    names: Any = engine
    names.TEDotProductAttention, names.TERowParallelLinear = DotProductAttention, RowParallelLinear
    names.TELayerNormColumnParallelLinear, names.TENorm = NormedColumnLinear, Norm
    experts: Any = moe_specs
    experts.TESpecProvider = StandInProvider
    latent: Any = moe_layer
    latent.HAVE_TE, latent.TELinear = True, WholeLinear
    import megatron.core.models.mamba.mamba_layer_specs as specs
    import megatron.core.ssm.mamba_block as block

    stack: Any = block
    stack.TENorm = Norm
    return specs.mamba_stack_spec


def fields(hf_config: HfConfig) -> dict[str, Any]:
    """What of Megatron's configuration is a hybrid model's own."""
    from megatron.core.activations import squared_relu

    if hf_config["conv_kernel"] != 4 or not hf_config["use_conv_bias"] or hf_config["layer_norm_epsilon"] != 1e-5:
        raise NotImplementedError("MambaMixer fixes four taps with a bias and an epsilon of 1e-5")
    return {
        "activation_func": squared_relu,
        "gated_linear_unit": False,
        "mamba_head_dim": hf_config["mamba_head_dim"],
        "mamba_num_groups": hf_config["n_groups"],
        "mamba_num_heads": hf_config["mamba_num_heads"],
        "mamba_state_dim": hf_config["ssm_state_size"],
        "moe_latent_size": hf_config.get("moe_latent_size"),
        "moe_shared_expert_intermediate_size": hf_config["moe_shared_expert_intermediate_size"],
    }


def build(hf_config: HfConfig, config: Any, padded_vocab: int) -> Any:
    """The MambaModel of a config; attention has no rotary embedding."""
    from megatron.core import parallel_state
    from megatron.core.models.mamba.mamba_model import MambaModel

    return MambaModel(
        config=config,
        mamba_stack_spec=stack_spec(),
        vocab_size=padded_vocab,
        max_sequence_length=hf_config["max_position_embeddings"],
        hybrid_override_pattern=hf_config["hybrid_override_pattern"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=False,
        share_embeddings_and_output_weights=is_tied(hf_config),
        position_embedding_type="none",
    )
