"""Models behind an address: a server that misbehaves by script, and answers without numbers or
marks."""
import gzip, json, math, time, traceback, tracemalloc

import numpy as np
import pytest

from navira.evaluation.judge import (
    ASPECTS, judge_text, LARGEST, LONGEST, probabilities, PROMPT, read_marks)
from navira.evaluation.perplexity import perplexity
from helpers.metrics import cases, chat, EOS, fails, folder, ref, serve, texts  # noqa: F401

GOOD = json.dumps(dict.fromkeys(ASPECTS, 3))

# --- perplexity ---

def test_the_key_comes_from_the_environment(serve, monkeypatch):
    for variable, value, sent in ('OPENAI_API_KEY', '', 'EMPTY'), ('OTHER', 'k2', 'k2'):
        monkeypatch.setenv(variable, value)
        s, end = serve(key=variable)
        perplexity(['w1 w2'], end)
        assert s.keys == [f'Bearer {sent}']

def breaks_off(h):
    h.send_response(200)
    h.send_header('Content-Type', 'application/json')
    h.send_header('Content-Length', '1000')
    h.end_headers()
    h.wfile.write(b'{"choi')

@pytest.mark.parametrize('fault', [fails(429), breaks_off])
def test_what_may_be_repeated_is_repeated(serve, ref, fault):
    s, end = serve([fault, None, fault], concurrency=1)
    np.testing.assert_allclose(perplexity(texts(3), end).nll, perplexity(texts(3), ref).nll,
                               rtol=1e-4)
    assert len(s.requests) == 5

def test_a_server_that_stays_down(serve):
    s, end = serve([fails(500)] * 50, concurrency=1, timeout=.5)
    with pytest.raises(ConnectionError,
                       match="'the-model' at http://127.0.0.1.*no answer in 3 tries"):
        perplexity(texts(20), end)
    assert len(s.requests) < 30     # of 60: what had not begun was dropped


@pytest.mark.parametrize('script', [
    [fails(401)], [fails(500)] * 9,
    [lambda h: h.send(200, dict(key=h.headers['Authorization']))] * 9,
    [lambda h: h.send(200, b'sk-secret-123')] * 9,
    [lambda h: h.send(404, dict(error=dict(message='sk-secret-123')))]])
def test_no_error_has_the_key_in_it_or_chained_to_it(serve, script):
    s, end = serve(script, retries=0)
    with pytest.raises((KeyError, ValueError, ConnectionError)) as e: perplexity(['w1 w2'], end)
    assert 'sk-secret' not in ''.join(traceback.format_exception(e.value)) + repr(end)


def shorter(h):
    body = h.server.answer(h.asked)
    body['choices'][0]['prompt_logprobs'].pop()
    h.send(200, body)

@pytest.mark.parametrize('answer', [lambda h: h.send(200, dict(choices=[7])), shorter])
def test_answers_without_log_probabilities(serve, answer):
    s, end = serve([answer], retries=0)
    with pytest.raises(ValueError, match="no log-probabilities of the prompt"):
        perplexity(['w1 w2 w3'], end)


def endless(h):
    h.wfile.write(b'HTTP/1.1 200 OK\r\n\r\n')
    while True: h.wfile.write(b'7' * 2**20)

PACKED = gzip.compress(bytes(3 * 10**7))

def packed(h): h.send(200, PACKED, Content_Encoding='gzip')

def dripping(start):
    def drip(h):
        h.wfile.write(start)
        while True:
            h.wfile.write(b'x')
            h.wfile.flush()
            time.sleep(.05)
    return drip

@pytest.mark.parametrize('fault, what', [
    (endless, 'no JSON|is none|is no'), (packed, 'no JSON'),
    (dripping(b'HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n'), 'no answer in 2 s'),
    (dripping(b'HTTP/1.1 200 OK\r\nX: '), 'no answer in 2 s')])
def test_an_answer_is_bounded_in_bytes_and_time(serve, fault, what):
    s, end = serve([fault] * 9, retries=0, timeout=2)
    start = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises((ConnectionError, ValueError), match=what): judge_text(end, 'An apple.')
        spent = tracemalloc.get_traced_memory()[1]
    finally: tracemalloc.stop()
    assert time.monotonic() - start < 6 and spent < 6 * LARGEST

# --- marks ---

LONG = 'x' * (LONGEST - 5) + 'sk-secret-123'

@pytest.mark.parametrize('script, asked, failed', [
    ([chat(None), chat(GOOD)], 2, None),
    ([chat(GOOD.replace('3', 'NaN', 1))] * 2, 2, 'a mark is between 1 and 10'),
    ([fails(400)], 1, 'refused'), ([chat(LONG)] * 2, 2, 'characters')])
def test_a_verdict(serve, script, asked, failed):
    s, end = serve(script)
    v = judge_text(end, 'An apple.')
    assert v['asked'] == asked
    assert failed in v['failed'] if failed else v['marks'] == read_marks(GOOD)
    assert 'sk-secret' not in str(v) and len(v['answer'] or '') <= LONGEST
    prompt = PROMPT.replace('{text}', 'An apple.')
    assert s.requests[0]['messages'] == [dict(role='user', content=prompt)]

@pytest.mark.parametrize('fault, error, what', [
    (fails(401), ValueError, 'the server refused'),
    (fails(500), ConnectionError, 'no answer in 2 tries'),
    (lambda h: h.send(200, dict(error='busy')), ConnectionError, 'without a message'),
    (lambda h: h.send(200, b'<html>busy</html>'), ConnectionError, 'that is no JSON.*busy'),
    (lambda h: h.send(200, b'[' * 200_000), ConnectionError, 'that is no JSON'),
    (lambda h: h.send(400, dict(error=dict(message='no', param='max_tokens'))), ValueError, 'no'),
    (lambda h: h.send(400, dict(error=dict(message='no', code='unsupported_value'))), ValueError,
     'no'),
    (lambda h: h.send(400, b"Unsupported parameter: 'max_tokens'"), ValueError, 'Unsupported')])
def test_a_judge_that_cannot_judge(serve, fault, error, what):
    s, end = serve([fault] * 9, retries=1)
    with pytest.raises(error, match=f"'the-model' at http.*{what}"):
        judge_text(end, 'A text.')

# --- probabilities of answers ---

def likely(**tokens):
    "An answer with these first tokens, and how probable each is."
    top = [dict(token=t, logprob=math.log(p)) for t, p in tokens.items()]
    message = dict(role='assistant', content=max(tokens, key=tokens.get))
    return lambda h: h.send(200, dict(choices=[dict(
        message=message, logprobs=dict(content=[dict(top_logprobs=top)]))]))

no_logprobs = lambda h: h.send(422, dict(detail='Unexpected keys: logprobs'))  # noqa: E731

@pytest.mark.parametrize('script, person', [
    ([likely(**{'person': .5, ' Pers': .2, 'mach': .2, 'the': .1})], .7),
    ([likely(machine=.9)], 0.), ([likely(The=.6, I=.4)], math.nan),
    ([no_logprobs, chat('Person.')], 1.), ([no_logprobs, chat(' machine')], 0.),
    ([chat('person')], 1.), ([chat('I cannot say.')], math.nan), ([chat(None)], math.nan)])
def test_how_likely_an_answer_is(serve, script, person):
    s, end = serve(script)
    question = [dict(role='user', content='Who?')]
    np.testing.assert_allclose(probabilities(end, question, ['person', 'machine'])['person'],
                               person)
    assert s.requests[0]['logprobs'] and all(r['messages'] == question for r in s.requests)
    assert not s.script

@pytest.mark.parametrize('logprobs', [
    [3], dict(content=[]), dict(content=[dict(top_logprobs=[dict(token='person')])]),
    *(dict(content=[dict(top_logprobs=[dict(token='person', logprob=p)])])
      for p in (1e9, 2, 'high', math.nan))])
def test_answers_without_probabilities(serve, logprobs):
    answer = dict(choices=[dict(message=dict(content='x'), logprobs=logprobs)])
    s, end = serve([lambda h: h.send(200, answer)] * 3)
    with pytest.raises(ValueError, match="'the-model' at http.*expected `top_logprobs`"):
        probabilities(end, [dict(role='user', content='Who?')], ['person', 'machine'])
