"""Samplers of published rules in plain numpy, each right, or wrong by one slip: what
`navira conformance` is tried on. Nothing here calls the library."""
import math

import numpy as np


def softmax(logits):
    q = np.exp(logits - logits.max(-1, keepdims=True))
    return q / q.sum(-1, keepdims=True)


def unmasked(logits, mask_id):
    "Without the mask id, which no rule writes"
    logits = logits.copy()
    logits[..., mask_id] = -np.inf
    return logits


def nucleus(q, top_p, crossing):
    "The likeliest tokens within top_p, with or without the one that crosses it"
    if top_p >= 1: return q
    order = np.argsort(-q, -1, kind='stable')
    ranked = np.take_along_axis(q, order, -1)
    mass = ranked.cumsum(-1)
    kept = (mass - ranked if crossing else mass) <= top_p
    kept[..., 0] = True
    out = np.zeros_like(q)
    np.put_along_axis(out, order, ranked * kept, -1)
    return out / out.sum(-1, keepdims=True)


def race(q, u): # a token at each position, q and u [B, L, V]
    with np.errstate(divide='ignore'):
        return (q / -np.log(u)).argmax(-1)


def best(score, k): return sorted(range(len(score)), key=lambda j: -score[j])[:max(int(k), 0)]


# ---- LLaDA: low confidence waits, block by block


def due(N, step, steps, length):
    "How many of N positions are written after a step; what remains of a division comes first"
    if length is None: return N // steps * (step + 1) + min(N % steps, step + 1)
    blocks = math.ceil(N / length)
    b = step * blocks // steps
    first, end = math.ceil(b * steps / blocks), math.ceil((b + 1) * steps / blocks)
    return min(b * length + due(length, step - first, end - first, None), N)


def llada(ids, logits, prompt, mask_id, step, steps, noise, temperature=0., block_length=None,
          slip=None):
    if slip != 'mask id': logits = unmasked(logits, mask_id)
    if slip == 'twice' and temperature: logits = logits / temperature
    token = logits.argmax(-1)
    if temperature:
        u = noise['token'].astype(np.float32 if slip == 'float32' else np.float64)
        token = race(softmax(logits / temperature).astype(u.dtype), u)
    sure = np.take_along_axis(softmax(logits), token[..., None], -1)[..., 0]
    out = ids.copy()
    for b, (x, given) in enumerate(zip(ids, prompt)):
        masks, like = x == mask_id, 0 if slip == 'row 0' else b
        k = due((~prompt[like]).sum(), step, steps, block_length)
        k -= (~prompt[like] & (ids[like] != mask_id)).sum()
        block = (~given).cumsum() - 1
        block = block // (block_length or len(x))
        work = masks & (block == block[masks].min()) if masks.any() else masks
        score = sure[b] if slip == 'everywhere' else np.where(work, sure[b], -1)
        for j in best(score, min(k, work.sum())):
            if work[j]: out[b, j] = token[b, j]
    return out


# ---- MDLM and the backbone: their own random numbers


def mdlm(ids, logits, mask_id, step, steps, seed, top_p=.9, slip=None):
    rng = np.random.default_rng(seed)
    q = nucleus(softmax(unmasked(logits, mask_id)), top_p, crossing=False)
    left = steps - step - (slip == 'ahead')
    flips = (ids == mask_id) & (rng.random(ids.shape) * left < 1)
    return np.where(flips, race(q, rng.random(q.shape)), ids)


def backbone(ids, logits, prompt, mask_id, step, steps, seed, top_p=.9, slip=None):
    rng = np.random.default_rng(seed)
    q = nucleus(softmax(unmasked(logits, mask_id)), top_p, crossing=slip == 'crossing')
    token, order = race(q, rng.random(q.shape)), rng.random(ids.shape)
    out = ids.copy()
    for b, x in enumerate(ids):
        masks, N = x == mask_id, (~prompt[b]).sum()
        k = math.ceil(N * (step + 1) / steps) - (N - masks.sum())
        for j in best(np.where(masks, order[b], -1), k): out[b, j] = token[b, j]
    return out


samplers = {'llada-low-confidence': llada, 'mdlm': mdlm, 'backbone': backbone}

# rule, slip, words of the cause that the kit names
PLANTED = [
    ('llada-low-confidence', 'row 0', 'row 0 of the batch'),
    ('llada-low-confidence', 'float32', 'float32 precision'),
    ('llada-low-confidence', 'mask id', 'the mask id is not excluded'),
    ('llada-low-confidence', 'everywhere', 'all positions'),
    ('llada-low-confidence', 'twice', 'the temperature is applied twice'),
    ('mdlm', 'ahead', 'one step ahead'),
    ('backbone', 'crossing', 'crosses top_p')]
