"""Batches side by side, in threads."""
import threading, time

import pytest
import torch

from navira.base.parallel import parallel_map
from navira.sampling import sample
from toys import random_joint

def test_side_by_side_is_a_map():
    "In order, every item once, in the caller's modes; an error arrives; the threads are given back"
    n = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16):
                got = list(
                    parallel_map(
                        lambda i: (
                            i,
                            torch.is_inference_mode_enabled(),
                            torch.is_autocast_enabled('cpu'),
                            torch.get_num_threads(),
                        ),
                        range(7),
                    )
                )
            assert [g[0] for g in got] == list(range(7)) and all(a and b and k == 1 for _, a, b, k in got)
            assert not any(
                parallel_map(lambda i: torch.is_inference_mode_enabled() or torch.is_autocast_enabled('cpu'), range(4))
            )
            assert list(parallel_map(abs, [])) == [] and torch.get_num_threads() == threads
            with pytest.raises(ZeroDivisionError): list(parallel_map(lambda i: 1 / i, [2, 0, 1]))
            halted = []
            # given up half-way
            next(it := parallel_map(abs, [1, 2, 3], halt=lambda: halted.append(1))); it.close() if threads > 1 else None
            assert halted == [1] * (threads > 1)
            # what a thread that starts now would get
            fresh = []
            (t := threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))).start(); t.join()
            assert fresh == [threads]
            with torch.no_grad(): assert not any(parallel_map(lambda i: torch.is_grad_enabled(), range(3)))
            inside, top = set(), []
            def busy(i): inside.add(i); top.append(len(inside)); time.sleep(.01); inside.discard(i)
            list(parallel_map(busy, range(8), most=2)); assert max(top) <= 2
    finally: torch.set_num_threads(n)

def test_an_error_stops_the_other_batches():
    seen, n = [], torch.get_num_threads()
    def progress(k):
        seen.append(k)
        if len(seen) == 3: raise RuntimeError('enough')
    try:
        torch.set_num_threads(2)
        with pytest.raises(RuntimeError, match='enough'):
            sample(random_joint(4, 3), 'backbone', 400, 4, batch_size=4, progress=progress)
    finally: torch.set_num_threads(n)
    assert len(seen) < 600                                                                  # of 800
