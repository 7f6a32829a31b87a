"""A checkpoint of the training of MDLM, ReMDM or PRISM (Lightning's .ckpt), or a bare state dict,
as a folder that `navira.load` opens: convert_ckpt.py FILE FOLDER [LENGTH]; no code of it runs."""
import sys
import torch
from torch import Tensor
from navira.base.files import check_file, guarded
from navira.models.checkpoints import check_finite, prefixed
from navira.models.dit import MaskedLM
from navira.models.layers import Config
from navira.models.load import save

class StandIn:
    "In place of an object we have no use for: accepts construction and state, and forgets them."
    def __new__(cls, *args): return object.__new__(cls)
    def __init__(self, *args): pass
    def __setstate__(self, state): pass

# the unpickler adds items to plain dicts and lists only
ITEMS = dict(defaultdict=lambda *args: {}, deque=lambda *args: [], AttributeDict=dict)

def read_pickle(path):
    "What it holds, with stand-ins for all that torch does not know. ValueError naming the file"
    check_file(path)
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        stand_ins = [(ITEMS.get(name.split('.')[-1], StandIn), name) for name in names]
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location='cpu', weights_only=True, mmap=True)
    except Exception as e:
        raise ValueError(f'{path}: refused: damaged, or no file of torch.save with weights alone '
                         f'({type(e).__name__})') from e

def infer_config(weights, length):
    "The `Config` that fits the weights; shapes do not say how long a text may be"
    vocab_size, hidden_dim = weights['backbone.vocab_embed.embedding'].shape
    cond_dim, = weights['backbone.sigma_map.mlp.0.bias'].shape
    frequencies, = weights['backbone.rotary_emb.inv_freq'].shape
    blocks = {k.split('.')[2] for k in weights if k.startswith('backbone.blocks.')}
    head = any(k.startswith('quality.') for k in weights)
    return Config(vocab_size, length, hidden_dim, cond_dim, len(blocks),
                  hidden_dim // (2 * frequencies), quality_blocks=1 if head else None)

def name_average(average, net):
    "Name -> average: of backbone and head in either order (PRISM's code has both), or of the first"
    params = dict(net.named_parameters())
    every, n = [*params], sum(k.startswith('backbone.') for k in params)
    shapes = [w.shape for w in average]
    for names in every, every[n:] + every[:n], every[:n]:
        if shapes == [params[k].shape for k in names]: return dict(zip(names, average))
    raise ValueError(f'ema.shadow_params has {len(average)} tensors: expected {n} in '
                     'the order and the shapes of the backbone')

def convert(path, folder, length=Config.model_length):
    "Writes the average of the weights, which MDLM evaluates with; the weights where there is none"
    data = read_pickle(path)
    with guarded(f'{path}: not the weights of an MDLM backbone'):
        state = data.get('state_dict', data)
        weights = prefixed({k: w for k, w in state.items() if isinstance(w, Tensor)})
        with torch.device('meta'): model = MaskedLM(infer_config(weights, length))
        average = data.get('ema', {}).get('shadow_params')
        if average is not None: weights |= name_average(average, model)
        kept = {k: w.float() for k, w in weights.items() if '.rotary_emb.' not in k}
        model.load_state_dict(kept, assign=True)
    check_finite(kept.items(), path)
    save(model, folder)

if __name__ == '__main__': convert(*sys.argv[1:3], *map(int, sys.argv[3:]))
