"""What a head answers to inputs that are the same in every run, kept beside its folder for others to compare with."""

import torch
from safetensors.torch import save_file

ROWS = 9


def hidden_of(width):
    """`[1, ROWS, width]` features of a target."""
    return torch.randn(1, ROWS, width, generator=torch.Generator().manual_seed(1))


def ids_of(vocab, count=ROWS):
    """`[1, count]` token ids."""
    return torch.randint(0, vocab, (1, count), generator=torch.Generator().manual_seed(2))


def randomise(model):
    """Fill what is floating by name and size alone; norms around one, so that a missing one shows."""
    for name, tensor in model.named_parameters():
        made = torch.Generator().manual_seed(sum(name.encode()) + tensor.numel())
        values = torch.randn(tensor.shape, generator=made)
        tensor.data = (1 + 0.3 * values if tensor.ndim == 1 else 0.3 * values).to(tensor.dtype)


def keep(folder, **tensors):
    """`<folder>.answers.safetensors`: inputs and logits, float32 and int64."""
    kept = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(kept, f"{folder}.answers.safetensors")


def compared(model, stored, excused):
    """How the stored tensors and those of the model differ: neither side may have more, and every bit is the same.

    `excused` are names of the model that its producer does not store.
    """
    loaded = model.state_dict()
    return {
        "class": type(model).__name__,
        "missing": sorted(loaded.keys() - stored.keys() - set(excused)),
        "unexpected": sorted(stored.keys() - loaded.keys()),
        "differing": sorted(
            name
            for name in loaded.keys() & stored.keys()
            if loaded[name].shape != stored[name].shape or not torch.equal(loaded[name], stored[name].to(loaded[name]))
        ),
    }
