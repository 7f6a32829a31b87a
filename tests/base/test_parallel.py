"""Batches side by side, in threads."""
import threading

import pytest
import torch

from navira.base.parallel import parallel_map
from navira.sampling import sample
from navira.sampler.joint import random_joint

@pytest.fixture(params=[1, 2, 3])
def threads(request):
    n = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(n)

def modes(i):
    return (i, torch.is_inference_mode_enabled(), torch.is_grad_enabled(),
            torch.is_autocast_enabled('cpu'), torch.get_num_threads())

def test_it_is_a_map_in_the_modes_of_the_caller(threads):
    with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16):
        assert list(parallel_map(modes, range(7))) == [(i, True, False, True, 1) for i in range(7)]
    assert list(parallel_map(modes, range(3))) == [(i, False, True, False, 1) for i in range(3)]
    assert list(parallel_map(abs, [])) == []

def test_an_error_arrives_and_threads_are_given_back(threads):
    with pytest.raises(ZeroDivisionError): list(parallel_map(lambda i: 1 / i, [2, 0, 1]))
    halted = []
    results = parallel_map(abs, [1, 2, 3], halt=lambda: halted.append(1))
    next(results)
    if threads > 1:       # given up half-way
        results.close()
        assert halted == [1]
    fresh = []            # what a thread that starts now would get
    t = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    t.start()
    t.join()
    assert fresh == [threads] == [torch.get_num_threads()]


def test_an_error_stops_the_other_batches(two_threads):
    seen = []
    def progress(k):
        seen.append(k)
        if len(seen) == 3: raise RuntimeError('enough')
    with pytest.raises(RuntimeError, match='enough'):
        sample(random_joint(4, 3), 'backbone', 400, 4, batch_size=4, progress=progress)
    assert len(seen) < 600                                                                # of 800
