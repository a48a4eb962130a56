# SPDX-License-Identifier: Apache-2.0
"""Arguments that change nothing are left out of the address, never of the call."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from torch import nn

X, IDS = torch.rand(4, 8), torch.arange(4)
Growth = Callable[[], dict[str, int]]
STORED = {"misses": 4, "stored": 4}
FOUND = {"hits_memory": 4}


class Chunked(nn.Linear):
    def forward(
        self, x: torch.Tensor, chunk: int = 2, scale: float = 1.0, *, progress: bool = False
    ) -> torch.Tensor:
        logging.getLogger("seen").info("%s %s", chunk, progress)
        return torch.cat([super(Chunked, self).forward(part) for part in x.split(chunk)]) * scale


class TakesAll(nn.Linear):
    def forward(self, x: torch.Tensor, **unused: Any) -> torch.Tensor:
        return super().forward(x)


class ReadsAll(nn.Linear):
    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        logging.getLogger("seen").info("%s", sorted(more))
        return super().forward(x) * more.get("scale", 1.0)


@pytest.fixture
def seen(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns what the modules logged of their runs since the last call of it."""
    caplog.set_level(logging.INFO, "seen")

    def read() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == "seen"]
        caplog.clear()
        return found

    return read


def frozen(module: nn.Module, **more: Any) -> Any:
    return modcache.cached(module, key="ids", freeze=True, scope="s", **more)


def test_an_ignored_argument_reaches_the_call_and_no_address(counted: Growth, seen: Any) -> None:
    module = frozen(Chunked(8, 4), ignore=("chunk", "progress"))
    first = module(X, 3, progress=True, ids=IDS)
    assert seen() == ["3 True", "3 True"], "the second is a check run"
    assert counted() == STORED
    for call in (
        lambda: module(X, ids=IDS),
        lambda: module(X, 1, ids=IDS),
        lambda: module(X, chunk=4, progress=True, ids=IDS),
        lambda: module(X, 2, 1.0, ids=IDS),
    ):
        assert torch.equal(call(), first)
        assert counted() == FOUND
    assert torch.allclose(module(X, 1, 2.0, ids=IDS), first * 2)
    assert counted() == STORED, "scale counts"
    assert set(seen()) == {"1 False"}


def test_the_address_is_that_of_a_call_without_it(counted: Growth) -> None:
    plain = Chunked(8, 4)
    frozen(plain)(X, ids=IDS)
    assert counted() == STORED
    frozen(plain, ignore="chunk")(X, 3, ids=IDS)
    assert counted() == FOUND
    frozen(plain)(X, 3, ids=IDS)
    assert counted() == STORED, "without ignore= it counts as before"


def test_a_partly_missing_batch_runs_with_it(counted: Growth, seen: Any) -> None:
    module = frozen(Chunked(8, 4), ignore=["chunk"])
    first = module(X[:2], 1, ids=IDS[:2])
    seen()
    assert torch.equal(module(X, 4, ids=IDS)[:2], first)
    assert seen() == ["4 False"]
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 2}


def test_columns_of_a_batch_that_forward_takes_as_keywords(counted: Growth, seen: Any) -> None:
    module = frozen(ReadsAll(8, 4), ignore=("labels", "texts"))
    batch = {"x": X, "labels": torch.arange(4), "texts": list("abcd")}
    first = module(**batch, ids=IDS)
    assert set(seen()) == {"['labels', 'texts']"}
    assert counted() == STORED
    assert torch.equal(module(**{**batch, "labels": torch.zeros(4, 2)}, ids=IDS), first)
    assert torch.equal(module(X, ids=IDS), first)
    assert counted() == {"hits_memory": 8}
    module(X, ids=IDS, scale=2.0)
    assert counted() == STORED
    module(**{**batch, "x": X.flip(0)}, ids=IDS + 2)
    assert counted()["stored"] == 4


def test_the_rows_of_an_ignored_column_go_with_theirs(seen: Any) -> None:
    class Labelled(nn.Linear):
        def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
            logging.getLogger("seen").info("%s", more["labels"].tolist())
            return super().forward(x)

    module = frozen(Labelled(8, 4), ignore="labels")
    module(X[:2], labels=IDS[:2] * 10, ids=IDS[:2])
    module(X, labels=IDS * 10, ids=IDS)
    module(X, labels=torch.tensor(7), ids=IDS + 2)
    assert seen() == ["[0, 10]", "[10]", "[20, 30]", "7"], "the second is a check run"


def test_keywords_that_the_code_does_not_read_are_ignored(counted: Growth) -> None:
    module = frozen(TakesAll(8, 4))
    first = module(X, labels=IDS, split="train", ids=IDS)
    assert counted() == STORED
    assert torch.equal(module(X, ids=IDS), first)
    assert torch.equal(module(X, labels=None, ids=IDS), first)
    assert counted() == {"hits_memory": 8}


def test_keywords_that_the_code_may_read_count(counted: Growth) -> None:
    def by_name(x: torch.Tensor, **more: Any) -> torch.Tensor:
        return x + len(locals()["more"])

    def in_closure(x: torch.Tensor, **more: Any) -> torch.Tensor:
        return x + sum(more[name] for name in ("a",) if name in more)

    def passed_on(x: torch.Tensor, **more: Any) -> torch.Tensor:
        return in_closure(x, **more)

    def behind(x: torch.Tensor, **more: Any) -> torch.Tensor:
        def inner() -> Any:
            return more.get("a", 0)

        return x + inner()

    for function in (by_name, in_closure, passed_on, behind):
        cached = modcache.cached(function, key="ids", scope=function.__name__)
        one, two = cached(X, a=1, ids=IDS), cached(X, ids=IDS)
        assert not torch.equal(one, two)
    assert counted() == {"misses": 32, "stored": 32}


def test_content_keys_leave_it_out(counted: Growth) -> None:
    @modcache.cached(key="content", ignore="chunk", scope="c")
    def total(x: torch.Tensor, chunk: int = 1) -> torch.Tensor:
        return torch.stack([part.sum() for part in x.split(chunk)]).sum()

    assert total(X, 2) == total(X, chunk=2)
    total(X)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}


def test_an_explanation_leaves_it_out() -> None:
    module = frozen(Chunked(8, 4), ignore=("chunk",))
    module(X, 3, ids=IDS)
    for call in (X, (X, 3), (X, 1), (X, 4, 1.0)):
        assert modcache.explain(module, call, IDS).status == "hit"
    assert modcache.explain(module, (X, 3, 2.0), IDS).status == "miss", "scale counts"
    assert modcache.explain(module, (X, 3), IDS, scope="other").status == "miss"
    assert modcache.explain(frozen(module), (X, 3), IDS).status == "miss", "nothing is ignored"


def test_a_decorated_target_too(counted: Growth) -> None:
    import functools

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @modcache.cached(key="ids", ignore=("chunk",), scope="d")
    @logged
    def doubled(x: torch.Tensor, chunk: int = 1) -> torch.Tensor:
        return x * 2

    for more in ({}, {"chunk": 3}, {"chunk": 1}):
        doubled(X, ids=IDS, **more)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 8}


def test_fill_and_calls_agree(counted: Growth) -> None:
    module = frozen(ReadsAll(8, 4), ignore="labels")
    modcache.fill(module, [{"x": X, "labels": IDS, "ids": IDS}], progress=False)
    counted()
    module(X, ids=IDS)
    assert counted() == FOUND


def test_copies_and_pickles_keep_it(counted: Growth) -> None:
    module = frozen(Chunked(8, 4), ignore="chunk")
    module(X, ids=IDS)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        other(X, 3, ids=IDS)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 8}


@pytest.mark.parametrize("ignore", [("chunks",), "labels", ["x", "y"]])
def test_a_name_that_the_target_does_not_take_is_an_error(ignore: Any) -> None:
    with pytest.raises(TypeError, match=r"ignore names \w+, which Chunked.forward\(x"):
        frozen(Chunked(8, 4), ignore=ignore)


@pytest.mark.parametrize("ignore", [3, ("a b",), (1,), None])
def test_what_is_no_name_is_an_error(ignore: Any) -> None:
    with pytest.raises(TypeError, match="must be names of arguments"):
        frozen(Chunked(8, 4), ignore=ignore)


def test_an_ignored_argument_without_a_default_given_by_place(counted: Growth) -> None:
    class Placed(nn.Linear):
        def forward(self, x: torch.Tensor, chunk: int) -> torch.Tensor:
            return super().forward(x)

    module = modcache.cached(Placed(4, 2).requires_grad_(False), key="ids", ignore="chunk")
    for chunk in (1, 2):
        module(torch.ones(2, 4), chunk, ids=[0, 1])
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


ENCODER = """
class Encoder(nn.Linear):
    def encode(self, texts, batch_size=32, show_progress_bar=None,
               output_value="sentence_embedding", precision="float32"):
        self.eval()
        longest = 0 if output_value else max(map(len, texts[:batch_size]))
        lengths = torch.tensor([[float(len(text) + longest)] for text in texts])
        return (lengths / lengths.max()) if precision in ("int8", "uint8") else lengths
"""


@pytest.mark.parametrize(
    "joined", [{"output_value": None}, {"output_value": "attention_mask"}, {"precision": "int8"}]
)
def test_rows_that_depend_on_the_rows_beside_them(
    joined: Any, counted: Growth, capfd: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"nn": nn, "torch": torch, "__name__": "sentence_transformers.rows"}
    exec(ENCODER, names)
    model = names["Encoder"](1, 1)
    texts = ["a", "bbb", "cc"]
    by_row = modcache.cached(model.encode, key="texts", scope="rows@1")
    whole = modcache.cached(model.encode, key=lambda texts: "all", scope="whole@1")
    for given in (texts, texts[::2]):
        assert torch.equal(by_row(given, **joined), model.encode(given, **joined))
    assert counted() == {"bypassed_type": 5}
    assert f"{next(iter(joined))}=" in capfd.readouterr().err
    for size in (1, 2):
        want = model.encode(texts, size, **joined)
        for _ in range(2):
            assert torch.equal(whole(texts, size, False, **joined), want)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}
    for size in (1, 2):
        by_row(texts, size, precision="binary")
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


def test_a_keyword_that_a_hook_reads_counts(counted: Growth) -> None:
    class Open(nn.Linear):
        def forward(self, x: torch.Tensor, **unread: Any) -> torch.Tensor:
            return super().forward(x)

    plain = Open(4, 2).requires_grad_(False)
    plain.register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] * kwargs["scale"],), kwargs), with_kwargs=True
    )
    module = modcache.cached(plain, key="ids")
    x = torch.ones(2, 4)
    for scale in (1.0, 1.002):
        assert torch.equal(module(x, scale=scale, ids=[0, 1]), plain(x, scale=scale))
    assert counted() == {"misses": 4, "stored": 4}
