"""Samplers of published rules in plain numpy, each right, or wrong by one slip: what
`navira conformance` is tried on. Nothing here calls the library."""
import math

import numpy as np


def softmax(logits, mask_id=None):
    "Over words: no rule writes the mask"
    q = np.exp(logits - logits.max(-1, keepdims=True))
    if mask_id is not None: q[..., mask_id] = 0
    return q / q.sum(-1, keepdims=True)

def race(q, u): # a token at each position, q and u [B, L, V]
    with np.errstate(divide='ignore'): return (q / -np.log(u)).argmax(-1)

def best(score, k): return np.argsort(-score, kind='stable')[:max(int(k), 0)]

def due(N, step, steps): # how many of N positions are written after a step
    return N // steps * (step + 1) + min(N % steps, step + 1)

def llada(ids, logits, prompt, mask_id, step, steps, noise, temperature=0., slip=None):
    "LLaDA in one block: low confidence waits"
    if slip == 'early' and step == steps - 2: step += 1                    # vllm#45965
    heat = temperature**2 if slip == 'twice' else temperature
    mask = None if slip == 'mask id' else mask_id
    token = softmax(logits, mask).argmax(-1)
    if temperature:
        u = noise['token'].astype(np.float32 if slip == 'float32' else np.float64)
        token = race(softmax(logits / heat, mask).astype(u.dtype), u)
    if slip == 'argmax': return np.where(prompt, ids, softmax(logits, mask).argmax(-1)) # MLX#555
    sure = np.take_along_axis(softmax(logits, mask), token[..., None], -1)[..., 0]
    out = ids.copy()
    for b, x in enumerate(ids):
        masks, row = x == mask_id, 0 if slip == 'row 0' else b
        k = due((~prompt[row]).sum(), step, steps)
        k = min(k - (~prompt[row] & (ids[row] != mask_id)).sum(), masks.sum())
        at = best(sure[b] if slip == 'everywhere' else np.where(masks, sure[b], -1), k)
        at = at[masks[at]]
        out[b, at] = token[b, at]
    return out

def backbone(ids, logits, prompt, mask_id, step, steps, seed, top_p=.9, slip=None):
    "A random order, with random numbers of its own"
    if slip == 'early' and step == steps - 2: step += 1
    rng = np.random.default_rng(seed)
    q = softmax(logits, mask_id)
    order = np.argsort(-q, -1)
    mass = np.take_along_axis(q, order, -1).cumsum(-1)
    within = mass <= top_p
    within[..., 0] = True
    if slip == 'crossing': within[..., 1:] |= mass[..., :-1] <= top_p
    np.put_along_axis(q, order, np.take_along_axis(q, order, -1) * within, -1)
    token, out = race(q, rng.random(q.shape)), ids.copy()
    for b, x in enumerate(ids):
        masks, N = x == mask_id, (~prompt[b]).sum()
        k = math.ceil(N * (step + 1) / steps) - (N - masks.sum())
        at = best(np.where(masks, rng.random(len(x)), -1), min(k, masks.sum()))
        out[b, at] = token[b, at]
    return out

samplers = {'llada-low-confidence': llada, 'backbone': backbone}

# rule, slip, words of the cause that the kit names
PLANTED = [
    ('llada-low-confidence', 'row 0', 'row 0 of the batch'),
    ('llada-low-confidence', 'float32', 'float32 precision'),
    ('llada-low-confidence', 'mask id', 'the mask id is not excluded'),
    ('llada-low-confidence', 'everywhere', 'all positions'),
    ('llada-low-confidence', 'twice', 'the temperature is applied twice'),
    ('llada-low-confidence', 'early', 'finished one step early'),
    ('llada-low-confidence', 'argmax', 'overwritten by its most likely token'),
    ('backbone', 'early', 'finished one step early'),
    ('backbone', 'crossing', 'crosses top_p')]
