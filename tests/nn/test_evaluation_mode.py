"""evaluation_mode in several threads."""

import threading

import torch
from torch import nn
from waiting import HANG

from uwaga.nn.evaluation_mode import evaluation_mode


def test_the_first_thread_that_is_done_leaves_the_other_in_evaluation_mode() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval())
    entered, left = threading.Event(), threading.Event()
    seen: list[list[bool]] = []

    def second() -> None:
        with evaluation_mode(module):
            entered.set()
            assert left.wait(HANG)
            seen.append([part.training for part in module])
            seen.append([torch.is_grad_enabled()])

    thread = threading.Thread(target=second)
    with evaluation_mode(module):
        thread.start()
        assert entered.wait(HANG)
    assert torch.is_grad_enabled()
    left.set()
    thread.join()
    assert seen == [[False, False], [False]]
    assert [module.training, *(part.training for part in module)] == [True, True, False]
