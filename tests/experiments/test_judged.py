"""A judge's marks: every text is asked about once, and what was answered is kept."""
import json, re, shutil

import numpy as np
import pytest

from navira.evaluation.judge import ASPECTS
from navira.experiments.judged import climb, ENOUGH, rungs, table3
from navira.experiments.measure import evaluate
from navira.experiments.results import frame
from navira.experiments.store import open_store
from helpers.cli import said
from helpers.experiments import home, one_thread_each  # noqa: F401
from helpers.metrics import chat, fails, ref, serve  # noqa: F401

FIVE = chat(json.dumps(dict.fromkeys(ASPECTS, 4.)))
def answers(status, **body): return lambda h: h.send(status, body)

@pytest.fixture
def store(home, tmp_path):  # noqa: F811
    "Eight cells of ten texts"
    shutil.copytree(home.store.folder, tmp_path/'store')
    return open_store(tmp_path/'store')

@pytest.fixture
def judged(store, serve):  # noqa: F811
    "Judge texts by answers; how many requests it took"
    def judged(script, limit=None):
        web, server = serve(script, retries=0, concurrency=1)
        evaluate(store, ['marks'], server, limit)
        return len(web.requests)
    return judged

def marks(st): return frame(st, 'the-model')

def test_every_text_is_asked_about_once_and_table_3_is_the_mean(store, judged):
    rng = np.random.default_rng(0)
    script = [chat(json.dumps(dict(zip(ASPECTS, rng.uniform(1, 10, 5))))) for _ in range(80)]
    assert (judged(script, limit=2), judged(script), judged(script)) == (16, 64, 0)
    df, table = marks(store), table3(marks(store))
    assert set(table.rows.failed) == {'0 of 10'} and 'the-model' in table.title
    means = df[[*ASPECTS]].mean(axis=1).groupby(df.point).mean()
    shown = [float(text.split()[0]) for text in table.rows.overall]
    np.testing.assert_allclose(sorted(shown), sorted(means), atol=.06)

def test_a_server_that_stops_loses_at_most_a_part(store, judged):
    with pytest.raises(ConnectionError): judged([FIVE] * 15 + [fails(500)])
    assert marks(store).clarity.notna().sum() == 10 and judged([FIVE] * 70) == 70

@pytest.mark.parametrize('odd', [
    [chat('{"clarity": 3}')] * 2, [chat('half a character: \ud800')] * 2,
    [answers(400, error=dict(message='no', code='content_filter', param='prompt'))]])
def test_a_text_without_marks_is_a_failure_and_asked_about_again(store, judged, odd):
    judged(odd + [FIVE] * 15, limit=2)
    assert sorted(table3(marks(store)).rows.failed) == ['0 of 2'] * 7 + ['1 of 2']
    assert judged([FIVE], limit=2) == 1 and marks(store).clarity.notna().sum() == 16

def test_a_server_that_refuses_every_text_is_no_judge(store, judged):
    "What it says, such as a parameter that it lacks, says nothing of a text"
    with pytest.raises(ValueError, match='refuses each of 10 texts'):
        judged([answers(422, detail=[dict(loc=['body', 'max_tokens'])])] * 10)
    assert store.read('metrics') is None
    with pytest.raises(LookupError, match='navira judge'): table3(frame(store))

def test_a_key_in_an_answer_is_not_stored(store, judged):
    judged([chat('your key is sk-secret-123')] * 16, limit=1)
    assert store.read('metrics').to_pandas().answer.str.contains('***', regex=False).all()
    assert not any(b'sk-secret' in p.read_bytes() for p in store.folder.rglob('*') if p.is_file())

# --- the ladder ---

TEXTS = [' '.join(f'{"abcdefghijklmnopqrstuvwxyz"[i]}{k}' for k in range(40)) for i in range(26)]

def prefers_order(h):
    "Likes words in ascending order, in marks and in answers."
    text = h.server.requests[-1]['messages'][-1]['content']
    found = [int(v) for v in re.findall(r'\b[a-z](\d+)\b', text)]
    share = len({a for a, b in zip(found, found[1:]) if b == a + 1}) / 40
    mark = json.dumps(dict.fromkeys(ASPECTS, 1 + 9 * share))
    top = [dict(token='person', logprob=np.log(share + .001)),
           dict(token='machine', logprob=np.log(.999 - share))]
    h.send(200, dict(choices=[dict(message=dict(content=mark),
                                   logprobs=dict(content=[dict(top_logprobs=top)]))]))

@pytest.mark.parametrize('judge, share', [(prefers_order, 100), (chat('person'), 50)])
def test_a_ladder_shows_which_judge_can_be_believed(
        serve, tmp_path, monkeypatch, capsys, judge, share):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    web, server = serve([judge] * 999, concurrency=1)
    df = climb(server, TEXTS)
    before = len(web.requests)
    assert climb(server, TEXTS).equals(df) and len(web.requests) == before
    (tmp_path/'texts.jsonl').write_text('\n'.join(json.dumps(dict(text=t)) for t in TEXTS))
    code, printed = said(capsys, 'judge', '--ladder', tmp_path/'texts.jsonl', '--base-url',
                         server.base_url, '--model', server.model)
    assert not code and len(web.requests) == before
    assert re.search(rf'shuffled\s+95\s+{share}', printed.out), printed
    rows = rungs(df, 'someone').rows.set_index('rung')
    assert {*ENOUGH} <= {*rows.index} and before == (1 if share == 100 else 2) * 70 + 70
    for rung in ENOUGH:
        assert float(rows['by answers'][rung].split()[0]) == share
        if share == 100: assert float(rows['by marks'][rung].split()[0]) == share
        else: assert rows['no marks'][rung] == 10 and rows['by marks'][rung] == '–'
