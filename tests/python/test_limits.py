# SPDX-License-Identifier: Apache-2.0
"""What docs/limits.md says that nobody sees is so: each test is a sentence of it.

Where one of these fails because the cache has learned to see something, the sentence goes, too.
Those about code are in test_limits_code.py, about inputs in test_limits_inputs.py. Others are
in test_writes_without_trace.py, test_match_input.py and grid/.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import importlib
import logging
import math
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from look_ups import Call, X, looked_up, made_of
from torch import nn


class Calls(nn.Module):
    """Calls ``function``, which a look finds."""

    def __init__(self, function: Call) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def package(monkeypatch: pytest.MonkeyPatch, text: str) -> Any:
    """A loaded Python module, as if an installer had put it there."""
    made = types.ModuleType("limits_package")
    made.__file__ = "/srv/site-packages/limits_package.py"
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile("import torch\n" + text, made.__file__, "exec"), vars(made))
    return made


# --- Changes that nobody sees ---------------------------------------------------------------------


def test_weights_that_are_changed_and_changed_back_in_time_are_not_noticed(counted: Any) -> None:
    module = nn.Linear(2048, 2048).requires_grad_(False)
    x = torch.ones(1, 2048)
    right = modcache.lookup_or_run(module, x, "k")
    element = module.weight.data.view(-1)[1_234_567]
    before = float(element)
    element.fill_(100.0)
    element.fill_(before)
    for _ in range(3):
        assert torch.equal(modcache.lookup_or_run(module, x, "k"), right)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 3}


def test_a_write_is_seen_at_once_where_one_says_so() -> None:
    module = nn.Linear(2048, 2048).requires_grad_(False)
    x = torch.ones(1, 2048)
    modcache.lookup_or_run(module, x, "k")
    before = modcache.fingerprint(module)
    module.weight.data.view(-1)[1_234_567] = 100.0
    assert modcache.refresh_fingerprint(module) != before
    assert torch.equal(modcache.lookup_or_run(module, x, "k"), module(x))


def reads_file(path: Path) -> Call:
    name = str(path)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        with open(name) as file:  # noqa: PTH123
            return x * float(file.read())

    return scaled


def test_files_that_code_in_c_reads(tmp_path: Path) -> None:
    file = tmp_path / "scale"
    file.write_text("2")
    module = Calls(reads_file(file))
    assert looked_up(module) == 2.0
    file.write_text("3")
    assert looked_up(module) == 2.0
    assert module(X)[0] == 3.0


REPLACED: dict[str, tuple[Any, str, Call]] = {
    "torch": (torch, "neg", lambda x: torch.neg(x)),
    "NumPy": (np, "negative", lambda x: x * float(np.negative(1.0))),
    "the standard library": (math, "floor", lambda x: x * -math.floor(1.5)),
    "builtins": (builtins, "abs", lambda x: x * -abs(1.0)),
}


@pytest.mark.parametrize("name", REPLACED)
def test_functions_that_were_replaced_at_run_time(
    name: str, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    owner, function, call = REPLACED[name]
    module = Calls(call)
    assert looked_up(module) == -1.0
    with monkeypatch.context() as context:
        context.setattr(owner, function, lambda *given: 5.0)
        found = looked_up(module)
        own = call(X)
    assert found == -1.0
    assert float(torch.as_tensor(own).flatten()[0]) in (5.0, -5.0)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_environment_variables_and_levels_of_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE", "2")
    logger = logging.getLogger("of test_limits")
    by_variable = Calls(lambda x: x * float(os.environ["SCALE"]))
    by_level = Calls(lambda x: x * (3.0 if logger.isEnabledFor(logging.DEBUG) else 2.0))
    assert [looked_up(by_variable), looked_up(by_level)] == [2.0, 2.0]
    monkeypatch.setenv("SCALE", "3")
    logger.setLevel(logging.DEBUG)
    assert [looked_up(by_variable), looked_up(by_level)] == [2.0, 2.0]
    assert [float(by_variable(X)[0]), float(by_level(X)[0])] == [3.0, 3.0]
    logger.setLevel(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")  # torch's, of a kernel that is replaced
def test_kernels_of_aten_among_them() -> None:
    module = Calls(lambda x: torch.erfinv(x * 0))
    assert looked_up(module) == 0.0
    of_torch: Any = torch.library
    library = of_torch.Library("aten", "IMPL")
    try:
        library.impl("erfinv", lambda x: x + 5, "CPU")
        assert module(X)[0] == 5.0
        assert looked_up(module) == 0.0
    finally:
        library._destroy()
    assert module(X)[0] == 0.0


OF_PACKAGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "locks": (
        "import threading\nS = threading.Lock()\ndef f(x): return x * (2.0 + S.locked())",
        lambda made: made.S.acquire(),
    ),
    "objects of compiled classes": (
        "import ctypes\nS = ctypes.c_double(2.0)\ndef f(x): return x * S.value",
        lambda made: setattr(made.S, "value", 3.0),
    ),
    "globals that its own code writes while it runs": (
        "S = None\ndef f(x):\n    global S\n    S = S or 2.0\n    return x * S",
        lambda made: setattr(made, "S", 3.0),
    ),
    "its memories": (
        "S = {}\ndef f(x):\n    if 's' not in S:\n        S['s'] = 2.0\n    return x * S['s']",
        lambda made: made.S.update(s=3.0),
    ),
    "names that are made at run time": (
        "globals()['S' + '1'] = 2.0\ndef f(x): return x * globals()['S' + '1']",
        lambda made: setattr(made, "S1", 3.0),
    ),
}


@pytest.mark.parametrize("name", OF_PACKAGES)
def test_what_an_installed_package_holds_behind(
    name: str, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    text, change = OF_PACKAGES[name]
    made = package(monkeypatch, text)
    module = Calls(made.f)
    assert looked_up(module) == 2.0
    change(made)
    assert module(X)[0] == 3.0
    assert looked_up(module) == 2.0
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


@pytest.mark.parametrize(
    ("other", "gives"), [(ctypes.c_float, 3.0), (ctypes.c_double, 2.0)], ids=["type", "object"]
)
def test_their_type_counts_and_not_which_object_of_it_is_there(
    other: Any, gives: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package(monkeypatch, OF_PACKAGES["objects of compiled classes"][0])
    module = Calls(made.f)
    assert looked_up(module) == 2.0
    made.S = other(3.0)
    assert module(X)[0] == 3.0
    assert looked_up(module) == gives


def test_refresh_fingerprint_reads_bytes_and_does_not_tell_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Calls(lambda x: x * -math.floor(1.5))
    looked_up(module)
    before = modcache.fingerprint(module)
    with monkeypatch.context() as context:
        context.setattr(math, "floor", lambda number: 5)
        assert modcache.refresh_fingerprint(module) == before
        assert looked_up(module) == -1.0


def test_packages_on_pythonpath_are_followed_as_your_own_code_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is seen that in site-packages nobody sees."""
    text, change = OF_PACKAGES["globals that its own code writes while it runs"]
    (tmp_path / "limits_on_path.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    made: Any = importlib.import_module("limits_on_path")
    try:
        module = Calls(made.f)
        assert [looked_up(module) for _ in range(3)] == [2.0] * 3
        change(made)
        assert looked_up(module) == 3.0
    finally:
        del sys.modules["limits_on_path"]


# --- Never followed, so the module is not cached without a scope ----------------------------------

NEVER_FOLLOWED = {
    "exec": "names = {}\n        exec('S = 2.0', names)\n        return x * names['S']",
    "eval": "return x * eval('2.0')",
    "frames, by inspect": "return x * inspect.currentframe().f_globals['S']",
    "frames, of a generator": "return x * (i for i in '').gi_frame.f_globals['S']",
}


def made(body: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    names = types.ModuleType("limits_made")
    monkeypatch.setitem(sys.modules, names.__name__, names)
    head = "import importlib, inspect, sys, torch\nS = 2.0\nclass M(torch.nn.Module):\n"
    text = f"{head}    def forward(self, x):\n        {body}\n"
    exec(compile(text, "/srv/limits_made.py", "exec"), vars(names))
    module: nn.Module = names.M()
    return module


@pytest.mark.parametrize("name", NEVER_FOLLOWED)
def test_never_followed(name: str, monkeypatch: pytest.MonkeyPatch, counted: Any) -> None:
    module = made(NEVER_FOLLOWED[name], monkeypatch)
    assert looked_up(module) == 2.0
    assert counted() == {"bypassed_identity": 1}
    assert looked_up(module, scope="limits@2") == 2.0
    assert counted() == {"misses": 1, "stored": 1}


@pytest.mark.parametrize("way", ["sys.modules['numpy']", "importlib.import_module('numpy')"])
def test_but_for_names_of_installed_packages_that_stand_in_the_code(
    way: str, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    assert looked_up(made(f"return x * float({way}.add(1.0, 1.0))", monkeypatch)) == 2.0
    assert counted() == {"misses": 1, "stored": 1}


# --- lru_cache, gradients -------------------------------------------------------------------------

VALUES = {"scale": 2.0}


def with_memo() -> Any:
    @functools.lru_cache
    def scale() -> float:
        return VALUES["scale"]

    return scale


def test_what_changed_before_the_first_look(monkeypatch: pytest.MonkeyPatch, counted: Any) -> None:
    scale = with_memo()
    assert scale() == 2.0
    monkeypatch.setitem(VALUES, "scale", 3.0)
    assert looked_up(Calls(lambda x: x * scale())) == 2.0
    assert counted() == {"misses": 1, "stored": 1}, "what 2.0 gave lies under 3.0"


def test_changed_and_changed_back_between_two_looks(
    monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    scale = with_memo()
    module = Calls(lambda x: x * scale())
    looked_up(module)
    with monkeypatch.context() as context:
        context.setitem(VALUES, "scale", 3.0)
        scale.cache_clear()
        assert scale() == 3.0
    assert module(X)[0] == 3.0
    assert looked_up(module, "another key") == 3.0
    assert counted() == {"misses": 2, "stored": 2}


def test_nor_are_such_functions_of_installed_packages(
    monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    text = "import functools\nS = {'s': 2.0}\n@functools.lru_cache\ndef s(): return S['s']\n"
    found = package(monkeypatch, text + "def f(x): return x * s()")
    module = Calls(found.f)
    looked_up(module)
    found.S["s"] = 3.0
    for _ in range(2):
        assert looked_up(module) == 2.0
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}, "2.0 lies under 3.0"


def test_a_forward_that_asks_for_is_grad_enabled_has_an_entry_for_each_answer(
    counted: Any,
) -> None:
    module = Calls(lambda x: x * (2.0 if torch.is_grad_enabled() else 3.0))
    for _ in range(2):
        assert looked_up(module) == 2.0
        with torch.no_grad():
            assert looked_up(module) == 3.0
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


def test_one_that_switches_gradients_on_inside_of_no_grad_is_looked_up_as_one_without_them(
    counted: Any,
) -> None:
    linear = nn.Linear(3, 1).requires_grad_(False)
    module = Calls(torch.enable_grad()(linear.forward))
    module.linear = linear
    with torch.no_grad():
        looked_up(module)
        linear.requires_grad_(True)
        assert module(X).requires_grad
        assert not modcache.lookup_or_run(module, X, "k").requires_grad
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_under_a_scope_of_your_own_nothing_is_compared_at_all(counted: Any) -> None:
    for factor in (2.0, 3.0):
        assert looked_up(Calls(made_of(factor)), scope="limits@3") == 2.0
    assert looked_up(nn.Linear(3, 3).requires_grad_(False), scope="limits@3") == 2.0
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}
