"""Which slots of the key-value pool belong to which tokens: copies between small tables."""

import ctypes

import torch


def _spans(requests, starts, stops):
    """(request's row, first token, last + 1, offset among all tokens) of every request."""
    offset = 0
    for request, start, stop in zip(requests.tolist(), starts.tolist(), stops.tolist(), strict=True):
        yield request, start, stop, offset
        offset += stop - start


def assign_req_to_token_pool_cpu(requests, table, starts, stops, slots, width):
    for request, start, stop, at in _spans(requests, starts, stops):
        table[request, start:stop] = slots[at : at + stop - start].to(table.dtype)


def assign_extend_cache_locs_cpu(requests, table, starts, stops, slots, width):
    for request, start, stop, at in _spans(requests, starts, stops):
        slots[at : at + stop - start] = table[request, start:stop].to(slots.dtype)


def assign_draft_cache_locs_contiguous_cpu(requests, table, lengths, slots, width, topk, steps):
    each = topk * steps
    for number, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        slots[number * each : (number + 1) * each] = table[request, length : length + each].to(slots.dtype)


def fill_bonus_tokens_cpu(tokens, lengths, bonus, stride):
    """The last token that each request was given."""
    flat = tokens.reshape(-1)
    for number, length in enumerate(lengths.tolist()):
        bonus[number] = flat[number * stride + length - 1]


def fill_accept_out_cache_loc_cpu(accepted, slots, kept):
    places = accepted.reshape(-1)
    places = places[places >= 0].long()
    kept[: len(places)] = slots[places]


def rotate_input_ids_cpu(ids, starts, lengths, following, chosen=None):
    """Every request's tokens one to the left, its next token at the end."""
    for number, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        part = ids[start : start + length]
        part[:-1] = part[1:].clone()
        part[-1] = following.reshape(-1)[number]


def build_draft_decode_metadata_cpu(table, requests, lengths, topk, steps, width):
    """Per lane of every request: the request's slots, then the lane's own, of which there is one a step."""
    found = torch.zeros(len(lengths) * topk, width, dtype=table.dtype)
    for number, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        for lane in range(topk):
            own = table[request, length + lane * steps : length + (lane + 1) * steps]
            row = torch.cat([table[request, :length], own])[:width]
            found[number * topk + lane, : len(row)] = row
    return found


def copy_all_layer_kv_cache_cpu(buffers, strides, targets, sources):
    """Rows of raw buffers, read before any is written."""
    for buffer, stride in zip(buffers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(buffer + source * stride, stride) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(buffer + target * stride, row, stride)
