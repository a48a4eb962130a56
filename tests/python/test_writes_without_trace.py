# SPDX-License-Identifier: Apache-2.0
"""Writes to weights that leave no trace: the rotating re-read notices each of them.

docs/limits.md promises that calls re-read 16 MiB of weights for each second that they take, and a
hit at most 64 KiB. Here calls are 5 ms apart, so each reads 64 KiB.
"""

from __future__ import annotations

import threading
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

SIZE = 1024  # a weight of 4 MiB
CALLS_OF_ONE_TURN = 66  # with the bias
PAUSE_S = 0.005
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
    "one element": lambda weight: weight.data.view(-1)[765_432].add_(1),
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
    for call in range(1, 5 * CALLS_OF_ONE_TURN):
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
        # Memory with gaps counts eight times: 6 calls for 44 KiB. The other tensor takes 1.
        assert 1 <= calls <= 8, name


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
    assert 1 <= calls <= 3


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
    assert 1 <= calls <= 3


# --- Results that are stored before the write is noticed -----------------------------------------

PLACE = SIZE * SIZE - 5_000  # between two samples, and among the last that a turn reads
FORM = pytest.mark.parametrize("form", FORMS)


def weights_of(size: int) -> nn.Module:
    module = nn.Linear(size, size)
    with torch.no_grad():
        module.weight.fill_(0.25)
        module.bias.fill_(0.0)
    return frozen(module)


def spoil(module: Any, amount: float = 100.0) -> None:
    module.weight.data.view(-1)[PLACE] += amount


def store_with_spoiled_weights(form: str) -> None:
    module = FORMS[form](weights_of(SIZE))
    x = torch.ones(1, SIZE)
    with torch.no_grad():
        modcache.lookup_or_run(module, x, "clean")
        spoil(module)
        for key in range(5):
            modcache.lookup_or_run(module, x, f"spoiled {key}")
    modcache.flush()


def verify_with_clean_weights(form: str) -> dict[str, int]:
    module = FORMS[form](weights_of(SIZE))
    x = torch.ones(1, SIZE)
    keys = ["clean", *(f"spoiled {key}" for key in range(5))]

    def count_wrong() -> int:
        return sum(not torch.equal(modcache.lookup_or_run(module, x, k), right) for k in keys)

    with torch.no_grad():
        right = module(x)
        with modcache.mode("read"):
            found = {"read": count_wrong()}
        with modcache.mode("verify"):
            found["verified"] = count_wrong()
        found["differences"] = modcache.stats()["verify_differences"]
        with modcache.mode("refresh"):
            found["refreshed"] = count_wrong()
        found["read after it"] = count_wrong()
    return found


@FORM
def test_verify_finds_results_of_a_write_that_was_not_noticed_yet(
    processes: ProcessRunner, form: str
) -> None:
    processes.run(store_with_spoiled_weights, form)
    found = processes.run(verify_with_clean_weights, form).value
    assert found["read"] >= 1
    assert found["differences"] == found["read"]
    assert found["verified"] == found["refreshed"] == found["read after it"] == 0


@FORM
def test_after_one_turn_results_are_stored_under_the_new_identity(form: str) -> None:
    module = FORMS[form](weights_of(SIZE))
    x = torch.ones(1, SIZE)
    with torch.no_grad():
        right = modcache.lookup_or_run(module, x, "k")
        spoil(module)
        spoiled = module(x)
        assert calls_until_noticed(lambda: modcache.lookup_or_run(module, x, "k"), spoiled) >= 1
        assert torch.equal(modcache.lookup_or_run(module, x, "later"), spoiled)
        spoil(module, -100.0)
        modcache.refresh_fingerprint(module)
        assert torch.equal(modcache.lookup_or_run(module, x, "later"), right)


@FORM
def test_refresh_fingerprint_notices_a_write_at_once(form: str) -> None:
    module = FORMS[form](weights_of(SIZE))
    x = torch.ones(1, SIZE)
    with torch.no_grad():
        right = modcache.lookup_or_run(module, x, "k")
        spoil(module)
        modcache.refresh_fingerprint(module)
        spoiled = module(x)
        assert torch.equal(modcache.lookup_or_run(module, x, "k"), spoiled)
        assert torch.equal(modcache.lookup_or_run(module, x, "spoiled"), spoiled)
        spoil(module, -100.0)
        modcache.refresh_fingerprint(module)
        assert torch.equal(modcache.lookup_or_run(module, x, "k"), right)
        assert torch.equal(modcache.lookup_or_run(module, x, "spoiled"), right)


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = weights_of(SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(1000):
            x = torch.softmax(self.body(x), -1)
        return x


@FORM
def test_a_write_to_all_weights_during_a_run_is_not_stored(form: str) -> None:
    module = FORMS[form](frozen(Slow()))
    x = torch.ones(1, SIZE)
    with torch.no_grad():
        modcache.fingerprint(module)
        writer = threading.Timer(0.02, lambda: module.body.weight.data.mul_(2))
        writer.start()
        modcache.lookup_or_run(module, x, "k")
        writer.join()
    assert modcache.stats()["stored"] == 0


# --- Results of weights that are unchanged -------------------------------------------------------


def clean_misses(size: int, form: str) -> int:
    module = FORMS[form](weights_of(size))
    with torch.no_grad():
        for key in range(40):
            modcache.lookup_or_run(module, torch.ones(1, size), f"clean {key}")
    return int(modcache.stats()["stored"])


def clean_hits(size: int, form: str) -> dict[str, int]:
    module = FORMS[form](weights_of(size))
    x = torch.ones(1, size)
    with torch.no_grad():
        right = module(x)
        wrong = sum(
            not torch.equal(modcache.lookup_or_run(module, x, f"clean {key}"), right)
            for key in range(30)
        )
    return {"wrong": wrong, "hits": modcache.stats()["hits_disk"]}


@FORM
@pytest.mark.parametrize("size", [64, SIZE])
def test_what_clean_weights_gave_is_stored(processes: ProcessRunner, size: int, form: str) -> None:
    assert processes.run(clean_misses, size, form).value == 40
    assert processes.run(clean_hits, size, form).value == {"wrong": 0, "hits": 30}


def misses_of_a_module_that_dies(size: int) -> None:
    with torch.no_grad():
        for key in range(40):
            modcache.lookup_or_run(weights_of(size), torch.ones(1, size), f"clean {key % 30}")


def test_also_where_the_module_is_gone_after_its_run(processes: ProcessRunner) -> None:
    processes.run(misses_of_a_module_that_dies, SIZE)
    assert processes.run(clean_hits, SIZE, "eager").value == {"wrong": 0, "hits": 30}


def misses_then_waits(size: int) -> None:
    module = weights_of(size)
    with torch.no_grad():
        for key in range(30):
            modcache.lookup_or_run(module, torch.ones(1, size), f"clean {key}")
    tell("stored")
    time.sleep(600)


def test_results_of_large_weights_survive_a_kill(processes: ProcessRunner) -> None:
    child = processes.start(misses_then_waits, SIZE)
    assert child.receive() == "stored"
    deadline = time.monotonic() + 30
    while modcache.stats()["entries_disk"] < 30:  # another process sees what is committed
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.kill()
    assert processes.run(clean_hits, SIZE, "eager").value == {"wrong": 0, "hits": 30}


def test_weights_that_are_given_other_memory_end_no_process() -> None:
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


def test_hits_without_a_directory() -> None:
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
    module = weights_of(SIZE)
    x = torch.ones(1, SIZE)
    with torch.no_grad():
        stale = modcache.lookup_or_run(module, x, "k", scope="mine@1")
        spoil(module)
        for _ in range(3):
            time.sleep(PAUSE_S)
            assert torch.equal(modcache.lookup_or_run(module, x, "k", scope="mine@1"), stale)
