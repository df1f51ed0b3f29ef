"""Building and verifying a tree of drafts: the root, candidate 0, and those that were selected among all that were scored."""

import torch


def build_tree_kernel_efficient_cpu(
    parents, selected, lengths, mask, positions, index, following, sibling, topk, depth, count, mode
):
    """`count` candidates per request. `selected [requests, count - 1]` numbers them among all scored ones, of which each
    `topk` in a row have one parent: the root for the first, then `parents [requests, ...]` (its number among all scored).

    Writes `mask` (who may see whom), `positions`, and the tree as first child (`following`) and next brother (`sibling`). A
    candidate whose parent was not selected (their scores may be equal) is nobody's child and sees the root and itself.
    """
    masks = mask.view(len(lengths), count, count)
    for request, length in enumerate(lengths.tolist()):
        chosen = selected[request].tolist()
        masks[request] = torch.eye(count, dtype=torch.bool)
        masks[request, :, 0] = True
        above = [0]
        for candidate, number in enumerate(chosen, 1):
            parent = int(parents[request, number // topk]) if number >= topk else None
            above.append(0 if parent is None else 1 + chosen.index(parent) if parent in chosen else None)
            masks[request, candidate] |= masks[request, above[candidate] or 0]
        positions[request * count : (request + 1) * count] = length + masks[request].sum(-1) - 1
        index[request] = request * count + torch.arange(count)
        following[request] = sibling[request] = -1
        for candidate in range(count - 1, 0, -1):
            if above[candidate] is None:
                continue
            sibling[request, candidate] = following[request, above[candidate]]
            following[request, above[candidate]] = candidate


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    """From the root on, the child that the target predicts is kept; at the end, what it predicts itself."""
    wanted = target_predict.reshape(-1).tolist()
    for request in range(len(candidates)):
        here, kept = 0, 0
        place = accept_index[request, 0] = int(retrive_index[request, 0])
        for step in range(1, accept_index.shape[1]):
            here = int(retrive_next_token[request, here])
            while here != -1 and int(candidates[request, here]) != wanted[place]:
                here = int(retrive_next_sibling[request, here])
            if here == -1:
                break
            predicts[place] = wanted[place]
            place = accept_index[request, step] = int(retrive_index[request, here])
            kept = step
        accept_token_num[request] = kept
        predicts[place] = wanted[place]
