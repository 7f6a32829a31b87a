"""Perplexity under a model behind an HTTP address."""
import pytest

from navira.evaluation.perplexity import perplexity
from navira.evaluation.endpoints import Endpoint
from helpers.metrics import texts
from helpers.metrics_more import fails, ref, serve  # noqa: F401

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
