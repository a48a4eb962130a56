# SPDX-License-Identifier: Apache-2.0
"""The Python package: its names, its loading, and how it explains mistakes."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from models import Encoder, TwoInputs, frozen
from processes import python_environment
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_public_names() -> None:
    assert set(modcache.__all__) >= {
        "lookup_or_run", "configure", "settings", "stats", "reset_stats", "mode", "set_mode",
        "flush", "clear", "contains", "fingerprint", "refresh_fingerprint", "library_path",
        "__version__",
    }  # fmt: skip
    for name in modcache.__all__:
        assert hasattr(modcache, name)
        assert getattr(modcache, name).__doc__


def test_the_library_and_its_version() -> None:
    path = Path(modcache.library_path())
    assert path.is_absolute()
    assert path.name == "libmodcache.so"
    assert path.is_file()
    assert modcache.__version__.count(".") == 2
    assert (Path(modcache.__file__).parent / "py.typed").is_file()


def test_a_library_that_does_not_load_is_explained(tmp_path: Path) -> None:
    broken = tmp_path / "libmodcache.so"
    broken.write_bytes(b"no library")
    (tmp_path / "libmodcache.json").write_text(json.dumps({"torch": "9.9.9", "version": "0.0.1"}))
    for path, parts in {
        str(broken): [str(broken), torch.__version__, "9.9.9"],
        str(tmp_path / "nothing.so"): [str(tmp_path / "nothing.so"), torch.__version__],
    }.items():
        ended = subprocess.run(
            [sys.executable, "-c", "import modcache"],
            env=python_environment(MODCACHE_LIBRARY=path),
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 1
        assert "ImportError" in ended.stderr
        for part in parts:
            assert part in ended.stderr


MISTAKES = {
    "module of a wrong type": (lambda: modcache.lookup_or_run(1, X, "k"), ["module", "int"]),
    "a class": (lambda: modcache.lookup_or_run(nn.ReLU, X, "k"), ["instance", "ReLU"]),
    "a function": (lambda: modcache.lookup_or_run(torch.relu, X, "k"), ["module", "builtin"]),
    "an int key": (lambda: modcache.lookup_or_run(nn.ReLU(), X, 7), ["key", "str", "int"]),
    "a bytes key": (lambda: modcache.lookup_or_run(nn.ReLU(), X, b"\xff"), ["key", "UTF-8", "hex"]),
    "no key": (lambda: modcache.lookup_or_run(nn.ReLU(), X, None), ["key", "str", "NoneType"]),
    "an empty key": (lambda: modcache.lookup_or_run(nn.ReLU(), X, ""), ["key", "empty"]),
    "an empty key, scripted": (
        lambda: modcache.lookup_or_run(torch.jit.script(nn.ReLU()), X, ""),
        ["key", "empty"],
    ),
    "an empty key, mode off": (lambda: with_mode_off(""), ["key", "empty"]),
    "a lone surrogate": (
        lambda: modcache.lookup_or_run(nn.ReLU(), X, "k\udc80"),
        ["key", "Unicode", "surrogate", "\\udc80"],
    ),
    "a scope that is no text": (
        lambda: modcache.lookup_or_run(nn.ReLU(), X, "k", scope=3),
        ["scope", "str", "int"],
    ),
    "an unknown method": (
        lambda: modcache.lookup_or_run(nn.ReLU(), X, "k", method="encode"),
        ["encode", "ReLU", "method"],
    ),
    "an unknown method, scripted": (
        lambda: modcache.lookup_or_run(torch.jit.script(nn.ReLU()), X, "k", method="encode"),
        ["encode", "method", "forward"],
    ),
    "contains without a scope": (lambda: modcache.contains("", "k"), ["scope", "empty"]),
    "contains without a key": (lambda: modcache.contains("s", ""), ["key", "empty"]),
    "a fingerprint of an unknown method": (
        lambda: modcache.fingerprint(nn.ReLU(), method="encode"),
        ["encode", "ReLU", "method"],
    ),
    "a fingerprint of an unknown method, scripted": (
        lambda: modcache.fingerprint(torch.jit.script(nn.ReLU()), method="encode"),
        ["encode", "method", "forward"],
    ),
    "a fingerprint of nothing": (lambda: modcache.fingerprint(None), ["module", "NoneType"]),
}


def test_an_empty_key_is_a_value_error() -> None:
    for call in (
        lambda: modcache.lookup_or_run(nn.ReLU(), X, ""),
        lambda: modcache.lookup_or_run(torch.jit.script(nn.ReLU()), X, ""),
        lambda: modcache.contains("s", ""),
    ):
        with pytest.raises(ValueError, match="empty"):
            call()


def with_mode_off(key: str) -> torch.Tensor:
    modcache.set_mode("off")
    return modcache.lookup_or_run(nn.ReLU(), X, key)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str, counted: Any) -> None:
    call, parts = MISTAKES[name]
    with pytest.raises((TypeError, ValueError, RuntimeError, AttributeError)) as caught:
        call()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert counted() == {}


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.deeper(x)

    def deeper(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("row 7")


@pytest.mark.parametrize("mode", ["on", "read", "off"])
def test_the_modules_own_exception_reaches_the_caller_unchanged(mode: str) -> None:
    modcache.set_mode(mode)
    for _ in range(2):
        with pytest.raises(KeyError, match="row 7") as caught:
            modcache.lookup_or_run(Raises(), X, "k", scope="s")
        assert caught.type is KeyError
        assert "deeper" in [frame.name for frame in traceback.extract_tb(caught.tb)]
        assert caught.value.__context__ is None


def test_only_a_tuple_unpacks() -> None:
    assert torch.equal(modcache.lookup_or_run(TwoInputs(), (X, X * 2), "k"), -X)
    with pytest.raises(TypeError, match="argument"):
        modcache.lookup_or_run(TwoInputs(), [X, X * 2], "k")


def test_a_module_is_not_kept_alive() -> None:
    module = frozen(Encoder())
    parameter = weakref.ref(module.linear.weight)
    reference = weakref.ref(module)
    with torch.no_grad():
        modcache.lookup_or_run(module, X, "k")
        modcache.lookup_or_run(module, X, "k")
    del module
    gc.collect()
    assert reference() is None
    assert parameter() is None


def test_a_module_that_refers_to_its_parent_is_not_kept_alive() -> None:
    module = frozen(Encoder())
    module.linear.parent = [module]
    module.linear.run_parent = module.forward
    reference = weakref.ref(module)
    modcache.lookup_or_run(module, X, "k")
    modcache.lookup_or_run(module, X, "k")
    del module
    gc.collect()
    assert reference() is None


def test_modules_that_come_and_go_are_told_apart() -> None:
    for _ in range(50):
        module = frozen(nn.Linear(4, 4))
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


def test_submodules_that_come_and_go_are_told_apart() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).requires_grad_(False)
    for _ in range(50):
        module[0] = nn.Linear(4, 4).requires_grad_(False)
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


def test_eager_modules_with_strange_equality_and_no_hash() -> None:
    class Strange(nn.ReLU):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    one, two = Strange(), copy.deepcopy(Strange())
    for module in (one, two):
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), X.relu())


def test_a_compiled_module_is_run_as_compiled(counted: Any) -> None:
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    module = frozen(Encoder())
    compiled = torch.compile(module, backend=backend)
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(compiled, X, "k"), module(X))
    assert calls == [1]
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_it_type_checks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, modcache\n"
        "m = torch.nn.ReLU()\n"
        "y = modcache.lookup_or_run(m, torch.ones(1), 'k', scope='s')\n"
        "n: int = modcache.stats()['hits_memory'] + modcache.clear()\n"
        "s: str = modcache.fingerprint(m) + modcache.mode() + modcache.__version__\n"
        "modcache.configure(dir=__import__('pathlib').Path('x'), memory=1, strict=True)\n"
        "modcache.lookup_or_run(m, torch.ones(1), 'k', scope=7)\n"
    )
    folder = Path(modcache.__file__).parent.parent
    source = {"MYPYPATH": str(folder)}
    # Reading all of torch takes mypy a minute.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)],
        # mypy finds an installed package by itself, and refuses to be told where it is.
        env=python_environment(**({} if folder.name == "site-packages" else source)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    errors = [line for line in ended.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1, ended.stdout + ended.stderr
    assert ":7:" in errors[0]
