"""What the page that samples in a browser (nbs/start/live.ipynb) loads, in a folder: both embedded
networks for ONNX Runtime, a JSON file about each, and the page's own files.

    python tools/live.py build/live

Weights are stored as the package stores them, most of them in bf16, and computed with in float32.
"""
import hashlib, json, logging, shutil, sys, warnings
from pathlib import Path
import onnx
import torch
from torch import nn
import navira
from navira.models.load import set_products
from numpy.random import default_rng
from navira.tasks.sudoku import dug, Sudoku, puzzles

assets = Path(__file__).resolve().parent.parent/'docs_assets'/'live'
# of the noise: what the page's policies draw numbers for
PURPOSES = 'count', 'gumbel', 'order', 'ties', 'token'
SETTINGS = {'sudoku': dict(passes=54, eta=.15, on=0), 'text': dict(passes=64, eta=.01, on=.5)}
RUNTIME = 'ort.wasm.bundle.min.mjs', 'ort-wasm-simd-threaded.wasm'

class Outputs(nn.Module):
    "Ids [1, L] to logits [L, V], the mask's among them, and qualities [L]."
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        h, c, rope = self.model.backbone(x, torch.zeros(1))
        return self.model.backbone.output_layer(h, c)[0], self.model.quality(h, c, rope)[0]

def halved(program):
    """In place: tensors that bf16 holds exactly become bf16, followed by a cast. ONNX Runtime folds
    it when it loads them, so that the file is half as large and the numbers are the same."""
    casts = []
    for tensor in program.graph.initializer:
        value = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        half = value.bfloat16() if value.dtype == torch.float32 else value.double()
        if value.numel() < 1000 or not half.to(value.dtype).equal(value): continue
        casts.append(onnx.helper.make_node('Cast', [f'{tensor.name}.bf16'], [tensor.name], to=1))
        tensor.CopyFrom(onnx.TensorProto(
            name=f'{tensor.name}.bf16', dims=tensor.dims, data_type=onnx.TensorProto.BFLOAT16,
            raw_data=half.view(torch.int16).numpy().tobytes()))
    nodes = [*casts, *program.graph.node]
    del program.graph.node[:]
    program.graph.node.extend(nodes)

def export(model, path):
    "Write the network of a model as ONNX."
    net, x = Outputs(model).eval(), torch.full((1, model.length), model.mask_id)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')     # of torch's exporter about itself
        program = torch.onnx.export(net, (x,), dynamo=True, opset_version=18, verbose=False,
                                    input_names=['x'], output_names=['logits', 'quality'])
    proto = program.model_proto
    halved(proto)
    graph = proto.graph
    for part in [graph, *graph.node, *graph.value_info, *graph.input, *graph.output]:
        part.ClearField('metadata_props')      # paths of this machine among them
    onnx.save(proto, path)

def word(purpose):
    "The purpose as the noise reads it, a 32-bit word (base/noise)."
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), 'little')

def of_sudoku(model):
    "Puzzles of held-out grids: with 35 given cells, and with 25 to 30 and one solution."
    s = Sudoku()
    hard = [dug(s, grid, 25 + i % 6, default_rng(i))
            for i, grid in enumerate(puzzles(s, s.cells, 20, 20))]
    named = [*((f'{i + 1}, 35 given', grid) for i, grid in enumerate(puzzles(s, 35, 0, 20))),
             *((f'{i + 21}, one solution', grid) for i, grid in enumerate(hard)),
             ('empty', [s.n] * s.cells)]
    return dict(puzzles=[(name, ''.join('123456789.'[d] for d in grid)) for name, grid in named])

def of_text(model):
    """The tokenizer: tokens as they read, the id of each byte, merges as ids, and the pattern of
    words of GPT-2, whose \\s is White_Space, and another set in JavaScript."""
    tok = model.tokenizer
    state = json.loads(tok.to_str())['model']
    ids = state['vocab']
    first = [ids[c] for c in byte_marks()]
    merges = [[ids[a], ids[b], ids[a + b]] for a, b in state['merges']]
    space = r'\p{White_Space}'
    pattern = (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+"
               rf'| ?[^{space}\p{{L}}\p{{N}}]+|{space}+(?!\P{{White_Space}})|{space}+')
    words = [tok.decode([i], skip_special_tokens=False) for i in range(tok.get_vocab_size())]
    return dict(pattern=pattern, first=first, merges=merges, words=words)

def byte_marks():
    "The character that stands for each byte: itself where it prints, else one of 256 on."
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in prints else next(others)) for b in range(256)]

def build(out):
    "Fill the folder `out` afresh."
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(assets, out)
    runtime = sum((out/name).stat().st_size for name in RUNTIME)
    for task, more in (('sudoku', of_sudoku), ('text', of_text)):
        model = set_products(navira.load(None if task == 'text' else task), 'default')
        export(model, out/f'{task}.onnx')
        about = dict(length=model.length, mask=model.mask_id, vocabulary=model.config.vocab_size,
                     bytes=runtime + (out/f'{task}.onnx').stat().st_size,
                     purposes={p: word(p) for p in PURPOSES}, **SETTINGS[task], **more(model))
        text = json.dumps(about, separators=(',', ':'))
        (out/f'{task}.json').write_text(text, encoding='utf-8')

if __name__ == '__main__':
    logging.disable()
    build(Path(sys.argv[1]))
