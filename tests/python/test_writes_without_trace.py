# SPDX-License-Identifier: Apache-2.0
"""Writes to weights of which no version tells: each is noticed, and poisons nothing meanwhile.

The promise, as docs/limits.md has it: calls read on through all weights, 128 MiB for each second
in which they come and at most 4 MiB at a call. Here calls are 32 ms apart: one reads 4 MiB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from models import frozen
from processes import ProcessRunner, tell
from recorded_models import Classifier
from torch import nn

SIZE = 2048  # a weight of 16 MiB
CALLS_OF_ONE_TURN = 5  # with the bias
PAUSE_S = 0.032
X = torch.linspace(-1, 1, SIZE).reshape(1, SIZE)

Write = Callable[[torch.Tensor], Any]


def fill_rows(first: int, count: int) -> Write:
    return lambda weight: weight.data[first : first + count].add_(1)


def scatter(share: float) -> Write:
    def write(weight: torch.Tensor) -> None:
        places = torch.randperm(weight.numel())[: max(1, int(weight.numel() * share))]
        weight.data.view(-1)[places] += 1

    return write


WRITES: dict[str, Write] = {
    "one element": lambda weight: weight.data.view(-1)[1_234_567].add_(1),
    "the last element but one": lambda weight: weight.data.view(-1)[-2].add_(1),
    "one element through numpy": lambda weight: weight.detach().numpy().__setitem__((7, 9), 3.0),
    "one row": fill_rows(700, 1),
    "a tenth in one piece": fill_rows(300, SIZE // 10),
    "a fifth in one piece": fill_rows(3, SIZE // 5),
    "half in one piece": fill_rows(SIZE // 2, SIZE // 2),
    "all": fill_rows(0, SIZE),
    "ten elements here and there": scatter(10 / SIZE**2),
    "a tenth here and there": scatter(0.1),
}
FORMS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda module: module,
    "scripted": torch.jit.script,
}


def calls_until_noticed(run: Callable[[], torch.Tensor], fresh: torch.Tensor) -> int:
    for call in range(1, 20 * CALLS_OF_ONE_TURN):
        time.sleep(PAUSE_S)
        if torch.equal(run(), fresh):
            return call
    return -1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("write", WRITES)
def test_any_write_is_noticed_within_one_turn(write: str, form: str) -> None:
    module = FORMS[form](frozen(nn.Linear(SIZE, SIZE)))
    with torch.no_grad():
        stale = modcache.lookup_or_run(module, X, "k")
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), stale)
        WRITES[write](module.weight)
        fresh = module(X)
        assert not torch.equal(fresh, stale)
        calls = calls_until_noticed(lambda: modcache.lookup_or_run(module, X, "k"), fresh)
    assert 1 <= calls <= CALLS_OF_ONE_TURN


@pytest.mark.parametrize("form", FORMS)
def test_a_versioned_write_to_what_the_data_of_a_weight_shares(form: str) -> None:
    module = frozen(nn.Linear(SIZE, SIZE))
    flat = torch.zeros(SIZE * SIZE)
    module.weight.data = flat.view(SIZE, SIZE)
    module = FORMS[form](module)
    with torch.no_grad():
        modcache.lookup_or_run(module, X, "k")
        flat[SIZE * 10 + 5] = 100.0
        fresh = module(X)
        calls = calls_until_noticed(lambda: modcache.lookup_or_run(module, X, "k"), fresh)
    assert 1 <= calls <= CALLS_OF_ONE_TURN


def test_a_weight_with_gaps_and_a_transposed_one() -> None:
    class Gaps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gaps = torch.zeros(SIZE // 4, 64)[:, ::3]
            self.transposed = torch.zeros(64, SIZE // 4).t()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.gaps.sum() + self.transposed.sum()

    for name in ("gaps", "transposed"):
        module = Gaps()
        modcache.lookup_or_run(module, X, "k")
        getattr(module, name).data[SIZE // 8, 11] = 1.0
        fresh = module(X)
        calls = calls_until_noticed(lambda m=module: modcache.lookup_or_run(m, X, "k"), fresh)
        assert 1 <= calls <= 2, name


def test_of_an_exported_program() -> None:
    model = Classifier(part=frozen(nn.Linear(SIZE, 16)))
    x, ids = X.expand(4, SIZE).contiguous(), torch.arange(4)
    with torch.no_grad():
        program = torch.export.export(model, (x, ids)).module()
        stale = program(x, ids)
        assert torch.equal(program(x, ids), stale)
        program.get_parameter("encoder.weight").data.view(-1)[12_345] += 1
        with modcache.mode("off"):
            fresh = program(x, ids)
        assert not torch.equal(fresh, stale)
        calls = calls_until_noticed(lambda: program(x, ids), fresh)
    assert 1 <= calls <= 2


def test_of_a_lowered_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(SIZE, 16)

        def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
            return torch.ops.cache.lookup_or_run(self.encoder, x, key)

    model = torch.jit.script(frozen(Model()))
    torch.ops.cache.lower(model._c)
    with torch.no_grad():
        model(X, "k")
        model.encoder.weight.data.view(-1)[12_345] += 1
        fresh = model.encoder(X)
        calls = calls_until_noticed(lambda: model(X, "k"), fresh)
    assert 1 <= calls <= 2


# --- Poison: a miss before the write was noticed ------------------------------------------------

# Of one element, in the middle of a chunk that no sample is taken of.
PLACE = 1_234_567
FORM_OF_RUN = pytest.mark.parametrize("size", [64, SIZE], ids=["checked at once", "checked later"])


def weights_of(size: int) -> nn.Module:
    module = nn.Linear(size, size)
    with torch.no_grad():
        module.weight.fill_(0.25)
        module.bias.fill_(0.0)
    return frozen(module)


def spoil(module: Any, amount: float = 100.0) -> None:
    weight = module.weight.data.view(-1)
    weight[PLACE % weight.numel()] += amount


def miss_with_spoiled_weights(size: int, form: str, ending: str) -> dict[str, int]:
    module = FORMS[form](weights_of(size))
    x = torch.ones(1, size)
    with torch.no_grad():
        for key in range(30):  # so that checks are due only now and then
            modcache.lookup_or_run(module, x, f"clean {key}")
        spoil(module)
        for key in range(5):
            modcache.lookup_or_run(module, x, f"spoiled {key}")
    if ending == "killed at once":
        tell({})
        os.kill(os.getpid(), 9)
    if ending == "killed later":
        time.sleep(0.5)
        tell({})
        os.kill(os.getpid(), 9)
    if ending == "flushed":
        modcache.flush()
    return dict(modcache.stats())


def outputs_of_a_clean_process(size: int, form: str) -> dict[str, int]:
    module = FORMS[form](weights_of(size))
    x = torch.ones(1, size)
    wrong = 0
    with torch.no_grad():
        right = module(x)
        for key in range(5):
            wrong += not torch.equal(modcache.lookup_or_run(module, x, f"spoiled {key}"), right)
        for key in range(30):
            wrong += not torch.equal(modcache.lookup_or_run(module, x, f"clean {key}"), right)
    return {"wrong": wrong, "hits": modcache.stats()["hits_disk"]}


@FORM_OF_RUN
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ending", ["killed at once", "killed later", "flushed", "ended"])
def test_no_other_process_gets_what_written_weights_gave(
    processes: ProcessRunner, size: int, form: str, ending: str
) -> None:
    child = processes.start(miss_with_spoiled_weights, size, form, ending)
    child.receive()
    child.process.join(60)
    found = processes.run(outputs_of_a_clean_process, size, form).value
    assert found["wrong"] == 0


@FORM_OF_RUN
@pytest.mark.parametrize("form", FORMS)
def test_nor_this_one_once_the_weights_are_as_they_were(size: int, form: str) -> None:
    module = FORMS[form](weights_of(size))
    x = torch.ones(1, size)
    with torch.no_grad():
        right = module(x)
        modcache.lookup_or_run(module, x, "clean")
        spoil(module)
        modcache.lookup_or_run(module, x, "spoiled")
        spoiled = module(x)
        run = calls_until_noticed(lambda: modcache.lookup_or_run(module, x, "spoiled too"), spoiled)
        assert run >= 1
        modcache.flush()
        spoil(module, -100.0)
        assert torch.equal(module(x), right)
        modcache.refresh_fingerprint(module)
        assert torch.equal(modcache.lookup_or_run(module, x, "spoiled"), right)


def clean_misses(size: int, form: str) -> int:
    module = FORMS[form](weights_of(size))
    with torch.no_grad():
        for key in range(40):
            modcache.lookup_or_run(module, torch.ones(1, size), f"clean {key}")
    return int(modcache.stats()["stored"])


@FORM_OF_RUN
@pytest.mark.parametrize("form", FORMS)
def test_what_clean_weights_gave_is_kept(processes: ProcessRunner, size: int, form: str) -> None:
    assert processes.run(clean_misses, size, form).value == 40
    found = processes.run(outputs_of_a_clean_process, size, form).value
    assert found == {"wrong": 0, "hits": 30}


def misses_of_a_module_that_dies(size: int) -> None:
    with torch.no_grad():
        for key in range(40):
            modcache.lookup_or_run(weights_of(size), torch.ones(1, size), f"clean {key % 30}")


def test_also_where_the_module_is_gone_before_the_check(processes: ProcessRunner) -> None:
    processes.run(misses_of_a_module_that_dies, SIZE)
    found = processes.run(outputs_of_a_clean_process, SIZE, "eager").value
    assert found == {"wrong": 0, "hits": 30}


def misses_then_waits(size: int) -> None:
    module = weights_of(size)
    with torch.no_grad():
        for key in range(30):
            modcache.lookup_or_run(module, torch.ones(1, size), f"clean {key}")
    tell("stored")
    time.sleep(600)


def test_results_that_wait_for_a_check_survive_a_kill_after_it(processes: ProcessRunner) -> None:
    child = processes.start(misses_then_waits, SIZE)
    assert child.receive() == "stored"
    deadline = time.monotonic() + 30
    while modcache.stats()["entries_disk"] < 30:  # another process sees what is committed
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.kill()
    found = processes.run(outputs_of_a_clean_process, SIZE, "eager").value
    assert found == {"wrong": 0, "hits": 30}


def test_memory_that_is_replaced_while_results_wait_ends_no_process() -> None:
    module = weights_of(SIZE)
    x = torch.ones(1, SIZE)
    with torch.no_grad():
        for key in range(20):
            modcache.lookup_or_run(module, x, f"a {key}")
        module.share_memory()  # frees what the weights lay in
        for key in range(20):
            modcache.lookup_or_run(module, x, f"b {key}")
        module.weight.untyped_storage().resize_(0)
    modcache.flush()


def test_without_a_directory_nothing_is_checked_at_each_miss() -> None:
    modcache.configure(disk=0)
    module = weights_of(SIZE)
    x = torch.ones(1, SIZE)
    with torch.no_grad():
        right = module(x)
        for key in range(20):
            modcache.lookup_or_run(module, x, f"{key}")
        for key in range(20):
            assert torch.equal(modcache.lookup_or_run(module, x, f"{key}"), right)
    assert modcache.stats()["hits_memory"] == 20


def test_under_a_name_the_caller_answers_for_the_weights() -> None:
    module = weights_of(64)
    x = torch.ones(1, 64)
    with torch.no_grad():
        stale = modcache.lookup_or_run(module, x, "k", scope="mine@1")
        spoil(module)
        for _ in range(3):
            time.sleep(PAUSE_S)
            assert torch.equal(modcache.lookup_or_run(module, x, "k", scope="mine@1"), stale)
