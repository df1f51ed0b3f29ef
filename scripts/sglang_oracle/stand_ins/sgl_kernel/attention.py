"""Attention over the key-value pool, one request after another, in float32."""

import torch


def attend(queries, keys, values, scale, cap, seen):
    """`queries [T, heads, d]` over `keys [S, groups, d]`; `seen [T, S]` says where each may look."""
    repeated = queries.shape[1] // keys.shape[1]
    keys, values = (part.float().repeat_interleave(repeated, 1).transpose(0, 1) for part in (keys, values))
    scores = queries.float().transpose(0, 1) @ keys.transpose(1, 2) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values).transpose(0, 1)


def extend(
    q, k, v, out, key_pool, value_pool, k_scale, v_scale, table, requests, lengths, news, starts, longest, scale, cap,
    cross, window, encoder, sinks, tree, causal,
):  # fmt: skip
    """New tokens of every request, which are in the pool already; `tree` says which of the new ones each may see."""
    assert not (window and window > 0), "no sliding windows here"
    used = 0
    for number, (length, new, start) in enumerate(zip(lengths.tolist(), news.tolist(), starts.tolist(), strict=True)):
        slots = table[int(requests[number]), :length].long()
        seen = torch.ones(new, length, dtype=torch.bool)
        if tree is not None:
            seen[:, length - new :] = tree[used : used + new * new].view(new, new).bool()
            used += new * new
        elif causal:
            seen = seen.tril(length - new)
        rows = slice(start, start + new)
        out[rows] = attend(q[rows], key_pool[slots], value_pool[slots], scale, cap, seen).to(out.dtype)


def decode(
    q, key_pool, value_pool, k_scale, v_scale, out, k, v, places, logits, table, requests, lengths, scale, cap, cross,
    window, encoder, sinks,
):  # fmt: skip
    """One token of every request; its key and value are put into the pool first."""
    assert not (window and window > 0), "no sliding windows here"
    if k is not None:
        key_pool[places] = k.view(-1, *key_pool.shape[1:]).to(key_pool.dtype)
        value_pool[places] = v.view(-1, *value_pool.shape[1:]).to(value_pool.dtype)
    for number, length in enumerate(lengths.tolist()):
        slots = table[int(requests[number]), :length].long()
        seen = torch.ones(1, length, dtype=torch.bool)
        rows = slice(number, number + 1)
        out[rows] = attend(q[rows], key_pool[slots], value_pool[slots], scale, cap, seen).to(out.dtype)
