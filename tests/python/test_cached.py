# SPDX-License-Identifier: Apache-2.0
"""modcache.cached on functions: keys, arguments, identity, mistakes."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import numpy
import pytest
import torch

Growth = Callable[[], dict[str, int]]
X = torch.arange(6.0).reshape(3, 2)
IDS = torch.arange(3)


def scaled(x: torch.Tensor, k: float = 2) -> torch.Tensor:
    """Scales."""
    return x * k


def test_it_runs_once_per_key(counted: Growth) -> None:
    function = modcache.cached(scaled, key="name")
    assert torch.equal(function(X, name="a"), X * 2)
    assert torch.equal(function(X, name="a"), X * 2)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_it_looks_like_its_target() -> None:
    function = modcache.cached(scaled, key="name")
    assert function.__name__ == "scaled"
    assert function.__doc__ == "Scales."
    assert function.__wrapped__ is scaled
    parameters = inspect.signature(function).parameters
    assert list(parameters) == ["x", "k", "name"]
    assert parameters["name"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["k"].default == 2


def test_cached_itself_shows_that_key_may_be_left_out() -> None:
    assert ", key: 'Any' = ..., scope: 'str' = ''" in str(inspect.signature(modcache.cached))
    with pytest.raises(ValueError, match="key='' is no name"):
        modcache.cached(key="")(scaled)


def test_a_key_that_the_target_has_is_read_and_passed_on(counted: Growth) -> None:
    @modcache.cached(key="name")
    def length(name: str, unit: float = 1.0) -> torch.Tensor:
        return torch.tensor(len(name) * unit)

    assert [float(length("left")), float(length(name="left")), float(length("up"))] == [4, 4, 2]
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}


def test_defaults_places_and_names_are_one_entry(counted: Growth) -> None:
    function = modcache.cached(scaled, key="name")
    for call in (
        lambda: function(X, name="a"),
        lambda: function(X, 2, name="a"),
        lambda: function(X, k=2, name="a"),
        lambda: function(k=2, x=X, name="a"),
    ):
        assert torch.equal(call(), X * 2)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 3}
    assert torch.equal(function(X, 3, name="a"), X * 3)
    # A default of another type is another value.
    assert torch.equal(function(X, 2.0, name="a"), X * 2)
    assert counted() == {"misses": 2, "stored": 2}


def every_kind(
    x: torch.Tensor, /, y: int = 1, *more: int, scale: float = 1.0, **options: Any
) -> torch.Tensor:
    return (x + y + sum(more)) * scale + sum(options.values())


def test_every_kind_of_parameter_works(counted: Growth) -> None:
    function = modcache.cached(every_kind, key="name")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {}),
        ((X, 2), {}),
        ((X, 2, 3, 4), {}),
        ((X,), {"scale": 2.0}),
        ((X,), {"y": 5, "a": 1, "b": 2}),
        ((X, 1, 7), {"scale": 3.0, "x": 4}),
    ]
    for _ in range(2):
        for args, kwargs in calls:
            given = function(*args, **kwargs, name="k")
            assert torch.equal(given, every_kind(*args, **kwargs))
    assert torch.equal(function(X, a=1, b=2, y=5, name="k"), every_kind(X, y=5, a=1, b=2))
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 7}


def test_one_key_per_row_runs_missing_rows_only(counted: Growth) -> None:
    function = modcache.cached(every_kind, key="ids")
    assert torch.equal(function(X[:2], bias=1, ids=IDS[:2]), X[:2] + 2)
    assert torch.equal(function(X, bias=1, ids=IDS), X + 2)
    assert torch.equal(function(X, bias=1, ids=["0", "1", "2"]), X + 2)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 5}


def test_named_tensors_are_cut_into_rows(counted: Growth) -> None:
    @modcache.cached(key="ids")
    def added(x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        return x + y

    assert torch.equal(added(X[:1], y=X[:1], ids=[0]), X[:1] * 2)
    assert torch.equal(added(X, y=X, ids=[0, 1, 2]), X * 2)
    assert counted()["misses"] == 3
    with pytest.raises(ValueError, match="2 keys were given"):
        added(X, y=X, ids=[0, 1])


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_keys_that_is_an_argument_goes_row_by_row(
    counted: Growth, tmp_path: Path, kind: Any
) -> None:
    log = tmp_path / "log"

    def lengths(x: torch.Tensor, names: Any) -> torch.Tensor:
        with log.open("a") as file:
            file.write(f"{names}\n")
        return x * torch.tensor([[float(len(name))] for name in names])

    function = modcache.cached(lengths, key="names", scope="lengths@1")
    function(torch.ones(2, 1), kind(["a", "bb"]))
    assert function(torch.ones(3, 1), kind(["bb", "ccc", "a"])).tolist() == [[2], [3], [1]]
    assert log.read_text().splitlines() == [
        str(kind(names)) for names in (["a", "bb"], ["bb"], ["ccc"])
    ], "the second is a check run"
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 2}


def test_what_a_target_encodes_may_be_empty_or_a_pair(counted: Growth) -> None:
    @modcache.cached(key="texts")
    def lengths(texts: list[Any]) -> torch.Tensor:
        assert all(type(text) in (str, list) for text in texts)
        return torch.tensor([[len(part) for part in (text or "")] for text in texts])

    pairs = [["a", "bc"], ["", "b"]]
    assert lengths(pairs).tolist() == [[1, 2], [0, 1]]
    assert lengths(pairs[::-1]).tolist() == [[0, 1], [1, 2]]
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}
    assert lengths(["", ""]).shape == (2, 0)
    assert lengths([""]).shape == (1, 0)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}
    with pytest.raises(ValueError, match="empty"):  # an id is another thing
        modcache.cached(torch.nn.Identity(), key="ids")(torch.ones(1, 2), ids=[""])


def test_an_int_names_one_whole_value(counted: Growth) -> None:
    @modcache.cached(key="index")
    def load(index: int) -> torch.Tensor:
        return torch.full((2,), float(index))

    assert [load(3).tolist(), load(index=3).tolist()] == [[3, 3], [3, 3]]
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


@pytest.mark.parametrize(
    "key",
    [
        lambda x, k: f"{k}",
        lambda k: f"{k}",
        lambda anything: f"{anything.sum()}",
        lambda *given: f"{len(given)}",
        lambda x, **_: "one",
        lambda x, unknown=1: "two",
    ],
)
def test_key_functions_name_arguments_or_take_the_first(counted: Growth, key: Any) -> None:
    function = modcache.cached(scaled, key=key)
    for _ in range(2):
        assert torch.equal(function(X), X * 2)
        assert torch.equal(function(x=X, k=2), X * 2)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 3}


def test_a_key_function_may_name_rows(counted: Growth) -> None:
    function = modcache.cached(scaled, key=lambda x: [f"{row.sum()}" for row in x])
    function(X)
    assert torch.equal(function(X.flip(0)), X.flip(0) * 2)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


def test_content_is_one_key_and_content_keys_are_rows(counted: Growth) -> None:
    whole = modcache.cached(scaled, key="content")
    whole(X)
    assert torch.equal(whole(X.clone()), X * 2)
    assert torch.equal(whole(X + 1), (X + 1) * 2)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}
    rows = modcache.cached(scaled, key=modcache.content_keys)
    rows(X)
    assert torch.equal(rows(X.flip(0), k=2), X.flip(0) * 2)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}
    named = modcache.cached(every_kind, key=modcache.content_key)
    assert torch.equal(named(X, a=1), X + 2)
    assert torch.equal(named(X, a=2), X + 3)
    assert torch.equal(named(X, a=1), X + 2)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}


FACTOR = 2.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def calls_helper(x: torch.Tensor) -> torch.Tensor:
    return helper(x)


def test_globals_that_it_reads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    function = modcache.cached(calls_helper, key="k")
    assert torch.equal(function(X, k="a"), X * 2)
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    assert torch.equal(function(X, k="a"), X * 3)
    monkeypatch.setattr(f"{__name__}.helper", lambda x: x - 1)
    assert torch.equal(function(X, k="a"), X - 1)


def test_closures_count() -> None:
    def made(shift: float) -> Any:
        @modcache.cached(key="k")
        def shifted(x: torch.Tensor) -> torch.Tensor:
            return x + shift

        return shifted

    assert torch.equal(made(1.0)(X, k="a"), X + 1)
    assert torch.equal(made(2.0)(X, k="a"), X + 2)


def test_another_module_of_the_same_code_is_another_function(counted: Growth) -> None:
    for module in ("first", "second"):
        names: dict[str, Any] = {"__name__": module}
        exec("def twice(x):\n    return x * 2\n", names)
        modcache.cached(names["twice"], key="k")(X, k="a")
    assert counted() == {"misses": 2, "stored": 2}


def test_a_cached_function_that_code_calls_counts_as_its_target() -> None:
    module = torch.nn.Identity()
    module.function = scaled
    before = modcache.fingerprint(module)
    module.function = modcache.cached(scaled, key="k")
    assert modcache.fingerprint(module) == before


def test_a_scope_replaces_identity(counted: Growth) -> None:
    first = modcache.cached(scaled, key="name", scope="scaled@1")
    second = modcache.cached(lambda x: x, key="name", scope="scaled@1")
    first(X, name="a")
    assert torch.equal(second(X, name="a"), X * 2)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_structured_results_come_back(counted: Growth) -> None:
    @modcache.cached(key="k")
    def described(x: torch.Tensor) -> dict[str, Any]:
        return {"x": x, "parts": [x + 1, 7], "name": "n"}

    described(X, k="a")
    found = described(X, k="a")
    assert torch.equal(found["parts"][0], X + 1)
    assert found["parts"][1] == 7
    assert counted()["hits_memory"] == 1


def test_a_function_without_arguments_or_tensors(counted: Growth) -> None:
    @modcache.cached(key=lambda: "only")
    def table() -> torch.Tensor:
        return torch.ones(2)

    assert torch.equal(table(), table())
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


def test_mode_off_runs_it() -> None:
    lock = threading.Lock()

    def locked(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x

    with modcache.mode("off"):
        assert torch.equal(modcache.cached(locked, key="k")(X, k="a"), X)


# Mistakes.


@pytest.mark.parametrize(
    ("key", "error", "says"),
    [
        (7, TypeError, "key is 7"),
        (None, TypeError, "key is None"),
        ("", ValueError, "is no name of an argument"),
        ("two words", ValueError, "is no name of an argument"),
        (lambda x, other: "k", TypeError, "takes other, which scaled"),
        (lambda a, b, c: "k", TypeError, "takes a, b, c"),
        (lambda *, other: "k", TypeError, "takes other"),
    ],
)
def test_keys_that_cannot_work_are_found_at_once(key: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        modcache.cached(scaled, key=key)


def test_a_missing_or_wrong_key_is_named() -> None:
    function = modcache.cached(scaled, key="name")
    with pytest.raises(TypeError, match=r"scaled\(\) needs the keyword name="):
        function(X)
    with pytest.raises(TypeError, match="the argument name gave float"):
        function(X, name=1.5)
    with pytest.raises(TypeError, match="gave NoneType"):
        modcache.cached(scaled, key=lambda x: None)(X)


def test_wrong_arguments_are_errors_as_without_the_cache() -> None:
    function = modcache.cached(scaled, key="name")
    for args, kwargs, says in (
        ((), {}, "missing a required argument: 'x'"),
        ((X, 2, 3), {}, "too many positional arguments"),
        ((X, 2), {"k": 2}, "multiple values for argument 'k'"),
        ((X,), {"other": 2}, "unexpected keyword argument 'other'"),
    ):
        with pytest.raises(TypeError, match=says):
            function(*args, **kwargs, name="a")


def test_what_a_key_function_raises_reaches_the_caller_named() -> None:
    def broken(x: torch.Tensor) -> str:
        raise KeyError("no name")

    with pytest.raises(KeyError) as caught:
        modcache.cached(scaled, key=broken)(X)
    assert "broken, the key function of scaled" in caught.value.__notes__[0]


def test_what_the_function_raises_reaches_the_caller() -> None:
    @modcache.cached(key="k")
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        broken(X, k="a")


def test_an_integer_of_numpy_is_an_id(counted: Growth) -> None:
    function = modcache.cached(scaled, key="ids")
    for one in (3, numpy.int64(3), numpy.uint8(3), numpy.array(3)):
        assert torch.equal(function(X, ids=one), X * 2)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 3}
    for wrong in (numpy.float32(3), numpy.bool_(True), True):
        with pytest.raises(TypeError, match="must be"):
            function(X, ids=wrong)


def doubling(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def doubled(*args: Any, **kwargs: Any) -> Any:
        return 2 * function(*args, **kwargs)

    return doubled


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, name="a")


def test_a_decorator_over_a_cached_function_is_not_that_function() -> None:
    function = modcache.cached(scaled, key="name")
    plain, doubled = Calls(function), Calls(doubling(function))
    assert torch.equal(modcache.lookup_or_run(plain, X, "a"), X * 2)
    assert torch.equal(modcache.lookup_or_run(doubled, X, "a"), X * 4)
    again = modcache.cached(doubling(function), key="name")
    assert torch.equal(again(X, name="a"), X * 4)
