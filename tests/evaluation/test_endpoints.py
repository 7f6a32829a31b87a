"""Perplexity under a model behind an HTTP address."""
import math, threading, time, traceback
from dataclasses import replace

import numpy as np
import pytest

from navira.evaluation.endpoints import Endpoint
from navira.evaluation.mauve import features
from navira.evaluation.perplexity import encode, perplexity
from helpers.metrics import EOS, cases, fails, folder, ref, serve, texts  # noqa: F401

def test_a_server_that_stays_down(serve, ref):
    s, end = serve([fails(500)] * 50, concurrency=1)
    with pytest.raises(ConnectionError, match="'the-model' at http://127.0.0.1.*no answer in 3 tries"):
        perplexity(texts(20), end)
    assert len(s.requests) < 30     # of 60: what had not begun was dropped
    gone = Endpoint('http://127.0.0.1:9/v1', 'm', ref.tokenizer, retries=0)
    with pytest.raises(ConnectionError, match='no answer in 1 tries'): perplexity(['w1 w2'], gone)

@pytest.mark.parametrize(
    'url', ['http://h/v1?api_key=hush', 'http://h/v1#hush', 'me:hush@h/v1', 'h/v1?key=hush', 'ftp://h/v1?hush']
)
def test_an_address_with_a_secret_is_not_repeated(ref, url):
    with pytest.raises(ValueError, match='base_url holds') as e:
        Endpoint(url, 'm', ref.tokenizer)
    assert 'hush' not in str(e.value)

def test_an_answer_of_any_size_is_not_read(serve, monkeypatch):
    monkeypatch.setattr(Endpoint, 'largest', 1000)
    s, end = serve(change=lambda body: b'[' + b' ' * 2000 + b']', retries=0)
    with pytest.raises(ConnectionError, match='more than 1,000 bytes'): perplexity(['w1 w2'], end)
    s, end = serve([lambda h: h.send(200, b'x', Content_Encoding='br')], retries=0)
    with pytest.raises(ConnectionError, match="packed by 'br'"): perplexity(['w1 w2'], end)

def test_bad_endpoints(ref, folder, monkeypatch):
    for kw, what in [
        (dict(base_url='localhost:8000'), 'base_url'),
        (dict(base_url='ftp://h/v1'), 'base_url'),
        (dict(concurrency=0), 'concurrency=0'),
        (dict(retries=-1), 'retries=-1'),
        (dict(timeout=0), 'timeout=0'),
        (dict(eos='<nope>'), 'no token of m'),
    ]:
        with pytest.raises(ValueError, match=what):
            Endpoint(**{**dict(base_url='http://h/v1', model='m', tokenizer=ref.tokenizer), **kw})
    with pytest.raises(ValueError) as e: Endpoint('http://me:hush@h/v1', 'm', ref.tokenizer)
    assert 'hush' not in str(e.value)
    with pytest.raises(KeyError, match="did you mean 'echo'"): Endpoint('http://h/v1', 'm', ref.tokenizer, form='ehco')
    end = Endpoint.load('http://h/v1', 'm', folder, concurrency=2)
    assert (end.eos, end.concurrency, end.name) == (EOS, 2, 'm')
    assert encode(end, ['w1'])[0].tolist() == encode(ref, ['w1'])[0].tolist()
    assert encode(replace(end, limit=2), ['w1 w2 w3'])[0].tolist() == [3, 4]
    with pytest.raises(FileNotFoundError, match='no such folder'): Endpoint.load('http://h/v1', 'm', './none')
    with pytest.raises(ValueError, match='no hidden states'): features(end, ['w1'])
    monkeypatch.setattr('navira.evaluation.references.find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r"'openai'.*pip install \"\.\[eval\]\""): perplexity(['w1 w2'], end)

def hangs(seconds): return lambda h: time.sleep(seconds)

def slow(h): time.sleep(.05); h.send(200, h.server.answer(h.asked))

def breaks_off(h):
    h.send_response(200)
    h.send_header('Content-Type', 'application/json')
    h.send_header('Content-Length', '1000')
    h.end_headers()
    h.wfile.write(b'{"choi')

def shorter(body): body['choices'][0]['prompt_logprobs'].pop(); return body

def other_ids(body):
    table = body['choices'][0]['prompt_logprobs']
    table[1:] = [{str(int(k) + 100): v for k, v in e.items()} for e in table[1:]]
    return body

def without(body): del body['choices'][0]['prompt_logprobs']; return body

def value(v):
    def change(body):
        for e in body['choices'][0]['prompt_logprobs'][1:]:
            for k in e: e[k]['logprob'] = v
        return body
    return change

MALFORMED = {'html': lambda b: b'<html>sorry</html>', 'empty': lambda b: b'', 'bytes': lambda b: b'\xff\xfe',
             'list': lambda b: [1], 'no choice': lambda b: dict(choices=[]), 'number': lambda b: dict(choices=[7]),
             'shorter': shorter, 'other ids': other_ids, 'without': without}

@pytest.mark.parametrize('form', ['prompt_logprobs', 'echo'])
def test_endpoint_gives_the_numbers_of_the_model(serve, ref, form):
    s, end = serve(form=form)
    for rule in 'once', 'stop':
        here, there = perplexity(cases, ref, eos=rule), perplexity(cases, end, eos=rule)
        np.testing.assert_allclose(there.nll, here.nll, rtol=1e-4)
        assert there.weight.tolist() == here.weight.tolist() and there.reference == 'the-model'
    q = s.requests[0]
    assert q['model'] == 'the-model' and all(isinstance(i, int) for i in q['prompt']) and q['max_tokens'] == 1
    assert q.get('prompt_logprobs') == 1 if form == 'prompt_logprobs' else q['echo'] and q['logprobs'] == 1
    assert set(s.keys) == {'Bearer sk-secret-123'}
    assert len(s.requests) == 2 * 9  # texts without a scored token are not sent

def test_without_a_key(serve, monkeypatch):
    monkeypatch.delenv('OPENAI_API_KEY')
    s, end = serve()
    perplexity(['w1 w2'], end)
    assert s.keys == ['Bearer EMPTY']
    monkeypatch.setenv('OTHER', 'k2')
    s, end = serve(key='OTHER')
    perplexity(['w1 w2'], end)
    assert s.keys == ['Bearer k2']

@pytest.mark.parametrize(
    'fault',
    [fails(429), fails(500), fails(503), breaks_off, lambda h: h.connection.close()],
    ids=['429', '500', '503', 'broken off', 'closed'],
)
def test_what_may_be_repeated_is_repeated(serve, ref, fault):
    s, end = serve([fault, None, fault], concurrency=1)
    ts = texts(3)
    np.testing.assert_allclose(perplexity(ts, end).nll, perplexity(ts, ref).nll, rtol=1e-4)
    assert len(s.requests) == 5

def test_a_hanging_server(serve, ref):
    s, end = serve([hangs(3)], timeout=.7)
    np.testing.assert_allclose(perplexity(['w1 w2 w3'], end).nll, perplexity(['w1 w2 w3'], ref).nll, rtol=1e-4)
    s, end = serve([hangs(3)] * 9, timeout=.2, retries=1)
    with pytest.raises(ConnectionError, match='no answer in 2 tries'): perplexity(['w1 w2 w3'], end)

@pytest.mark.parametrize('status', [400, 401, 403, 422])
def test_a_refusal_is_not_repeated_and_never_shows_the_key(serve, status):
    s, end = serve([fails(status)] * 9, concurrency=1)
    with pytest.raises(ValueError, match=f'the server refused.*scripted {status}') as e: perplexity(['w1 w2'], end)
    assert len(s.requests) == 1
    whole = ''.join(traceback.format_exception(e.value)) + repr(end)
    assert 'sk-secret' not in whole and e.value.__cause__ is None and e.value.__context__ is None

def test_the_key_is_in_no_error_of_any_kind(serve):
    for script in [fails(500)] * 9, [fails(429)] * 9, [lambda h: h.send(200, dict(said=h.headers['Authorization']))]:
        s, end = serve(script, retries=1)
        with pytest.raises((ValueError, ConnectionError)) as e: perplexity(['w1 w2'], end)
        assert 'sk-secret' not in ''.join(traceback.format_exception(e.value))

def test_no_error_has_the_key_chained_to_it(serve):
    said = dict(error=dict(message='key sk-secret-123'))
    for script in (
        [fails(404)],
        [fails(500)] * 9,
        [lambda h: h.send(200, b'{"choices": ["sk-secret-123"]}')] * 9,
        [lambda h: h.send(200, b'sk-secret-123')] * 9,
        [lambda h: h.send(404, said)],
    ):
        s, end = serve(script, retries=0)
        with pytest.raises((KeyError, ValueError, ConnectionError)) as e:
            perplexity(['w1 w2'], replace(end, model='the-modle', name=''))
        assert e.value.__context__ is None and 'sk-secret' not in ''.join(traceback.format_exception(e.value))

def test_a_byte_a_moment_is_too_late(serve):
    def dribbles(h):
        h.send_response(200); h.send_header('Content-Length', '1000'); h.end_headers()
        for _ in range(300): h.wfile.write(b' '); h.wfile.flush(); time.sleep(.2)
    s, end = serve([dribbles], timeout=.7, retries=0)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match='no answer in 1 tries'): perplexity(['w1 w2'], end)
    assert time.monotonic() - start < 15
    for timeout in 1e300, math.nan, -1:
        with pytest.raises(ValueError, match='at most 86400'): replace(end, timeout=timeout)

def test_ctrl_c_drops_what_is_under_way(serve):
    "Raised where the second Ctrl-C would be: while the first text is awaited"
    held = threading.Event()
    s, end = serve([None] + [lambda h: held.wait(60)] * 9, concurrency=1)
    def pressed(done, total): raise KeyboardInterrupt
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt): perplexity(texts(9), end, progress=pressed)
    assert time.monotonic() - start < 15 and not end.under_way
    held.set()

def test_the_nearest_model_is_named(serve, ref):
    s, end = serve([fails(404)])
    with pytest.raises(KeyError, match="did you mean 'the-model'"):
        perplexity(['w1 w2'], replace(end, model='the-modle', name=''))
    s, end = serve([fails(404)])
    with pytest.raises(ValueError, match='refused.*404'):
        perplexity(['w1 w2'], end)  # it is there: something else was not found

@pytest.mark.parametrize('how', MALFORMED)
def test_malformed_answers(serve, how):
    s, end = serve(change=MALFORMED[how], retries=0)
    with pytest.raises(ValueError, match="no log-probabilities of the prompt.*expected 'prompt_logprobs'.*form='echo'"):
        perplexity(['w1 w2 w3'], end)

@pytest.mark.parametrize('v', [math.nan, None, 'x', .5, math.inf, -math.inf, True])
def test_log_probabilities_that_are_none(serve, v):
    s, end = serve(change=value(v))
    with pytest.raises(ValueError, match='expected a number of at most 0'): perplexity(['w1 w2 w3'], end)

def test_another_tokenizer_is_noticed(serve, ref):
    def shift(body):
        for e in body['choices'][0]['prompt_logprobs'][1:]: [v.update(decoded_token='z') for v in e.values()]
        return body
    s, end = serve(change=shift)
    with pytest.raises(ValueError, match="another tokenizer: token .* is 'z' there and 'w"):
        perplexity(['w1 w2 w3'], end)

def test_requests_at_once(serve):
    s, end = serve([slow] * 12, concurrency=3); seen = []
    perplexity(texts(12), end, progress=lambda done, total: seen.append((done, total)))
    assert 2 <= s.most <= 3 and len(s.requests) == 12
    assert [d for d, _ in seen] == sorted(d for d, _ in seen) and seen[-1][0] == seen[-1][1] and len(seen) == 12
