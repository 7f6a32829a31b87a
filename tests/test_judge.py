"""The judge: a server that misbehaves by script, a run that is killed, answers that are none, and one real server on this machine."""
import hashlib, json, os, signal, subprocess, sys, threading, time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pytest, torch
from hypothesis import given, strategies as hs
from tokenizers import Tokenizer, models, pre_tokenizers
import navira.experiments as ex
from navira import judge as j
from navira.cli import main
from navira.denoiser import save
from navira.figures import Missing, read
from toys import small_lm

FIVE = dict.fromkeys(j.ASPECTS, 4)

def of(text): return FIVE | dict(clarity=1 + len(text) % 9)
def said(text): return text.split('Generated text:\n')[1].split('\n\nReturn ONLY')[0]
def chat(content): return json.dumps(dict(id='1', object='chat.completion', created=0, model='m', choices=[dict(index=0, finish_reason='stop', message=dict(role='assistant', content=content))])).encode()

class Scripted(ThreadingHTTPServer):
    "Answers by `script`: a function of (how many requests came before, the text) -> None for a good answer, or (status, headers, body), 'hang', 'cut'."
    daemon_threads = True
    def __init__(self, script=lambda i, text: None, delay=0.):
        super().__init__(('127.0.0.1', 0), Handler)
        self.script, self.delay, self.lock, self.asked, self.answered, self.seen = script, delay, threading.Lock(), [], [], []
        threading.Thread(target=self.serve_forever, args=(.02,), daemon=True).start()
    @property
    def url(self): return f'http://127.0.0.1:{self.server_port}/v1'
    def __enter__(self): return self
    def __exit__(self, *e): self.shutdown(); self.server_close()

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self): self.send(200, {}, json.dumps(dict(object='list', data=[dict(id='qwen', object='model', created=0, owned_by='us')])).encode())
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        text, s = said(body['messages'][0]['content']), self.server
        with s.lock: i = len(s.asked); s.asked.append(text); s.seen.append((self.headers.get('Authorization'), body))
        how = s.script(i, text)
        time.sleep(s.delay)
        if how == 'hang': time.sleep(3); return
        if how == 'cut': self.send(200, {'Content-Length': '5000'}, chat('{"clarity"')); self.close_connection = True; return
        if how is None:
            with s.lock: s.answered.append(text)
            how = 200, {}, chat(json.dumps(of(text)))
        self.send(*how)
    def send(self, status, headers, body):
        try:
            self.send_response(status)
            for k, v in ({'Content-Type': 'application/json', 'Content-Length': str(len(body))} | headers).items(): self.send_header(k, v)
            self.end_headers(); self.wfile.write(body)
        except OSError: pass

WORDS = '. we saw a red fox and it ran away'.split()

@pytest.fixture(scope='module')
def swept(tmp_path_factory):
    n = torch.get_num_threads(); torch.set_num_threads(1)
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token='.')); tok.pre_tokenizer = pre_tokenizers.Whitespace()
    home = tmp_path_factory.mktemp('judge')
    model = small_lm(seed=3); model.tokenizer = tok
    save(model, home / 'model')
    entries = tuple(ex.Entry(p, label, hyper=dict(eta=.3)) for p, label in (('prism', 'PRISM'), ('navira-det', 'NAVIRA-det'), ('navira-sigmoid', 'NAVIRA + sigmoid')))
    st = ex.run(ex.Sweep(entries, 'grid', str(home / 'model'), budgets=(4, 8), n=10, metrics=('entropy',)), home / 'whole')
    torch.set_num_threads(n)
    return st

@pytest.fixture
def store(swept, tmp_path):
    import shutil
    shutil.copytree(swept.folder, tmp_path / 'store')
    return ex.open_store(tmp_path / 'store')

def server(s, model='qwen', **kw): return j.Server(s.url, model, **dict(concurrency=3, retries=3, timeout=20.) | kw)
def everything(store): return j.lines(next(iter(j.rolls(store).values())))
ALL = 6 * 10

# --- the answer -----------------------------------------------------------------------------------------------------------
@given(hs.lists(hs.one_of(hs.integers(1, 10), hs.floats(1, 10)), min_size=5, max_size=5), hs.permutations(j.ASPECTS), hs.booleans())
def test_five_marks_are_read(values, order, fence):
    text = json.dumps(dict(zip(order, values)))
    assert j.marks(f'```json\n{text}\n```' if fence else f' {text}\n') == {k: float(v) for k, v in zip(order, values)}

@given(hs.one_of(hs.text(), hs.recursive(hs.one_of(hs.none(), hs.booleans(), hs.floats(), hs.text()), lambda x: hs.one_of(hs.lists(x), hs.dictionaries(hs.sampled_from([*j.ASPECTS, 'other']), x))).map(json.dumps)))
def test_no_mark_is_ever_guessed(answer):
    try: found = j.marks(answer)
    except (j.Unreadable, j.OutOfRange): return
    assert set(found) == set(j.ASPECTS) and all(1 <= v <= 10 for v in found.values()) and found == {k: float(v) for k, v in json.loads(answer).items()}

def test_the_prompt_is_the_paper_s(root):
    assert j.prompt('{text} & {') .count('Generated text:\n{text} & {\n\nReturn ONLY valid JSON in exactly this format:\n{\n') == 1
    assert hashlib.sha256(j.PROMPT.encode()).hexdigest() == '723cba87939bfb244b24b0954ab276556ce1a8f9b024ade239dc26cc2ebf4e93'      # compared with the paper's source, word for word
    assert [l for l in j.PROMPT.split('\n') if l[:1].isdigit()] == [f'{i + 1}. {a.capitalize()}' for i, a in enumerate(j.ASPECTS)]

# --- a run ----------------------------------------------------------------------------------------------------------------
def test_every_text_is_asked_for_once_and_never_again(store):
    with Scripted() as s:
        assert j.judge(store, server(s)) == dict(judged=ALL, failed=0, asked=ALL) and len(s.asked) == ALL
        assert j.judge(store, server(s)) == dict(judged=0, failed=0, asked=0) and len(s.asked) == ALL
        j.judge(store, server(s, 'another'))
        assert len(s.asked) == 2 * ALL and set(j.rolls(store)) == {'qwen', 'another'}
        body = s.seen[0][1]
    assert body['temperature'] == 0 and body['messages'] == [dict(role='user', content=j.prompt(said(body['messages'][0]['content'])))]
    texts = {(k, i): t for k in store.keys for i, t in enumerate(ex.texts(store, k))}
    for v in everything(store): assert v['marks'] == of(texts[v['key'], v['sample']]) and v['failed'] is None

def test_a_limit_takes_the_first_texts_of_each_cell_and_more_come_later(store):
    with Scripted() as s:
        assert j.judge(store, server(s), limit=2)['judged'] == 12 and {v['sample'] for v in everything(store)} == {0, 1}
        assert j.judge(store, server(s), limit=5)['judged'] == 18 and len(s.asked) == 30

def test_a_cell_that_is_sampled_anew_is_judged_anew(store):
    with Scripted() as s:
        j.judge(store, server(s), limit=1)
        path = next(iter(j.rolls(store).values()))
        path.write_bytes(path.read_bytes().replace(b'"crc": ', b'"crc": 1', 1))      # as if the first were of other tokens
        assert j.judge(store, server(s), limit=1)['judged'] == 1

FAULTS = dict(busy=(429, {'Retry-After': '0.2'}, b'{"error": {"message": "slow down"}}'), broken=(500, {}, b'oops'), hang='hang', cut='cut',
              no_json=(200, {}, b'<html>gateway</html>'), error_in_200=(200, {}, b'{"error": {"message": "overloaded", "code": 503}}'), no_choice=(200, {}, b'{"choices": []}'))

@pytest.mark.parametrize('fault', FAULTS)
def test_a_server_that_fails_for_a_while(store, fault):
    with Scripted(lambda i, text: FAULTS[fault] if i in (0, 4) else None) as s:
        assert j.judge(store, server(s, timeout=1. if fault == 'hang' else 20.), limit=2) == dict(judged=12, failed=0, asked=12)
        assert len(s.asked) == 14 or fault == 'hang' and len(s.asked) > 14      # a second is short on a busy machine
        assert max(Counter(v['sample'] for v in everything(store)).values()) == 6

@pytest.mark.parametrize('fault', ['broken', 'error_in_200'])
def test_a_server_that_is_down_stops_the_run_and_loses_nothing(store, fault):
    with Scripted(lambda i, text: FAULTS[fault] if i >= 5 else None) as s:
        with pytest.raises(ConnectionError, match="'qwen' at http"): j.judge(store, server(s, concurrency=1, retries=1))
        assert len(everything(store)) == 5
        s.script = lambda i, text: None
        assert j.judge(store, server(s))['judged'] == ALL - 5
        assert max(Counter(s.answered).values()) <= max(Counter(c for k in store.keys for c in ex.texts(store, k)).values())

def test_nobody_there(store):
    with Scripted() as s: gone = s.url
    with pytest.raises(ConnectionError, match='no answer in 2 tries'): j.judge(store, j.Server(gone, 'qwen', retries=1, timeout=1.))

def test_an_answer_that_cannot_be_read_is_asked_for_once_more(store):
    with Scripted(lambda i, text: (200, {}, chat('I think it is fine.')) if i < 1 else None) as s:
        assert j.judge(store, server(s, concurrency=1), limit=1) == dict(judged=6, failed=0, asked=7)
    with Scripted(lambda i, text: (200, {}, chat('{"clarity": 3}'))) as s:
        assert j.judge(store, server(s, 'mute'), limit=1) == dict(judged=0, failed=6, asked=12)
        assert j.judge(store, server(s, 'mute'), limit=1)['asked'] == 0 and len(s.asked) == 12      # a failure is a result
    v = j.lines(j.rolls(store)['mute'])[0]
    assert v['marks'] is None and 'five marks' in v['failed'] and v['answer'] == '{"clarity": 3}'

def test_a_mark_out_of_range_is_a_failure_at_once(store):
    with Scripted(lambda i, text: (200, {}, chat(json.dumps(FIVE | dict(style=11))))) as s:
        assert j.judge(store, server(s), limit=1) == dict(judged=0, failed=6, asked=6)
    assert all('style=11' in v['failed'] and v['marks'] is None for v in everything(store))

def test_a_text_that_is_refused_is_a_failure_but_not_if_all_are(store):
    bad = (400, {}, b'{"error": {"message": "content policy"}}')
    with Scripted(lambda i, text: bad if i == 3 else None) as s: assert j.judge(store, server(s, concurrency=1), limit=2) == dict(judged=11, failed=1, asked=12)
    with Scripted(lambda i, text: bad) as s:
        with pytest.raises(ValueError, match='content policy'): j.judge(store, server(s, 'other', concurrency=1))
        assert len(s.asked) <= 4

def test_a_wrong_model_is_named(store):
    with Scripted(lambda i, text: (404, {}, b'{"error": {"message": "no such model"}}')) as s:
        with pytest.raises(KeyError, match="did you mean 'qwen'"): j.judge(store, server(s, 'qwem'))
    assert not j.rolls(store) or not everything(store)

def test_the_key_is_sent_and_never_said(store, monkeypatch, capfd):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-1234')
    with Scripted(lambda i, text: (401, {}, b'{"error": {"message": "wrong key sk-secret-1234"}}') if i > 3 else None) as s:
        with pytest.raises(ValueError, match='refused') as e: j.judge(store, server(s, concurrency=1))
        assert s.seen[0][0] == 'Bearer sk-secret-1234'
    assert 'secret' not in str(e.value) + repr(server(s)) + ''.join(capfd.readouterr())
    assert not [p for p in store.folder.rglob('*') if p.is_file() and b'secret' in p.read_bytes()]

def test_a_key_that_the_server_repeats_in_an_answer_is_not_stored(store, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-1234')
    with Scripted(lambda i, text: (200, {}, chat('your key is sk-secret-1234, ' + 'and so on ' * 50))) as s: j.judge(store, server(s), limit=1)
    answers = [v['answer'] for v in everything(store)]
    assert answers and all('***' in a and len(a) > 500 for a in answers) and not any(b'sk-secret' in p.read_bytes() for p in store.folder.rglob('*') if p.is_file())

@pytest.mark.parametrize('text', ['</script><b>', '\u202eabc', 'a "quoted" {text}', '\x00\x07', '🦊' * 3, '\ud800'])
def test_any_text_can_be_asked_about_and_stored(store, text):
    if text == '\ud800': v = dict(marks=None, failed='x', answer=text, asked=1)      # a judge may answer half a character
    else:
        with Scripted() as s: v = j.verdict(server(s), text, time.sleep)
        assert s.asked == [text] and v['marks'] == of(text)
    with j.Roll(store, 'm') as roll: roll.write(dict(key='k', sample=0, crc=0) | v)
    try: assert j.lines(j.rolls(store)['m'])[0]['failed'] == v['failed']
    except ValueError: assert text == '\ud800'

# --- stopped --------------------------------------------------------------------------------------------------------------
def run(store, s, *args, **env):
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'COLUMNS': '200', **env}
    return subprocess.Popen([sys.executable, '-m', 'navira.cli', 'judge', str(store.folder), '--base-url', s.url, '--model', 'qwen', '--concurrency', '2', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)

def until(s, n):
    end = time.monotonic() + 90
    while len(s.answered) < n: time.sleep(.005); assert time.monotonic() < end

def test_kill_9_in_mid_run_and_go_on(store):
    with Scripted(delay=.03) as s:
        for n in (8, 25):
            p = run(store, s); until(s, n); p.send_signal(signal.SIGKILL); p.wait()
        kept = {(v['key'], v['sample']) for v in everything(store)}
        before = Counter(s.asked)
        path = next(iter(j.rolls(store).values()))
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
        assert j.judge(store, server(s))['judged'] + len(everything(store)) >= ALL and len(s.asked) == ALL

def test_two_at_once_are_refused(store):
    with Scripted(delay=.05) as s, ex.alone(store.folder):
        with pytest.raises(ex.Busy): j.judge(store, server(s))

def test_a_line_that_is_none_is_named(store):
    with Scripted() as s: j.judge(store, server(s), limit=1)
    path = next(iter(j.rolls(store).values()))
    rows = path.read_bytes().split(b'\n')
    path.write_bytes(b'\n'.join([*rows[:2], b'{"key": broken', *rows[2:]]))
    with pytest.raises(ValueError, match='line 3 is no verdict'): j.cases(store, 'qwen')

# --- tables ---------------------------------------------------------------------------------------------------------------
@pytest.fixture
def judged(store):
    with Scripted(lambda i, text: (200, {}, chat('no')) if i in (0, 1) else None) as s: j.judge(store, server(s, concurrency=1))
    return j.seen_by(read(store))

def test_table_3_is_the_mean_of_the_marks(judged):
    t = j.table3(judged)
    assert {(r[0], r[1]) for r in t.rows} == {(n, F) for n in ('PRISM', 'NAVIRA-det', 'NAVIRA + sigmoid') for F in (4, 8)}
    for r, p in zip(t.rows, judged.points):
        d = judged.of(p)
        v = d.overall.dropna()
        assert len(d) == 10 and len(v) in (9, 10) and f'{d.failed.sum()} of 10' == r[-2]
        five = d[list(j.ASPECTS)].dropna()
        assert np.allclose(five.mean(axis=1), v) and abs(float(r[2].split()[0].replace('−', '-')) - v.mean()) < .06
    assert sum(int(r[-2].split()[0]) for r in t.rows) == 1
    assert j.differences(judged).rows and j.figure_c(judged) and t.markdown() and t.latex()

def test_a_difference_is_unpaired_and_covers(judged):
    rng = np.random.default_rng(0)
    a = rng.normal(5, 1, 200)
    same, other = j.difference(a, a), j.difference(a, rng.normal(4, 1, 200))
    assert same.value == 0 and same.lo < 0 < same.hi and same.hi - same.lo > .3       # sqrt(2) wider than one mean; paired it would be nothing
    assert other.lo > .6 and other.hi < 1.4

def test_without_a_judge_nothing_is_drawn(store):
    with pytest.raises(Missing, match='no judge has seen'): j.seen_by(read(store))
    with Scripted() as s: j.judge(store, server(s), limit=3)
    with pytest.raises(Missing, match='needs 8'): j.table3(j.seen_by(read(store)))
    with Scripted() as s: j.judge(store, server(s, 'other'), limit=1)
    with pytest.raises(Missing, match='name one'): j.seen_by(read(store))

def test_the_report_has_the_judge(store, capsys):
    with Scripted() as s: j.judge(store, server(s))
    code, out, err = cli(capsys, 'report', store.folder)
    assert code == 0 and 'Table 3: marks by qwen' in out and (store.folder / 'report' / 'figure-c.png').stat().st_size > 1000, err

MISTAKES = [([], '--base-url: not given'), (['--base-url', 'localhost:80'], 'expected an address'), (['--base-url', 'http://a:b@h/v1'], 'environment'), (['--base-url', 'http://h/v1', '--concurrency', '0'], 'concurrency=0'),
            (['--base-url', 'http://h/v1', '--timeout', '0'], 'timeout=0'), (['--base-url', 'http://h/v1', '--limit', '0'], 'limit=0')]

def cli(capsys, *args):
    with pytest.raises(SystemExit) as e: main(list(map(str, args)))
    return e.value.code, *capsys.readouterr()

@pytest.mark.parametrize('args, says', MISTAKES, ids=lambda v: ' '.join(v) if isinstance(v, list) else None)
def test_mistakes_are_one_line(swept, args, says, capsys):
    code, out, err = cli(capsys, 'judge', swept.folder, *args)
    assert code == 2 and says in ' '.join(err.split()) and 'Traceback' not in err

def test_dry_run_asks_nobody(swept, capsys):
    code, out, err = cli(capsys, 'judge', swept.folder, '--dry-run', '--limit', 3)
    assert code == 0 and '18 texts to judge' in out

# --- a real server --------------------------------------------------------------------------------------------------------
def test_a_real_server_on_this_machine(store, tmp_path):
    "`transformers serve` with SmolLM2-135M-Instruct: its marks are noise, or none; every text has a verdict, and the second run asks nobody"
    pytest.importorskip('fastapi'); pytest.importorskip('uvicorn')
    with j.served(tmp_path / 'log') as (url, model):
        s = j.Server(url, model, concurrency=2, retries=1, timeout=120., max_tokens=70)
        n = j.judge(store, s, limit=1, keys=store.keys[:3])
        assert n['judged'] + n['failed'] == 3 and n['asked'] >= 3
        assert all(v['answer'] for v in everything(store)) and all((v['marks'] is None) == bool(v['failed']) for v in everything(store))
        assert j.judge(store, s, limit=1, keys=store.keys[:3])['asked'] == 0
        with pytest.raises((KeyError, ValueError, ConnectionError)): j.judge(store, j.Server(url, 'no/such-model', retries=0, timeout=60.), limit=1)
