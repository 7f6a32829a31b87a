"""A line for each judged text, Table 3, and the figure of appendix C."""
import errno, json, os, signal, subprocess, sys, threading, time, traceback, warnings
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import navira.experiments.old_run as ex_run
import navira.experiments.samples as ex_samples
from navira.base.runs import Busy
from navira.models.load import save
from navira.evaluation.judge import ASPECTS, LONGEST, prompt, Server, verdict
from navira.experiments.old_sweep import Entry, Sweep
from navira.experiments.old_store import open_store
from navira.experiments.old_run import Interrupted, store_lock
from navira.experiments.old_results import Missing, read
from navira.experiments.judged import (
    difference, differences, figure_c, judge, judged_rows, seen_by, table3, verdict_logs, VerdictLog, verdicts)
from navira.cli.app import main
from toys import small_lm

FIVE = dict.fromkeys(ASPECTS, 4)

def of(text): return FIVE | dict(clarity=1 + len(text) % 9)

def said(text): return text.split('Generated text:\n')[1].split('\n\nReturn ONLY')[0]

def chat(content):
    choice = dict(index=0, finish_reason='stop', message=dict(role='assistant', content=content))
    return json.dumps(dict(id='1', object='chat.completion', created=0, model='m', choices=[choice])).encode()

def models_offered(*names):
    return json.dumps(dict(object='list', data=[dict(id=m, object='model') for m in names])).encode()

class Scripted(ThreadingHTTPServer):
    """Answers by `script`, a function of (how many requests came before, the text):
    None for a good answer, (status, headers, body), 'hang', or 'cut'."""
    daemon_threads = True
    def __init__(self, script=lambda i, text: None, delay=0.):
        super().__init__(('127.0.0.1', 0), Handler)
        self.script, self.delay, self.lock = script, delay, threading.Lock()
        self.asked, self.answered, self.seen = [], [], []
        threading.Thread(target=self.serve_forever, args=(.02,), daemon=True).start()
    @property
    def url(self): return f'http://127.0.0.1:{self.server_port}/v1'
    def __enter__(self): return self
    def __exit__(self, *e): self.shutdown(); self.server_close()

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self): self.send(200, {}, models_offered('qwen'))
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        text, s = said(body['messages'][0]['content']), self.server
        with s.lock: i = len(s.asked); s.asked.append(text); s.seen.append((self.headers.get('Authorization'), body))
        how = s.script(i, text)
        time.sleep(s.delay)
        if callable(how): return how(self)
        if how == 'hang': time.sleep(3); return
        if how == 'cut':
            self.send(200, {'Content-Length': '5000'}, chat('{"clarity"'))
            self.close_connection = True
            return
        if how is None:
            with s.lock: s.answered.append(text)
            how = 200, {}, chat(json.dumps(of(text)))
        self.send(*how)
    def send(self, status, headers, body):
        try:
            self.send_response(status)
            for k, v in ({'Content-Type': 'application/json', 'Content-Length': str(len(body))} | headers).items():
                self.send_header(k, v)
            self.end_headers(); self.wfile.write(body)
        except OSError: pass

WORDS = '. we saw a red fox and it ran away'.split()

@pytest.fixture(scope='module')
def swept(tmp_path_factory):
    n = torch.get_num_threads(); torch.set_num_threads(1)
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token='.'))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    home = tmp_path_factory.mktemp('judge')
    model = small_lm(seed=3); model.tokenizer = tok
    save(model, home / 'model')
    labels = {'prism': 'PRISM', 'navira-det': 'NAVIRA-det', 'navira-sigmoid': 'NAVIRA + sigmoid'}
    entries = tuple(Entry(p, label, hyper=dict(eta=0.3)) for p, label in labels.items())
    sweep = Sweep(entries, 'grid', str(home / 'model'), budgets=(4, 8), n=10, metrics=('entropy',))
    st = ex_run.run(sweep, home / 'whole')
    torch.set_num_threads(n)
    return st

@pytest.fixture
def store(swept, tmp_path):
    import shutil
    shutil.copytree(swept.folder, tmp_path / 'store')
    return open_store(tmp_path / 'store')

def server(s, model='qwen', **kw): return Server(s.url, model, **dict(concurrency=3, retries=3, timeout=20.) | kw)

def everything(store): return verdicts(next(iter(verdict_logs(store).values())))

ALL = 6 * 10

FAULTS = dict(
    busy=(429, {'Retry-After': '0.2'}, b'{"error": {"message": "slow down"}}'),
    broken=(500, {}, b'oops'),
    hang='hang',
    cut='cut',
    no_json=(200, {}, b'<html>gateway</html>'),
    error_in_200=(200, {}, b'{"error": {"message": "overloaded", "code": 503}}'),
    no_choice=(200, {}, b'{"choices": []}'),
)

# --- stopped --------------------------------------------------------------------------------------
def run(store, s, *args, **env):
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'COLUMNS': '200', **env}
    command = ['judge', str(store.folder), '--base-url', s.url, '--model', 'qwen', '--concurrency', '2', *args]
    return subprocess.Popen([sys.executable, '-m', 'navira.cli', *command], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env=env)

def until(s, n):
    end = time.monotonic() + 90
    while len(s.answered) < n: time.sleep(.005); assert time.monotonic() < end

# --- files that were damaged ----------------------------------------------------------------------
def judged_file(store, **kw):
    with Scripted() as s: judge(store, server(s), **kw)
    return next(iter(verdict_logs(store).values()))

def asked_again(store, **kw):
    with Scripted() as s, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return judge(store, server(s), **kw)['asked']

HEADS = {
    'half': b'{"judge": "qwen", "ru',
    'a list': b'[]',
    'null': b'null',
    'empty': b'',
    'bytes': b'\xff\xfe\x00',
    'a number for a name': b'{"judge": 7, "rules": 1}',
    'another judge': b'{"judge": "other", "rules": 1}',
    'deep': b'[' * 5000,
}

BAD = [
    b'{"key": broken',
    b'[]',
    b'7',
    b'',
    b'\xff',
    b'{"key": "k", "sample": 0}',
    b'{"key": "k", "sample": 0, "crc": 1, "marks": [1], "failed": null}',
    b'{"key": "k", "sample": 0, "crc": 1, "marks": null, "failed": null}',
    b'{"key": "k", "sample": "0", "crc": 1, "marks": null, "failed": "x"}',
    b'{"key": "k", "sample": 0, "crc": 1, "marks": {"clarity": 99}, "failed": null}',
]

def dribbles(where):
    "A byte each fifth of a second, for a minute: of the headers, or of the body."
    def send(h):
        head = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 400\r\nX-Filler: '
        body = b'\r\n\r\n'
        try:
            h.wfile.write(head if where == 'headers' else head + body)
            for _ in range(300): h.wfile.write(b'a'); h.wfile.flush(); time.sleep(.2)
        except OSError: pass
        h.close_connection = True
    return send

def whole_story(e): return ''.join(traceback.format_exception(e)) + repr(e.__context__) + repr(e.__cause__)

# --- tables ---------------------------------------------------------------------------------------
@pytest.fixture
def judged(store):
    with Scripted(lambda i, text: (200, {}, chat('no')) if i in (0, 1) else None) as s:
        judge(store, server(s, concurrency=1))
    return seen_by(read(store))

MISTAKES = [
    ([], '--base-url: not given'),
    (['--base-url', 'localhost:80'], 'expected an address'),
    (['--base-url', 'http://a:b@h/v1'], 'environment'),
    (['--base-url', 'http://h/v1', '--concurrency', '0'], 'concurrency=0'),
    (['--base-url', 'http://h/v1', '--timeout', '0'], 'timeout=0'),
    (['--base-url', 'http://h/v1', '--limit', '0'], 'limit=0'),
    (['--base-url', 'http://h/v1', '--timeout', '1e300'], 'at most 86400'),
    (['--base-url', 'http://h/v1', '--timeout', 'nan'], 'timeout=nan'),
    (['--dry-run', '--limit', '-1'], 'limit=-1'),
    (['--base-url', 'http://h/v1?api_key=hush'], 'a query'),
]

def cli(capsys, *args):
    with pytest.raises(SystemExit) as e: main(list(map(str, args)))
    return e.value.code, *capsys.readouterr()

# --- a run ----------------------------------------------------------------------------------------
def test_every_text_is_asked_for_once_and_never_again(store):
    with Scripted() as s:
        assert judge(store, server(s)) == dict(judged=ALL, failed=0, asked=ALL) and len(s.asked) == ALL
        assert judge(store, server(s)) == dict(judged=0, failed=0, asked=0) and len(s.asked) == ALL
        judge(store, server(s, 'another'))
        assert len(s.asked) == 2 * ALL and set(verdict_logs(store)) == {'qwen', 'another'}
        body = s.seen[0][1]
    (message,) = body['messages']
    assert body['temperature'] == 0
    assert message == dict(role='user', content=prompt(said(message['content'])))
    texts = {(k, i): t for k in store.keys for i, t in enumerate(ex_samples.texts(store, k))}
    for v in everything(store): assert v['marks'] == of(texts[v['key'], v['sample']]) and v['failed'] is None

def test_a_limit_takes_the_first_texts_of_each_cell_and_more_come_later(store):
    with Scripted() as s:
        assert judge(store, server(s), limit=2)['judged'] == 12 and {v['sample'] for v in everything(store)} == {0, 1}
        assert judge(store, server(s), limit=5)['judged'] == 18 and len(s.asked) == 30

def test_a_cell_that_is_sampled_anew_is_judged_anew(store):
    with Scripted() as s:
        judge(store, server(s), limit=1)
        path = next(iter(verdict_logs(store).values()))
        path.write_bytes(path.read_bytes().replace(b'"crc": ', b'"crc": 1', 1))  # as if the first were of other tokens
        assert judge(store, server(s), limit=1)['judged'] == 1

@pytest.mark.parametrize('fault', FAULTS)
def test_a_server_that_fails_for_a_while(store, fault):
    with Scripted(lambda i, text: FAULTS[fault] if i in (0, 4) else None) as s:
        n = judge(store, server(s, timeout=1. if fault == 'hang' else 20.), limit=2)
        assert n == dict(judged=12, failed=0, asked=12)
        assert len(s.asked) == 14 or fault == 'hang' and len(s.asked) > 14      # a second is short on a busy machine
        assert max(Counter(v['sample'] for v in everything(store)).values()) == 6

@pytest.mark.parametrize('fault', ['broken', 'error_in_200'])
def test_a_server_that_is_down_stops_the_run_and_loses_nothing(store, fault):
    with Scripted(lambda i, text: FAULTS[fault] if i >= 5 else None) as s:
        with pytest.raises(ConnectionError, match="'qwen' at http"): judge(store, server(s, concurrency=1, retries=1))
        assert len(everything(store)) == 5
        s.script = lambda i, text: None
        assert judge(store, server(s))['judged'] == ALL - 5
        there = Counter(c for k in store.keys for c in ex_samples.texts(store, k))
        assert max(Counter(s.answered).values()) <= max(there.values())

def test_nobody_there(store):
    with Scripted() as s: gone = s.url
    with pytest.raises(ConnectionError, match='no answer in 2 tries'):
        judge(store, Server(gone, 'qwen', retries=1, timeout=1.0))

def test_an_answer_that_cannot_be_read_is_asked_for_once_more(store):
    with Scripted(lambda i, text: (200, {}, chat('I think it is fine.')) if i < 1 else None) as s:
        assert judge(store, server(s, concurrency=1), limit=1) == dict(judged=6, failed=0, asked=7)
    with Scripted(lambda i, text: (200, {}, chat('{"clarity": 3}'))) as s:
        assert judge(store, server(s, 'mute'), limit=1) == dict(judged=0, failed=6, asked=12)
        assert judge(store, server(s, 'mute'), limit=1)['asked'] == 0 and len(s.asked) == 12  # a failure is a result
    v = verdicts(verdict_logs(store)['mute'])[0]
    assert v['marks'] is None and 'five marks' in v['failed'] and v['answer'] == '{"clarity": 3}'

def test_a_mark_out_of_range_is_a_failure_at_once(store):
    with Scripted(lambda i, text: (200, {}, chat(json.dumps(FIVE | dict(style=11))))) as s:
        assert judge(store, server(s), limit=1) == dict(judged=0, failed=6, asked=6)
    assert all('style=11' in v['failed'] and v['marks'] is None for v in everything(store))

def test_a_text_that_is_refused_is_a_failure_but_not_if_all_are(store):
    bad = (400, {}, b'{"error": {"message": "content policy"}}')
    with Scripted(lambda i, text: bad if i == 3 else None) as s:
        assert judge(store, server(s, concurrency=1), limit=2) == dict(judged=11, failed=1, asked=12)
    with Scripted(lambda i, text: bad) as s:
        with pytest.raises(ValueError, match='content policy'): judge(store, server(s, 'other', concurrency=1))
        assert len(s.asked) <= 4

def test_a_wrong_model_is_named(store):
    with Scripted(lambda i, text: (404, {}, b'{"error": {"message": "no such model"}}')) as s:
        with pytest.raises(KeyError, match="did you mean 'qwen'"): judge(store, server(s, 'qwem'))
    assert not verdict_logs(store) or not everything(store)

def test_the_key_is_sent_and_never_said(store, monkeypatch, capfd):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-1234')
    wrong = 401, {}, b'{"error": {"message": "wrong key sk-secret-1234"}}'
    with Scripted(lambda i, text: wrong if i > 3 else None) as s:
        with pytest.raises(ValueError, match='refused') as e:
            judge(store, server(s, concurrency=1))
        assert s.seen[0][0] == 'Bearer sk-secret-1234'
    assert 'secret' not in str(e.value) + repr(server(s)) + ''.join(capfd.readouterr())
    assert not [p for p in store.folder.rglob('*') if p.is_file() and b'secret' in p.read_bytes()]

def test_a_key_that_the_server_repeats_in_an_answer_is_not_stored(store, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-1234')
    with Scripted(lambda i, text: (200, {}, chat('your key is sk-secret-1234, ' + 'and so on ' * 50))) as s:
        judge(store, server(s), limit=1)
    answers = [v['answer'] for v in everything(store)]
    assert answers
    assert all('***' in a and len(a) > 500 for a in answers)
    assert not any(b'sk-secret' in p.read_bytes() for p in store.folder.rglob('*') if p.is_file())

@pytest.mark.parametrize('text', ['</script><b>', '\u202eabc', 'a "quoted" {text}', '\x00\x07', '🦊' * 3, '\ud800'])
def test_any_text_can_be_asked_about_and_stored(store, text):
    if text == '\ud800':
        v = dict(marks=None, failed='x', answer=text, asked=1)  # a judge may answer half a character
    else:
        with Scripted() as s: v = verdict(server(s), text)
        assert s.asked == [text] and v['marks'] == of(text)
    with VerdictLog(store, 'm') as roll: roll.write(dict(key='k', sample=0, crc=0) | v)
    (stored,) = verdicts(verdict_logs(store)['m'])
    assert stored['failed'] == v['failed'] and stored['answer'] == v['answer']

def test_kill_9_in_mid_run_and_go_on(store):
    with Scripted(delay=.03) as s:
        for n in (8, 25):
            p = run(store, s); until(s, n); p.send_signal(signal.SIGKILL); p.wait()
        kept = {(v['key'], v['sample']) for v in everything(store)}
        before = Counter(s.asked)
        path = next(iter(verdict_logs(store).values()))
        with open(path, 'ab') as f: f.write(b'{"key": "half of a li')
        p = run(store, s); said_ = p.communicate(timeout=90)[0]
        assert p.returncode == 0 and f'{ALL - len(kept)} texts judged, 0 failed' in said_, said_
        rows = everything(store)
        assert len(rows) == ALL == len({(v['key'], v['sample']) for v in rows}) and kept
        # each text once, but for the two that were under way at each kill
        assert sum((Counter(s.asked)).values()) <= ALL + 2 * 2 and sum(before.values()) <= len(kept) + 2 * 2

def test_ctrl_c_keeps_what_is_under_way(store):
    with Scripted(delay=.05) as s:
        p = run(store, s); until(s, 6); p.send_signal(signal.SIGINT)
        out = p.communicate(timeout=60)[0]
        assert p.returncode == 130 and 'same command again' in out, out
        assert len(everything(store)) == len(s.asked) < ALL
        assert judge(store, server(s))['judged'] + len(everything(store)) >= ALL and len(s.asked) == ALL

def test_two_at_once_are_refused(store):
    with Scripted(delay=.05) as s, store_lock(store.folder):
        with pytest.raises(Busy): judge(store, server(s))

@pytest.mark.parametrize('head', HEADS)
def test_a_damaged_first_line_costs_nothing(store, head):
    path = judged_file(store, limit=2)
    was = path.read_bytes()
    path.write_bytes(HEADS[head] + b'\n' + was.split(b'\n', 1)[1])
    with pytest.warns(UserWarning, match='first line.*is damaged'): assert verdict_logs(store) == {}
    assert asked_again(store, limit=2) == 0 and path.read_bytes() == was and verdict_logs(store) == {'qwen': path}

def test_a_lost_first_line_costs_nothing(store):
    path = judged_file(store, limit=2)
    was = path.read_bytes()
    path.write_bytes(was.split(b'\n', 1)[1])
    assert len(verdicts(path)) == 12 and asked_again(store, limit=2) == 0 and path.read_bytes() == was

@pytest.mark.parametrize('bad', BAD)
def test_a_damaged_line_is_named_left_out_and_judged_again(store, bad):
    path = judged_file(store, limit=1)
    rows = path.read_bytes().split(b'\n')
    path.write_bytes(b'\n'.join([*rows[:2], bad, *rows[3:]]))
    with pytest.warns(UserWarning, match='line 3 damaged'): assert len(verdicts(path)) == 5
    with pytest.warns(UserWarning, match='line 3 damaged'): assert len(judged_rows(store, 'qwen')) == 5
    assert asked_again(store, limit=1) == 1

@pytest.mark.parametrize('answer', ['\ud800', 'x' * 9000 + '\udfff', '\x1b[2J\x00\u202e'])
def test_half_a_character_in_an_answer_locks_nothing(store, answer):
    with Scripted(lambda i, text: (200, {}, chat(answer)) if i < 2 else None) as s:
        assert judge(store, server(s, concurrency=1), limit=2) == dict(judged=11, failed=1, asked=13)
    with Scripted() as s: judge(store, server(s, 'other'), limit=2)
    assert set(verdict_logs(store)) == {'qwen', 'other'} and asked_again(store, limit=2) == 0
    d = judged_rows(store, 'qwen')
    assert len(d) == 12
    assert d.failed.sum() == 1
    assert [v['answer'] for v in verdicts(verdict_logs(store)['qwen']) if v['failed']] == [answer]
    assert verdict_logs(store)['qwen'].read_bytes().isascii()

def test_a_file_as_0_1_0_wrote_it_is_read(store):
    "It had half characters as three bytes each."
    path = judged_file(store, limit=1)
    head, *rows = map(json.loads, path.read_bytes().splitlines())
    rows[0] |= dict(marks=None, failed='no JSON', answer='caf\xe9 \ud800')
    written = [json.dumps(v, ensure_ascii=False).encode('utf-8', 'surrogatepass') + b'\n' for v in (head, *rows)]
    path.write_bytes(b''.join(written))
    assert verdict_logs(store) == {'qwen': path}
    assert len(judged_rows(store, 'qwen')) == 6
    assert asked_again(store, limit=1) == 0

def test_a_full_disk_leaves_no_half_line(store, monkeypatch):
    path, real, left = judged_file(store, limit=1), os.write, [3]
    was = path.read_bytes()
    def write(fd, data):
        if len(data) < 50: return real(fd, data)
        left[0] -= 1
        if left[0] >= 0: return real(fd, data)
        if left[0] == -1: return real(fd, data[:20])
        raise OSError(errno.ENOSPC, 'No space left on device')
    with Scripted() as s:
        with monkeypatch.context() as m:
            m.setattr(os, 'write', write)
            with pytest.raises(OSError, match='No space left.*same command goes on'):
                judge(store, server(s, concurrency=1), limit=2)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            assert len(verdicts(path)) == 6 + 3
            assert path.read_bytes().startswith(was)
            assert path.read_bytes().endswith(b'}\n')
            assert judge(store, server(s), limit=2)['judged'] == 3

# --- what the server may not do -------------------------------------------------------------------
@pytest.mark.parametrize('key', ['0', '5', 'e', '1', '.', '{"'])
def test_a_key_that_is_in_every_answer_changes_none(store, monkeypatch, key):
    monkeypatch.setenv('OPENAI_API_KEY', key)
    good = json.dumps(FIVE | dict(clarity=5.0, style=10))
    with Scripted(lambda i, text: (200, {}, chat(good))) as s:
        assert judge(store, server(s), limit=1) == dict(judged=6, failed=0, asked=6)
    assert all(
        v['marks'] == {k: float(x) for k, x in json.loads(good).items()} and v['answer'] == good
        for v in everything(store)
    )

def test_failed_verdicts_can_be_asked_again(store, capsys):
    with Scripted(lambda i, text: (200, {}, chat('no')) if i < 4 else None) as s:
        assert judge(store, server(s, concurrency=1), limit=1) == dict(judged=4, failed=2, asked=8)
        assert judge(store, server(s), limit=1)['asked'] == 0
        code, out, err = cli(
            capsys, 'judge', store.folder, '--model', 'qwen', '--limit', 1, '--retry-failed', '--dry-run'
        )
        assert code == 0 and '2 texts to judge' in out
        assert judge(store, server(s), limit=1, retry_failed=True) == dict(judged=2, failed=0, asked=2)
        assert judge(store, server(s), limit=1, retry_failed=True)['asked'] == 0
        assert all(v['marks'] for v in everything(store))
        assert len(everything(store)) == 6

def test_a_second_ctrl_c_stops_at_once(store):
    if threading.current_thread() is not threading.main_thread(): pytest.skip('signals need the main thread')
    held = threading.Event()
    with Scripted(lambda i, text: None if i < 2 else lambda h: held.wait(60)) as s:
        def press():
            end = time.monotonic() + 20
            while len(s.asked) < 4 and time.monotonic() < end: time.sleep(.01)
            for _ in range(2): os.kill(os.getpid(), signal.SIGINT); time.sleep(.7)
        threading.Thread(target=press, daemon=True).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt) as e: judge(store, server(s, concurrency=2, timeout=50.))
        assert not isinstance(e.value, Interrupted) and time.monotonic() - start < 25
        held.set()
    assert len(everything(store)) == 2 and asked_again(store, limit=1) >= 4

def test_an_answer_nested_without_end_is_no_answer(store):
    with Scripted(lambda i, text: (200, {}, b'[' * 20_000 + b']' * 20_000)) as s:
        with pytest.raises(ConnectionError, match='1 answers that are none'): judge(store, server(s, retries=0))

def test_a_key_that_the_cut_of_an_answer_goes_through_is_not_stored(store, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-123')
    with Scripted(lambda i, text: (200, {}, chat('x' * (LONGEST - 5) + 'sk-secret-123'))) as s:
        judge(store, server(s), limit=1)
    assert all(v['answer'].endswith('xx***') for v in everything(store))

def test_an_answer_has_an_end(store):
    long = 'word ' * 10_000
    with Scripted(lambda i, text: (200, {}, chat(long))) as s: assert judge(store, server(s), limit=1)['failed'] == 6
    assert all(len(v['answer']) == LONGEST and '50,000 characters' in v['failed'] for v in everything(store))
    assert next(iter(verdict_logs(store).values())).stat().st_size < 80_000

def test_a_redirect_does_not_take_the_key_along(store, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-1234')
    with Scripted() as other, Scripted(lambda i, text: (307, {'Location': other.url + '/chat/completions'}, b'')) as s:
        with pytest.raises(ValueError, match='refused'): judge(store, server(s), limit=1)
        assert not other.asked

@pytest.mark.parametrize(
    'answer',
    [
        (404, {}, b'{"error": {"message": "no model for sk-secret-1234"}}'),
        (401, {}, b'{"error": {"message": "wrong key sk-secret-1234"}}'),
        (400, {}, b'{"error": {"message": "sk-secret-1234"}}'),
        (500, {}, b'sk-secret-1234'),
        (200, {}, b'sk-secret-1234'),
        (200, {}, b'{"error": "sk-secret-1234"}'),
    ],
    ids=lambda a: f'{a[0]}-{len(a[2])}',
)
@pytest.mark.parametrize('model', ['qwen', 'qwem'])
def test_no_error_and_nothing_chained_to_it_has_the_key(store, monkeypatch, answer, model):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-1234')
    monkeypatch.setattr(Handler, 'do_GET', lambda h: h.send(200, {}, models_offered('qwen', 'sk-secret-1234')))
    with Scripted(lambda i, text: answer) as s:
        with pytest.raises((ValueError, KeyError, ConnectionError)) as e:
            judge(store, server(s, model, retries=0))
    assert 'secret' not in whole_story(e.value) and e.value.__context__ is None

def test_what_a_server_says_does_not_move_the_cursor(store):
    said = json.dumps(dict(error=dict(message='\x1b]0;title\x07\x1b[2J\u202e'))).encode()
    with Scripted(lambda i, text: (401, {}, said)) as s:
        with pytest.raises(ValueError) as e:
            judge(store, server(s))
    assert str(e.value).isprintable() and 'title' in str(e.value)

def test_table_3_is_the_mean_of_the_marks(judged):
    t = table3(judged)
    assert {(r[0], r[1]) for r in t.rows} == {
        (n, F) for n in ('PRISM', 'NAVIRA-det', 'NAVIRA + sigmoid') for F in (4, 8)
    }
    for r, p in zip(t.rows, judged.points, strict=True):
        d = judged.of(p)
        v = d.overall.dropna()
        assert len(d) == 10 and len(v) in (9, 10) and f'{d.failed.sum()} of 10' == r[-2]
        five = d[list(ASPECTS)].dropna()
        assert np.allclose(five.mean(axis=1), v) and abs(float(r[2].split()[0].replace('−', '-')) - v.mean()) < .06
    assert sum(int(r[-2].split()[0]) for r in t.rows) == 1
    assert differences(judged).rows and figure_c(judged) and t.markdown() and t.latex()

def test_a_difference_is_unpaired_and_covers(judged):
    rng = np.random.default_rng(0)
    a = rng.normal(5, 1, 200)
    same, other = difference(a, a), difference(a, rng.normal(4, 1, 200))
    assert same.value == 0
    assert same.lo < 0 < same.hi
    assert same.hi - same.lo > 0.3  # sqrt(2) wider than one mean; paired it would be nothing
    assert other.lo > .6 and other.hi < 1.4

def test_without_a_judge_nothing_is_drawn(store):
    with pytest.raises(Missing, match='no judge has seen'): seen_by(read(store))
    with Scripted() as s: judge(store, server(s), limit=3)
    with pytest.raises(Missing, match='needs 8'): table3(seen_by(read(store)))
    with Scripted() as s: judge(store, server(s, 'other'), limit=1)
    with pytest.raises(Missing, match='name one'): seen_by(read(store))

def test_the_report_has_the_judge(store, capsys):
    with Scripted() as s: judge(store, server(s))
    code, out, err = cli(capsys, 'report', store.folder, '--print')
    assert code == 0 and 'Table 3: marks by qwen' in out, err
    assert (store.folder / 'report' / 'figure-c.png').stat().st_size > 1000

@pytest.mark.parametrize('args, says', MISTAKES, ids=lambda v: ' '.join(v) if isinstance(v, list) else None)
def test_mistakes_are_one_line(swept, args, says, capsys):
    code, out, err = cli(capsys, 'judge', swept.folder, *args)
    assert code == 2 and says in ' '.join(err.split()) and 'Traceback' not in err and 'hush' not in err

def test_dry_run_asks_nobody(swept, capsys):
    code, out, err = cli(capsys, 'judge', swept.folder, '--dry-run', '--limit', 3)
    assert code == 0 and '18 texts to judge' in out
