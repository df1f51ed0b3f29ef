#!/usr/bin/env python3
"""SpecForge's own classes: training states and exports as it writes them, and folders as its `from_pretrained` loads them.

  make OUT TARGET    heads for the model at TARGET, into OUT: NAME.json (the draft config that a training is given),
                     NAME/run-step1/training_state.pt, and NAME-sglang, NAME-hf by its two exporters
  load TARGET DIR... one JSON object per folder: the class, tensors that are missing, unexpected or not what is stored

Beside each folder lie its answers: logits of two steps (answers.py).
"""

import json
import warnings

import torch
from answers import ROWS, compared, hidden_of, ids_of, keep, randomise
from job import run
from safetensors.torch import load_file

warnings.filterwarnings("ignore")

from specforge.export import export_to_hf, export_to_sglang  # noqa: E402
from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig  # noqa: E402
from specforge.training.checkpoint import CheckpointManager  # noqa: E402

DRAFT_VOCAB = 16
CONFIG = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu", "pad_token_id": 0}
CONFIG |= {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
CONFIG |= {"num_hidden_layers": 1, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
CONFIG |= {"draft_vocab_size": DRAFT_VOCAB, "tie_word_embeddings": False}
KINDS = {
    "plain": {},
    "aux": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True}},
    "fc-norm": {"fc_norm": True},
    "raw": {"norm_output": False},
    "rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
}


def vocabulary(model):
    """t2d and d2t as its preprocessing makes them: kept ids, ascending."""
    kept = torch.arange(DRAFT_VOCAB) * (model.vocab_size // DRAFT_VOCAB)
    model.t2d.zero_()[kept] = True
    model.d2t.copy_(kept - torch.arange(DRAFT_VOCAB))


def answer(model, folder):
    """Two steps of its training: project, backbone, logits; what the backbone gives goes into the next step as it is."""
    hidden, ids = hidden_of(model.fc.in_features), ids_of(model.vocab_size)
    positions = torch.arange(ROWS)[None]
    model.eval()
    with torch.no_grad():
        state = model.project_hidden_states(hidden)
        mask = model.prepare_decoder_attention_mask(torch.ones(1, ROWS, dtype=torch.bool), state, 1, ROWS, 0)
        kept, steps = [[], []], []
        for moved in range(2):
            tokens = torch.cat([ids[:, moved:], ids.new_zeros(1, moved)], dim=1)
            state = model.backbone(model.embed_input_ids(tokens), state, kept, mask, positions)
            steps.append(model.compute_logits(state))
    keep(folder, hidden=hidden, ids=ids, first=steps[0], second=steps[1])


def make(out, target):
    vocab = json.loads((target / "config.json").read_text())["vocab_size"]
    for name, fields in KINDS.items():
        given = out / f"{name}.json"
        given.write_text(json.dumps({**CONFIG, "vocab_size": vocab, **fields}))
        model = configured(given).to(torch.bfloat16)
        randomise(model)
        vocabulary(model)
        weights = {key: value for key, value in model.state_dict().items() if "embed" not in key.lower()}
        state = {"draft_state_dict": weights, "strategy": "eagle3", "global_step": 1, "epoch": 0, "run_id": "run"}
        saved = CheckpointManager(str(out / name), "run").save(state, 1)
        export_to_sglang(saved, str(given), str(out / f"{name}-sglang"))
        export_to_hf(saved, str(given), str(out / f"{name}-hf"), embedding_source=str(target))
        model, _ = load(out / f"{name}-hf", target)
        answer(model, out / name)


def configured(path):
    return AutoDraftModel.from_config(AutoDraftModelConfig.from_file(str(path)))


def load(folder, target):
    """As its trainer starts from a draft: a model by the config, the weights out of `from_pretrained`; and the embedding."""
    loaded = AutoDraftModel.from_pretrained(folder, dtype=torch.float32)
    stored = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    found = compared(loaded, stored, ["embed_tokens.weight"])
    model = configured(folder / "config.json")
    model.load_state_dict(loaded.state_dict())
    model.load_embedding(str(target))
    return model, found


def judge(folder, target):
    model, found = load(folder, target)
    answer(model, folder)
    return found


if __name__ == "__main__":
    run(make, judge, context=1)
