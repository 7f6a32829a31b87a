"""How probable are the samples under a language model that had no part in them?"""
import math, threading, time, traceback
from dataclasses import replace

import numpy as np
import pytest
import torch

from navira.evaluation.perplexity import Reference, perplexities, perplexity
from helpers.metrics import texts
from helpers.metrics_more import cases, fails, folder, ref, serve  # noqa: F401

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

def test_two_rules_for_one_scoring(ref):
    two = perplexities(cases, ref)
    assert list(two) == ['once', 'stop']
    for rule, p in two.items():
        q = perplexity(cases, ref, eos=rule)
        np.testing.assert_allclose(p.nll, q.nll, rtol=1e-5)
        assert p.weight.tolist() == q.weight.tolist() and p.eos == rule

@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
@pytest.mark.parametrize('head', ['cpu', 0])
def test_body_and_head_on_different_devices(folder, ref, head):
    from transformers import AutoModelForCausalLM
    where = {'model': 0 if head == 'cpu' else 'cpu', 'lm_head': head}
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map=where).eval()
    r = Reference(m, ref.tokenizer)
    assert r.splits
    np.testing.assert_allclose(perplexity(cases, r).nll, perplexity(cases, ref).nll, rtol=1e-3)

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
