# SPDX-License-Identifier: Apache-2.0
"""What a recorded program caches, and of what it has plain calls."""

from __future__ import annotations

import collections
import warnings
from typing import Any

import modcache
import pytest
import torch
from models import CountsInBuffer, frozen
from recorded_models import IDS, Classifier, X, count_of, encoder, exported
from torch import nn
from torch.nn import functional as F  # noqa: N812

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


class Features(nn.Module):
    """A cached module, and nothing else."""

    def __init__(self, part: nn.Module, **options: Any) -> None:
        super().__init__()
        self.part = part
        self.options = options

    def forward(self, x: Any, ids: torch.Tensor) -> Any:
        return modcache.lookup_or_run(self.part, x, ids, **self.options)


class Attention(nn.Module):
    """Draws nothing in evaluation, by operators that could."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dropout(self.norm(self.layer(x[:, None, :])[:, 0]))
        heads = y.reshape(-1, 2, 1, 4)  # rows, heads, one place, features
        return F.scaled_dot_product_attention(heads, heads, heads * 2).reshape(-1, 8)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, *, by_operator: bool = False, **options: Any) -> None:
        super().__init__()
        self.layers = kind(8, 8, 2, batch_first=True, **options)
        self.by_operator = by_operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.stack([x, x * 2], 1)
        if self.by_operator:
            start = x.new_zeros(2, x.shape[0], 8)
            options = (True, 2, self.layers.dropout, self.training, False, True)
            weights = self.layers._flat_weights
            return torch.ops.aten.gru.input(steps, start, weights, *options)[0][:, -1]
        return self.layers(steps)[0][:, -1]


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


IMPURE = {
    "random": (Noisy(), "random numbers were drawn by aten.rand"),
    "dropout in training": (nn.Dropout(0.5), "random numbers were drawn by aten"),
    "dropout in an LSTM": (frozen(Recurrent(nn.LSTM, dropout=0.5)).train(), "drawn by aten.lstm"),
    "dropout in a GRU": (frozen(Recurrent(nn.GRU, dropout=0.5)).train(), "drawn by aten.gru"),
    "dropout in an RNN": (frozen(Recurrent(nn.RNN, dropout=0.5)).train(), "drawn by aten.rnn_tanh"),
    "dropout in a GRU, by its operator": (
        frozen(Recurrent(nn.GRU, by_operator=True, dropout=0.5)).train(),
        "drawn by aten.gru",
    ),
    "a buffer that changes": (CountsInBuffer(), "changes its tensors"),
    "batch norm in training": (nn.BatchNorm1d(8), "changes its tensors"),
    "trainable": (nn.Linear(8, 8), "its result requires grad"),
}


@STRICT
def test_evaluation_is_cached(strict: bool, counted: Any) -> None:
    model = Features(frozen(Attention()))
    run = exported(model, X, IDS, strict=strict).module()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        assert torch.allclose(run(X, IDS), model.part(X), atol=1e-5)
        assert counted() == growth


@STRICT
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_take_any_number_of_rows(strict: bool, kind: Any, counted: Any) -> None:
    model = Features(frozen(Recurrent(kind, dropout=0.5)))
    run = exported(model, X, IDS, strict=strict).module()
    x, ids = torch.cat([X, -X]), torch.arange(8)
    for growth in ({"misses": 8, "stored": 8}, {"hits_memory": 8}):
        assert torch.allclose(run(x, ids), model.part(x), atol=1e-5)
        assert counted() == growth


@STRICT
@pytest.mark.parametrize("name", IMPURE)
def test_what_is_not_cached_is_a_plain_call(strict: bool, name: str, counted: Any) -> None:
    part, why = IMPURE[name]
    with pytest.warns(UserWarning, match=f"is recorded without the cache: .*{why}"):
        program = exported(Features(part), X, IDS, strict=strict)
    assert count_of(program, "cache.") == 0
    assert program.module()(X, IDS).shape == X.shape
    assert counted() == {}
    modcache.configure(strict="true")
    with pytest.raises(Exception, match=why):
        exported(Features(part), X, IDS, strict=strict)
    modcache.configure(strict="false")


def test_the_study_leaves_the_module_alone() -> None:
    part = CountsInBuffer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported(Features(part), X, IDS)
    model = Classifier()
    held = {name: id(value) for name, value in model.encoder.state_dict(keep_vars=True).items()}
    names = set(vars(model.encoder))
    exported(model, X, IDS)
    assert part.calls == 0
    assert set(vars(model.encoder)) == names
    assert held == {name: id(v) for name, v in model.encoder.state_dict(keep_vars=True).items()}


Pair = collections.namedtuple("Pair", ["first", "second"])


class Structured(nn.Module):
    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(x * 2, x.sum(1).long())


FORMS = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, (b,)],
    "dict": lambda a, b: {"a": a, "b": {"c": b}},
}


@STRICT
@pytest.mark.parametrize("name", FORMS)
def test_structures(strict: bool, name: str, counted: Any) -> None:
    model = Features(Structured(FORMS[name]), scope="s")
    run = exported(model, X, IDS, strict=strict).module()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        torch.testing.assert_close(run(X, IDS), model.part(X))
        assert counted() == growth
    torch.testing.assert_close(model(X, IDS), model.part(X))
    assert counted() == {"hits_memory": 4}, "eager calls find the same structure"


def test_a_named_tuple_in_nonstrict_export(counted: Any) -> None:
    model = Features(Structured(Pair), scope="s")
    run = exported(model, X, IDS).module()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        assert torch.equal(run(X, IDS).first, X * 2)
        assert counted() == growth


@STRICT
@pytest.mark.parametrize(
    ("form", "why"),
    [(lambda a, _: (a, 3), "holds a int"), (lambda a, b: {"a": a, "n": None}, "holds a NoneType")],
)
def test_other_values_are_not_cached(strict: bool, form: Any, why: str) -> None:
    with pytest.warns(UserWarning, match=why):
        exported(Features(Structured(form)), X, IDS, strict=strict)


@STRICT
def test_a_result_without_the_rows(strict: bool) -> None:
    model = Features(Structured(lambda a, b: a.sum(0)))
    with pytest.warns(UserWarning, match="its first size must be that of the input"):
        program = exported(model, X, IDS, strict=strict)
    assert torch.equal(program.module()(X, IDS), model(X, IDS))


class Several(nn.Module):
    def forward(
        self, x: torch.Tensor, more: dict[str, torch.Tensor], times: int, how: str = "+"
    ) -> torch.Tensor:
        return x * times + more["y"] if how == "+" else x * times - more["y"]


@STRICT
def test_inputs_of_several_parts(strict: bool, counted: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Several()

        def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return modcache.lookup_or_run(self.part, (x, {"y": y}, 3, "-"), ids, scope="s")

    y = X.flip(0)
    run = exported(Model(), X, y, IDS, strict=strict).module()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        assert torch.equal(run(X, y, IDS), X * 3 - y)
        assert counted() == growth
    modcache.lookup_or_run(Several(), (X, {"y": y}, 3, "-"), IDS, scope="s")
    assert counted() == {"hits_memory": 4}
    modcache.lookup_or_run(Several(), (X, {"y": y}, 3, "+"), IDS, scope="s")
    assert counted() == {"misses": 4, "stored": 4}, "text is part of the address"


@STRICT
def test_another_method(strict: bool, counted: Any) -> None:
    class WithMethod(nn.Linear):
        def negated(self, x: torch.Tensor) -> torch.Tensor:
            return -self.forward(x)

    model = Features(frozen(WithMethod(8, 8)), method="negated")
    run = exported(model, X, IDS, strict=strict).module()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        assert torch.allclose(run(X, IDS), -model.part(X), atol=1e-6)
        assert counted() == growth


class Twice(nn.Module):
    """Two calls, of two modules or of one."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        one = modcache.lookup_or_run(self.first, x, ids)
        return one + modcache.lookup_or_run(self.second, x * 2, ids)


@STRICT
def test_two_calls(strict: bool, counted: Any) -> None:
    first, second = encoder(), encoder()
    run = exported(Twice(first, second), X, IDS, strict=strict).module()
    for growth in ({"misses": 8, "stored": 8}, {"hits_memory": 8}):
        assert torch.allclose(run(X, IDS), first(X) + second(X * 2), atol=1e-5)
        assert counted() == growth


class Outer(nn.Module):
    """A cached module that caches a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(x.shape[0])
        return modcache.lookup_or_run(self.inner, x, ids, scope="inner") * 2


@STRICT
def test_a_call_inside_a_cached_module(strict: bool, counted: Any) -> None:
    model = Features(Outer(), scope="outer")
    run = exported(model, X, IDS, strict=strict).module()
    for growth in ({"misses": 8, "stored": 8}, {"hits_memory": 4}):
        assert torch.allclose(run(X, IDS), model.part.inner(X) * 2, atol=1e-5)
        assert counted() == growth


class Odd(nn.Module):
    """Holds tensors in every way, and one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.plain = torch.full((8,), 0.5)
        self.held = [torch.ones(8), {"deep": torch.ones(8)}]
        self.register_buffer("shift", torch.ones(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x))) + self.plain * self.shift
        return y * self.held[0] * self.held[1]["deep"]


@pytest.mark.parametrize("recorder", ["nonstrict", "strict", "compile"])
@pytest.mark.parametrize("scope", ["", "s"])
def test_tensors_in_any_attribute(recorder: str, scope: str, counted: Any) -> None:
    model = Features(frozen(Odd()), scope=scope)
    if recorder == "compile":
        torch._dynamo.reset()
        run = torch.compile(model, fullgraph=True, backend="aot_eager")
    else:
        run = exported(model, X, IDS, strict=recorder == "strict").module()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        assert torch.allclose(run(X, IDS), model.part(X), atol=1e-5)
        assert counted() == growth
    if recorder == "compile" and not scope:
        for held in (model.part.plain, model.part.held[0], model.part.held[1]["deep"]):
            held.mul_(3)
            assert torch.allclose(run(X, IDS), model.part(X), atol=1e-5)
        assert counted() == {"misses": 12, "stored": 12}
