"""A conversation in the model's template."""
import pytest

import navira
from navira.sampler.filling import chat_ids
from helpers.bytes_lm import byte_lm
from helpers.sample_api import says

def golden(root, name): return navira.load(root/'tests'/'golden'/name)

@pytest.fixture(scope='module')
def model(pytestconfig): return golden(pytestconfig.rootpath, 'llada')


@pytest.mark.parametrize('name', ['bytes', 'bert', 'llada'])
def test_a_question_about_the_mask_is_a_question(root, name, monkeypatch):
    "Its text stays, and an answer begins after it."
    model, seen = byte_lm() if name == 'bytes' else golden(root, name), []
    monkeypatch.setattr(model.text_tokenizer, 'chat_template', '{{ messages[0].content }}')
    mask = model.tokenizer.id_to_token(model.mask_id)
    said = f'what is {mask} in {mask}{mask}, [MASK] or ___?'
    ids = chat_ids(model, said)
    assert model.mask_id not in ids and model.tokenizer.decode(ids) == said
    navira.chat(model, said, 'backbone', max_new_tokens=4, eos='keep', progress=seen.extend)
    assert seen[-1].ids[:len(ids)] == ids and len(seen[-1].ids) == len(ids) + 4

def test_a_template_that_never_ends_is_refused(model, monkeypatch):
    endless = '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}'
    monkeypatch.setattr(model.text_tokenizer, 'chat_template', endless)
    with says(ValueError, 'chat template', '5 seconds'): navira.chat(model, 'the house')

def test_an_answer_has_the_room_that_there_is(model):
    "A number that was given stands."
    seen = []
    navira.chat(model, 'hi', 'backbone', eos='keep', progress=seen.extend)
    assert len(seen[-1].ids) == model.length == 64
    with says(ValueError, 'max_new_tokens=128', '64'): navira.chat(model, 'hi', max_new_tokens=128)
    with says(ValueError, 'prompt', 'longer than the 64'): navira.chat(model, 'hi ' * 64)
