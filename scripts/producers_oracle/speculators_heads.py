#!/usr/bin/env python3
"""speculators' own classes: heads as its trainer makes and saves them, and folders as its `from_pretrained` loads them.

  make OUT TARGETS   heads of every kind for the models in TARGETS (folders named llama, qwen3_next, ...), into OUT; MTP heads
                     by its own converter. Every head is saved by `save_pretrained`
  load DIR...        one JSON object per folder: the class, tensors that are missing, unexpected or not what is stored

Beside each head lie its answers: logits of two steps (answers.py).
"""

import warnings

import stand_ins
import torch
from answers import ROWS, compared, hidden_of, ids_of, keep, randomise
from job import run
from safetensors.torch import load_file

warnings.filterwarnings("ignore")
stand_ins.install()

from speculators import Eagle3DraftModel, MTPDraftModel, SpeculatorModel, SpeculatorModelConfig  # noqa: E402
from speculators.convert.mtp.converter import MTPConverter  # noqa: E402
from transformers import AutoConfig, LlamaConfig, Qwen3Config  # noqa: E402

STEPS = 2
DRAFT_VOCAB = 16
LAYER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
LAYER |= {"num_hidden_layers": 1, "max_position_embeddings": 256, "rms_norm_eps": 1e-5}
# kind of layer, fields of it, arguments of the trainer
EAGLE3 = {
    "llama": (LlamaConfig, {}, {}),
    "qwen3": (Qwen3Config, {}, {}),
    "residual": (LlamaConfig, {}, {"norm_before_residual": True}),
    "before-fc": (LlamaConfig, {}, {"norm_before_fc": True}),
    "fc-norm": (LlamaConfig, {}, {"fc_norm": True, "norm_output": True}),
    "bias": (LlamaConfig, {"attention_bias": True}, {}),
    "deep": (LlamaConfig, {"num_hidden_layers": 2}, {"target_layer_ids": [1, 4, 6, 8]}),
    "full-vocabulary": (LlamaConfig, {}, {"draft_vocab_size": 64}),
    "rope": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}}, {}),
}
MTP = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def maps(vocab, count):
    """(t2d, d2t): every `vocab / count`th id and what is added to a draft id."""
    kept = torch.arange(count) * (vocab // count)
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[kept] = True
    return mask, kept - torch.arange(count)


def eagle3(target, kind, fields, options):
    """As its trainer makes one, with values of our own."""
    vocab = AutoConfig.from_pretrained(target).vocab_size
    options = {"draft_vocab_size": DRAFT_VOCAB, "norm_before_residual": False, **options}
    t2d, d2t = maps(vocab, options["draft_vocab_size"])
    model = Eagle3DraftModel.from_training_args(
        kind(**{**LAYER, "vocab_size": vocab, **fields}),
        *(t2d, d2t),
        verifier_name_or_path=str(target),
        ttt_steps=STEPS,
        draft_attn_impl="eager",
        **options,
    )
    embedding = model.embed_tokens.weight.data
    randomise(model)
    model.embed_tokens.weight.data = embedding
    return model


def answer_eagle3(model, folder):
    """Logits of each step from hidden states and ids; the second step's tokens are the ids moved by one, zero at the end."""
    steps = []
    hook = model.lm_head.register_forward_hook(lambda module, read, out: steps.append(out))
    hidden, ids = hidden_of(model.fc.in_features), ids_of(model.verifier_vocab_size)
    model(hidden, ids, document_ids=torch.zeros(1, ROWS, dtype=torch.long), ttt_steps=STEPS)
    hook.remove()
    keep(folder, hidden=hidden, ids=ids, first=steps[0], second=steps[1])


def answer_mtp(model, folder):
    """Logits of each step, teacher forced: step k joins row t with the embedding of id t+k+1."""
    hidden, ids = hidden_of(model.config.hidden_size), ids_of(model.config.vocab_size)
    first, second = model(ids, hidden)[0][:STEPS]
    keep(folder, hidden=hidden, ids=ids, first=first, second=second)


def answer(model, folder):
    with torch.no_grad():
        (answer_mtp if isinstance(model, MTPDraftModel) else answer_eagle3)(model, folder)


def opened(folder):
    """In float32, with an attention that does not need compiling."""
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    return SpeculatorModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()


def make(out, targets):
    for name, case in EAGLE3.items():
        model = eagle3(targets / "llama", *case).to(torch.bfloat16)
        model.save_pretrained(out / name)
        answer(opened(out / name), out / name)
    for name in MTP:
        MTPConverter().convert(targets / name, out / name, str(targets / name), STEPS)
        answer(opened(out / name), out / name)


def load(folder):
    model = opened(folder)
    stored = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    if isinstance(model, Eagle3DraftModel) and "embed_tokens.weight" not in stored:  # left as the memory was
        model._load_verifier_weights(overwrite_embed_tokens=True)
    excused = ["embed_tokens.weight", "verifier_lm_head.weight", *type(model)._keys_to_ignore_on_save]  # the verifier's
    found = compared(model, stored, excused)
    answer(model, folder)
    return found


if __name__ == "__main__":
    run(make, load)
