"""Texts made worse by degrees."""

import numpy as np

from navira.evaluation.ladder import ladder, SHARES


def test_what_is_replaced_is_as_many_as_said_where_all_words_differ():
    text = ' '.join(f'w{i}' for i in range(100))
    made = ladder([text, text.replace('w', 'v')])
    for share in SHARES:
        same = np.array(made[f'{share:.0%} replaced'][0].split()) == np.array(text.split())
        assert 100 * share - 3 <= (~same).sum() <= 100 * share

