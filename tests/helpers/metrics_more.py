"""What the tests of metrics more share."""
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from hypothesis import strategies as hs

import navira
from navira.evaluation.perplexity import Reference
from navira.evaluation.endpoints import Endpoint
from helpers.metrics import EOS, llama, texts, tokenizer
from toys import random_joint

@pytest.fixture(scope='module')
def ref(): return Reference(llama(), tokenizer())

# --- diversity ------------------------------------------------------------------------------------
ids = hs.integers(0, 4)

# --- perplexity under both rules, hidden states ---------------------------------------------------
cases = texts(6) + [f'w1 w2 {EOS} w3 w4 {EOS} w5', f'{EOS} w1 w2 {EOS} w3', f'w1 {EOS} {EOS} w2', 'w1', '', EOS]

# --- several devices ------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def folder(tmp_path_factory, ref):
    f = tmp_path_factory.mktemp('reference'); ref.model.save_pretrained(f); ref.tokenizer.save_pretrained(f)
    return f

@pytest.fixture(scope='module')
def joint(): return random_joint(6, 2)

kinds = {'navira-det': dict(eta=.4, on=0.), 'navira': dict(tau=.5, eta=.4, on=0.), 'prism': dict(eta=.4, on=0.),
         'prism-stochastic': dict(tau=.5, eta=.4, on=0.), 'remdm-cap': dict(eta=.3), 'mask-predict': {}, 'backbone': {}}

def run(joint, name, n=20, seed=3, budget=16, **kw):

    return navira.sample(joint, name, budget=budget, n=n, seed=seed, trace=True, **kinds[name], **kw).trace

# --- a reference behind a server ------------------------------------------------------------------
class Server(ThreadingHTTPServer):
    "Answers from a model, after doing what the script says: one entry a request, `None` for nothing unusual."
    daemon_threads = True
    def __init__(self, ref, script=(), form='prompt_logprobs', change=lambda body: body):
        super().__init__(('127.0.0.1', 0), Handler)
        self.ref, self.script, self.form, self.change = ref, list(script), form, change
        self.requests, self.keys, self.now, self.most, self.lock = [], [], 0, 0, threading.Lock()
    @property
    def url(self): return f'http://127.0.0.1:{self.server_port}/v1'
    @torch.no_grad()
    def answer(self, ids):
        lp = self.ref.model(torch.tensor([ids])).logits.log_softmax(-1)[0]
        each, word = [None] + [lp[t, i].item() for t, i in enumerate(ids[1:])], self.ref.tokenizer.convert_ids_to_tokens
        if self.form == 'echo':
            told = dict(token_logprobs=each + [-1.0], tokens=[word(i) for i in ids] + ['x'])
            return dict(choices=[dict(logprobs=told)])
        def entry(i, v):
            if i == 29: return {'29': dict(logprob=v)}
            return {str(i): dict(logprob=v, rank=2, decoded_token=word(i)), '29': dict(logprob=-0.1, rank=1)}
        table = [None, *map(entry, ids[1:], each[1:])]
        choice = dict(index=0, text='x', finish_reason='length', prompt_logprobs=table)
        return dict(id='x', object='text_completion', choices=[choice])

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def send(self, status, body, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in dict(Content_Type='application/json', Content_Length=str(len(body)), **headers).items():
            self.send_header(k.replace('_', '-'), v)
        self.end_headers()
        self.leave()
        self.wfile.write(body)  # before the client has the answer: it may ask again at once
    def leave(self):
        with self.server.lock: self.server.now -= getattr(self, 'here', 0); self.here = 0
    def do_GET(self):
        self.send(200, dict(object='list', data=[dict(id='the-model', object='model', created=0, owned_by='us')]))
    def do_POST(self):
        s, q = self.server, json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.asked = q['prompt']
        with s.lock:
            todo = s.script.pop(0) if s.script else None
            s.requests.append(q)
            s.keys.append(self.headers['Authorization'])
            s.now += 1
            self.here = 1
            s.most = max(s.most, s.now)
        try: return todo(self) if todo else self.send(200, s.change(s.answer(q['prompt'])))
        except (BrokenPipeError, ConnectionResetError): pass      # the client has gone
        finally: self.leave()

def fails(status, **headers):
    def fail(h):
        error = dict(error=dict(message=f'scripted {status}, key {h.headers["Authorization"]}'))
        h.send(status, error, retry_after_ms='1', **headers)
    return fail

@pytest.fixture
def serve(ref, monkeypatch):
    "A server and an endpoint for it."
    pytest.importorskip('openai')
    monkeypatch.setenv('NO_PROXY', '127.0.0.1'); monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-123'); made = []
    def start(script=(), form='prompt_logprobs', change=lambda body: body, **kw):
        made.append(s := Server(ref, script, form, change))
        threading.Thread(target=s.serve_forever, kwargs=dict(poll_interval=0.01), daemon=True).start()
        return s, Endpoint(s.url, 'the-model', ref.tokenizer, **{**dict(form=form, retries=2, timeout=30), **kw})
    yield start
    for s in made: s.shutdown(); s.server_close()
