"""The table of every policy, and of one that is not run."""
from navira.peers.survey import survey
from navira.registry import policies

def test_the_survey_has_them_all_and_gidd():
    rows = {r['policy']: r for r in survey()}
    draws = {'llada-low-confidence': 'argmax', 'dream-entropy': 'temperature 0.2, nucleus 0.95', 'prism': 'nucleus 0.9',
             'eb': 'the whole distribution'}
    assert {k: rows[k]['draws'] for k in draws} == draws
    assert set(rows) == set(policies()) | {'gidd'} and rows['gidd']['exact'].startswith('not run')
    assert all(r['coupling'] == 'nothing remasked' for r in rows.values() if r['never'] == 'what is committed')
