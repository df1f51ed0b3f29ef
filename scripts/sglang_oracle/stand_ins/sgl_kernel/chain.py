"""Building and verifying a chain of drafts: the root and one candidate after another."""

import torch


def build_tree_kernel_efficient_cpu(
    parents, selected, lengths, mask, positions, index, following, sibling, topk, depth, count, mode
):
    """`count` candidates per request; `mask` is lower triangular, candidate i stands i behind the text."""
    assert topk == 1, "only chains"
    requests = len(lengths)
    mask.view(requests, count, count)[:] = torch.ones(count, count, dtype=torch.bool).tril()
    steps = torch.arange(count)
    for request, length in enumerate(lengths.tolist()):
        positions[request * count : (request + 1) * count] = length + steps
        index[request] = request * count + steps
        following[request] = torch.where(steps + 1 < count, steps + 1, -1)
    sibling[:] = -1


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
    """Candidates are kept while each is what the target predicts after the one before; then the target's own."""
    wanted = target_predict.reshape(-1).tolist()
    for request in range(len(candidates)):
        kept, place = 0, int(retrive_index[request, 0])
        accept_index[request, 0] = place
        for step in range(1, min(candidates.shape[1], accept_index.shape[1])):
            if int(candidates[request, step]) != wanted[place]:
                break
            predicts[place] = wanted[place]
            place = int(retrive_index[request, step])
            kept = step
            accept_index[request, step] = place
        accept_token_num[request] = kept
        predicts[place] = wanted[place]
