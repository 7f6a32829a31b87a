"""A judge's verdicts: every text is asked about once, and what was answered is kept."""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from navira.base.runs import Interrupted
from navira.evaluation.judge import ASPECTS, Server
from navira.experiments.judged import judge, marks, table3, unjudged
from navira.experiments.run import run
from navira.experiments.store import open_store, write_table
from navira.experiments.sweep import Sweep
from toys import small_lm

FIVE = json.dumps(dict.fromkeys(ASPECTS, 4.))

def said(content): return 200, dict(choices=[dict(message=dict(content=content))])

class Scripted(ThreadingHTTPServer):
    "Answers by `script`, a function of how many requests came before: (status, what is sent)."
    daemon_threads = True
    def __init__(self, script=lambda i: said(FIVE)):
        super().__init__(('127.0.0.1', 0), Handler)
        self.script, self.asked = script, 0
        threading.Thread(target=self.serve_forever, args=(.02,), daemon=True).start()
    def server(self, model='qwen', **kw):
        url = f'http://127.0.0.1:{self.server_port}/v1'
        return Server(url, model, **dict(concurrency=1, retries=0, timeout=20.) | kw)
    def __exit__(self, *e):
        self.shutdown()
        self.server_close()

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        status, body = self.server.script(self.server.asked)
        self.server.asked += 1
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

@pytest.fixture(scope='module')
def swept(tmp_path_factory):
    model = small_lm(seed=3)
    words = {f'w{i}': i for i in range(model.config.vocab_size - 1)}
    model.tokenizer = Tokenizer(models.WordLevel(words, unk_token='w0'))
    entries = dict(policy='prism', eta=.3), dict(policy='navira-det', eta=.3)
    return run(Sweep(entries, budgets=(4, 8), n=10), tmp_path_factory.mktemp('judge')/'store',
               model)

@pytest.fixture
def store(swept, tmp_path):
    import shutil
    shutil.copytree(swept.folder, tmp_path/'store')
    return open_store(tmp_path/'store')

def verdicts(st): return st.read('verdicts').to_pandas()

def test_every_text_is_asked_about_once(store):
    with Scripted() as web:
        assert judge(store, web.server(), limit=2) == dict(judged=8, failed=0, asked=8)
        assert set(verdicts(store)['sample']) == {0, 1}
        assert judge(store, web.server(concurrency=3)) == dict(judged=32, failed=0, asked=32)
        assert judge(store, web.server())['asked'] == 0 and web.asked == 40
        assert len(unjudged(store, 'qwen')) == 0 and len(unjudged(store, 'other')) == 40
        judge(store, web.server('other'), limit=1)
    with pytest.raises(LookupError, match='other, qwen have judged'): marks(store)
    assert len(marks(store, 'qwen')) == 40

@pytest.mark.parametrize('stops', ['server', 'ctrl-c'])
def test_a_run_that_is_stopped_keeps_what_was_answered(store, stops, monkeypatch):
    down = 500, dict(error='down')
    with Scripted(lambda i: down if stops == 'server' and i >= 6 else said(FIVE)) as web:
        if stops == 'server':
            with pytest.raises(ConnectionError): judge(store, web.server())
            kept = 6
        else:
            import signal
            monkeypatch.setattr('navira.experiments.run.write_table', lambda *a: (
                write_table(*a), signal.raise_signal(signal.SIGINT)))
            with pytest.raises(Interrupted, match='stopped after 1 of 10'):
                judge(store, web.server())
            monkeypatch.undo()
            kept = 4
        assert len(verdicts(store)) == kept
        web.script = lambda i: said(FIVE)
        assert judge(store, web.server())['judged'] == 40 - kept

def test_a_failure_is_a_verdict_and_may_be_asked_again(store):
    odd = ['{"clarity": 3}'] * 2 + [FIVE.replace('4.0', '11', 1), 'half a character: \ud800'] * 2
    with Scripted(lambda i: said(odd[i]) if i < 6 else said(FIVE)) as web:
        done = judge(store, web.server(), limit=2)
        assert done['judged'] + done['failed'] == 8 and done['failed'] >= 2
        assert judge(store, web.server(), limit=2)['asked'] == 0
        assert judge(store, web.server(), limit=2, retry_failed=True)['judged'] == done['failed']
    assert verdicts(store).failed.isna().all()

def test_texts_that_a_content_filter_refuses_are_failures_even_all_of_them(store):
    filtered = 400, dict(error=dict(message='no', code='content_filter', param='prompt'))
    with Scripted(lambda i: filtered) as web:
        assert judge(store, web.server(), limit=1) == dict(judged=0, failed=4, asked=4)
        assert judge(store, web.server(), limit=1)['asked'] == 0

def test_a_server_that_refuses_every_text_is_no_judge(store):
    "What it says, such as a parameter that it lacks, is no verdict on a text"
    with Scripted(lambda i: (422, dict(detail=[dict(loc=['body', 'max_tokens'])]))) as web:
        with pytest.raises(ValueError, match='refuses each of 4 texts'): judge(store, web.server())
    assert store.read('verdicts') is None and web.asked == 4

def test_a_key_in_an_answer_is_not_stored(store, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-1234')
    with Scripted(lambda i: said('your key is sk-secret-1234')) as web:
        judge(store, web.server(), limit=1)
    assert verdicts(store).answer.str.contains('***', regex=False).all()
    assert not any(b'sk-secret' in p.read_bytes() for p in store.folder.rglob('*') if p.is_file())

def test_table_3_is_the_mean_of_the_marks(store):
    with pytest.raises(LookupError, match='no judge has seen'): marks(store)
    rng = np.random.default_rng(0)
    def script(i):
        given = dict(zip(ASPECTS, rng.uniform(1, 10, 5)))
        return said('no') if i < 2 else said(json.dumps(given))
    with Scripted(script) as web: judge(store, web.server())
    df, table = marks(store), table3(marks(store))
    assert len(table.rows) == 4 and df.failed.sum() == 1 and df.overall.isna().sum() == 1
    assert sum(int(f.split()[0]) for f in table.rows.failed) == 1
    means = df.groupby('point').overall.mean()
    shown = [float(text.split()[0]) for text in table.rows.overall]
    np.testing.assert_allclose(sorted(shown), sorted(means), atol=.06)
