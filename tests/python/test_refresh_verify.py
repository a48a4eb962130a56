# SPDX-License-Identifier: Apache-2.0
"""The table of modes, for one key and per row, and what refresh and verify do beyond it."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import modcache
import pytest
import torch
from models import in_form
from processes import ProcessRunner, hear, tell
from torch import nn

MODES = ("off", "read", "on", "refresh", "verify")
FACES = ("eager", "scripted")
KEY_FORMS = ("key", "rows", "ids")
OUTPUTS = ("tensor", "structured")
ROWS = 4
KEYS = ["3", "1", "2", "7"]
X = torch.arange(16.0).reshape(ROWS, 4)

RAN: list[int] = []  # on how many rows, for each run in eager Python


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "test_refresh_verify.ran":
        RAN.append(arguments[0])


sys.addaudithook(_note)


class Times(nn.Module):
    """What it stores depends on ``factor``, and not the scope that the tests give it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.jit.is_scripting():
            sys.audit("test_refresh_verify.ran", x.shape[0])
        return x * self.factor


class TimesStructured(Times):
    def forward(self, x: torch.Tensor) -> tuple[dict[str, torch.Tensor], str]:  # type: ignore[override]
        if not torch.jit.is_scripting():
            sys.audit("test_refresh_verify.ran", x.shape[0])
        return {"x": x * self.factor, "sum": x.sum(1)}, "text"


class Face:
    """Modules of one kind, and the way to call them."""

    def __init__(self, face: str, key_form: str, output: str) -> None:
        self.face = face
        self.key: Any = {"key": "k", "rows": KEYS, "ids": torch.tensor([int(k) for k in KEYS])}[
            key_form
        ]
        self.units = 1 if key_form == "key" else ROWS  # what the counters count
        self._kind = Times if output == "tensor" else TimesStructured

    def call(self, factor: float, mode: str = "", x: torch.Tensor = X, key: Any = None) -> float:
        """Runs under a guard; what the result says the factor was."""
        module = in_form(self._kind(factor), self.face)
        key = self.key if key is None else key
        with modcache.mode(mode or "on"):
            value: Any = modcache.lookup_or_run(module, x, key, scope="s")
        if isinstance(value, tuple):
            structure, text = value
            assert text == "text"
            assert torch.equal(structure["sum"], x.sum(1))
            value = structure["x"]
        assert value.shape == x.shape
        (found,) = {float(factor) for factor in (value[x != 0] / x[x != 0]).flatten()}
        return found


@pytest.fixture(params=itertools.product(FACES, KEY_FORMS, OUTPUTS), ids="-".join)
def face(request: Any) -> Face:
    return Face(*request.param)


# mode -> entry there? -> (what is returned, the counters that move).
# 2 is what is stored, 3 what a run gives.
TABLE: dict[str, dict[bool, tuple[float, tuple[str, ...]]]] = {
    "off": {True: (3.0, ("bypassed_off",)), False: (3.0, ("bypassed_off",))},
    "read": {True: (2.0, ("hits_memory",)), False: (3.0, ("misses",))},
    "on": {True: (2.0, ("hits_memory",)), False: (3.0, ("misses", "stored"))},
    "refresh": {True: (3.0, ("misses", "stored")), False: (3.0, ("misses", "stored"))},
    "verify": {True: (3.0, ("verify_differences",)), False: (3.0, ("misses",))},
}


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "missing"])
@pytest.mark.parametrize("mode", MODES)
def test_the_table(mode: str, is_there: bool, face: Face, counted: Any) -> None:
    returned, counters = TABLE[mode][is_there]
    if is_there:
        face.call(2.0)
    counted()
    RAN.clear()
    modcache.set_mode(mode)
    assert face.call(3.0) == returned
    modcache.set_mode("on")
    assert counted() == dict.fromkeys(counters, face.units)
    if face.face == "eager":
        # Where nothing was stored before, one row runs once more (a check run).
        is_checked = not is_there and mode != "off" and face.units > 1
        assert sum(RAN) == (ROWS + is_checked if returned == 3.0 else 0)
    # What is stored now.
    is_stored = is_there or "stored" in counters
    left = 3.0 if "stored" in counters else 2.0
    assert face.call(5.0) == (left if is_stored else 5.0)


@pytest.mark.parametrize(("process", "thread"), [*itertools.product(MODES, MODES)])
@pytest.mark.parametrize("face_name", FACES)
def test_a_guard_can_only_take_away(
    process: str, thread: str, face_name: str, counted: Any
) -> None:
    face = Face(face_name, "rows", "tensor")
    face.call(2.0)
    counted()
    modcache.set_mode(process)
    with modcache.mode(thread):
        left = modcache.mode()
        returned, counters = TABLE[left][True]
        assert face.call(3.0) == returned
    assert counted() == dict.fromkeys(counters, face.units)
    assert modcache.mode() == process


def test_refresh_runs_each_distinct_key_once(counted: Any) -> None:
    face = Face("eager", "rows", "tensor")
    face.call(2.0)
    counted()
    RAN.clear()
    assert face.call(3.0, "refresh", X[[0, 1, 0, 0]], ["3", "1", "3", "3"]) == 3.0
    assert RAN == [2]
    growth = counted()
    assert (growth["misses"], growth["stored"]) == (2, 2)
    RAN.clear()
    assert face.call(4.0, "refresh") == 4.0
    assert RAN == [ROWS]


def test_refresh_replaces_an_entry_of_another_shape(face: Face, counted: Any) -> None:
    face.call(2.0, x=torch.ones(ROWS, 6))
    counted()
    assert face.call(3.0, "refresh") == 3.0
    assert "key_conflicts" not in counted()
    assert face.call(5.0) == 3.0


def test_both_reach_what_lies_on_disk(face: Face, counted: Any, reopen: Any) -> None:
    face.call(2.0)
    reopen()
    counted()
    assert face.call(2.0, "verify") == 2.0
    assert counted() == {}
    assert face.call(3.0, "verify") == 3.0
    assert counted() == {"verify_differences": face.units}
    reopen()
    assert face.call(3.0, "refresh") == 3.0
    reopen()
    counted()
    assert face.call(5.0) == 3.0
    assert counted() == {"hits_disk": face.units}


def answer_calls() -> None:
    """Looks up what it is told to, and tells the factors that it found."""
    while (order := hear()) != "stop":
        tell([Face(*kind).call(9.0) for kind in order])


def test_refresh_replaces_for_other_processes_and_verify_does_not(processes: ProcessRunner) -> None:
    kinds = [("scripted", "rows", "tensor"), ("eager", "key", "structured")]
    other = processes.start(answer_calls)

    def seen() -> Any:
        modcache.flush()
        other.send(kinds)
        return other.receive()

    for kind in kinds:
        Face(*kind).call(2.0)
    assert seen() == [2.0, 2.0]
    for kind in kinds:
        assert Face(*kind).call(3.0, "verify") == 3.0
    assert seen() == [2.0, 2.0]
    for kind in kinds:
        assert Face(*kind).call(3.0, "refresh") == 3.0
    assert seen() == [3.0, 3.0], "also what it holds in memory"
    other.send("stop")
    other.wait()


# --- verify -----------------------------------------------------------------------------


class Given(nn.Module):
    """Returns the rows of a tensor of its own that rows of ``X`` stand for."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value[(x.reshape(len(x), -1)[:, 0] / 4).long().clamp(0, 3)]


@pytest.mark.parametrize("face_name", FACES)
@pytest.mark.parametrize("key_form", KEY_FORMS)
class TestVerify:
    def call(self, face_name: str, key_form: str, value: torch.Tensor) -> torch.Tensor:
        key = Face(face_name, key_form, "tensor").key
        module = in_form(Given(value), face_name)
        return modcache.lookup_or_run(module, X, key, scope="s")  # type: ignore[no-any-return]

    def differences(
        self, names: tuple[str, str], stored: torch.Tensor, fresh: torch.Tensor, counted: Any
    ) -> int:
        self.call(*names, stored)
        counted()
        with modcache.mode("verify"):
            result = self.call(*names, fresh)
        assert result.dtype == fresh.dtype
        assert torch.equal(torch.nan_to_num(result), torch.nan_to_num(fresh))
        growth = counted()
        found = growth.pop("verify_differences", 0)
        assert growth == {}, "nothing else is counted, and nothing failed"
        modcache.clear()
        return found

    def test_only_the_rows_that_differ_are_counted(
        self, face_name: str, key_form: str, counted: Any
    ) -> None:
        fresh = X.clone()
        fresh[1, 2] += 1
        fresh[3, 0] += 1
        expected = 1 if key_form == "key" else 2
        assert self.differences((face_name, key_form), X, fresh, counted) == expected

    def test_the_tolerance(self, face_name: str, key_form: str, counted: Any) -> None:
        names = (face_name, key_form)
        units = 1 if key_form == "key" else ROWS
        x = torch.full((ROWS, 4), 100.0)
        assert self.differences(names, x, x * (1 + 5e-5), counted) == 0
        assert self.differences(names, x, x * (1 + 5e-4), counted) == units

    def test_nan_equals_nan(self, face_name: str, key_form: str, counted: Any) -> None:
        odd = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0]] * ROWS)
        names = (face_name, key_form)
        units = 1 if key_form == "key" else ROWS
        assert self.differences(names, odd, odd.clone(), counted) == 0
        assert self.differences(names, odd, torch.nan_to_num(odd), counted) == units
        flipped = odd[:, [0, 2, 1, 3]]
        assert self.differences(names, odd, flipped, counted) == units

    def test_another_dtype_is_a_difference(
        self, face_name: str, key_form: str, counted: Any
    ) -> None:
        units = 1 if key_form == "key" else ROWS
        assert self.differences((face_name, key_form), X, X.double(), counted) == units


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.float16,
     torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2],
    ids=str,
)  # fmt: skip
def test_every_dtype_can_be_verified(dtype: torch.dtype, counted: Any) -> None:
    value = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]).to(dtype)
    other = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]).to(dtype)
    for key, expected in (("k", 1), (KEYS, 1)):
        modcache.lookup_or_run(Given(value), X, key, scope="s")
        counted()
        with modcache.mode("verify"):
            modcache.lookup_or_run(Given(value), X, key, scope="s")
            assert counted() == {}
            modcache.lookup_or_run(Given(other), X, key, scope="s")
        assert counted() == {"verify_differences": expected}


class GivenAndReported(Given):
    """One message per module and while: that of no other test."""


def test_the_report_names_the_key_and_the_module(capfd: Any) -> None:
    keys = ["a", "b", "the-odd-one", "d"]
    modcache.lookup_or_run(GivenAndReported(X), X, keys, scope="s")
    fresh = X.clone()
    fresh[2] += 100
    with modcache.mode("verify"):
        modcache.lookup_or_run(GivenAndReported(fresh), X, keys, scope="s")
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "verify" in line]
    for part in ("'the-odd-one'", "GivenAndReported.forward", "100"):
        assert part in line


def test_rows_of_another_batch_composition_agree(counted: Any) -> None:
    """Kernels round differently for other batch sizes: that is no difference."""
    module = nn.Linear(512, 512).requires_grad_(False)
    x = torch.randn(256, 512)
    keys = [str(row) for row in range(256)]
    modcache.lookup_or_run(module, x, keys)
    counted()
    fresh = []
    with modcache.mode("verify"):
        for rows in (range(1), range(1, 8), range(8, 256)):
            some = keys[rows.start : rows.stop]
            fresh.append(modcache.lookup_or_run(module, x[rows.start : rows.stop], some))
    assert counted() == {}, "all were compared, and none differs"
    # Stored and recomputed really are not the same bits, or the above proved nothing.
    stored = modcache.lookup_or_run(module, x, keys)
    assert not torch.equal(torch.cat(fresh), stored)


def test_a_batch_that_is_partly_there_is_compared_where_it_can_be(counted: Any) -> None:
    face = Face("scripted", "rows", "tensor")
    face.call(2.0, x=X[:2], key=KEYS[:2])
    counted()
    assert face.call(3.0, "verify") == 3.0
    assert counted() == {"verify_differences": 2, "misses": 2}
    assert face.call(2.0, "verify", X[[1, 1, 1]], [KEYS[1]] * 3) == 2.0
    assert "verify_differences" not in counted()
    assert face.call(5.0, x=X[2:], key=KEYS[2:]) == 5.0, "verify stored nothing"
