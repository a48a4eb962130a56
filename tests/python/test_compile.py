# SPDX-License-Identifier: Apache-2.0
"""lookup_or_run inside torch.compile(fullgraph=True)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from models import frozen
from recorded_models import IDS, Classifier, X, encoder
from torch import nn


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64):
        yield


def compiled(model: Any, backend: str = "aot_eager", **options: Any) -> Any:
    return torch.compile(model, fullgraph=True, backend=backend, **options)


def check(run: Any, model: Any, x: torch.Tensor = X, ids: torch.Tensor = IDS) -> None:
    assert torch.allclose(run(x, ids), model.head(model.encoder(x)), atol=1e-5)


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("scope", ["", "enc@1"])
def test_a_training_step(backend: str, scope: str, counted: Any) -> None:
    model = Classifier(scope)
    run = compiled(model, backend)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        loss = run(X, IDS).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        assert counted() == ({"hits_memory": 4} if step else {"misses": 4, "stored": 4})
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < losses[0]


def test_the_head_gets_the_gradient_of_uncached_training() -> None:
    model = Classifier()
    run = compiled(model)
    for _ in range(2):  # a miss and a hit
        model.head.zero_grad()
        run(X, IDS).square().sum().backward()
        found = model.head.weight.grad
        model.head.weight.grad = None
        model.head(model.encoder(X)).square().sum().backward()
        assert torch.allclose(found, model.head.weight.grad, atol=1e-5)


@pytest.mark.parametrize("scope", ["", "enc@1"])
def test_it_shares_with_eager_calls(scope: str, counted: Any) -> None:
    model = Classifier(scope)
    run = compiled(model)
    run(X, IDS)
    counted()
    model(X, IDS)
    assert counted() == {"hits_memory": 4}
    modcache.clear()
    model(X, IDS)
    counted()
    run(X, IDS)
    assert counted() == {"hits_memory": 4}


def test_batches_of_any_size(counted: Any) -> None:
    model = Classifier()
    run = compiled(model)
    for rows in (4, 3, 8, 1, 0, 8):
        check(run, model, torch.randn(8, 8)[:rows] * 0 + X.repeat(2, 1)[:rows], torch.arange(rows))
    assert counted() == {"hits_memory": 16, "misses": 8, "stored": 8}


def test_what_is_missing_is_completed(counted: Any) -> None:
    model = Classifier()
    run = compiled(model)
    run(X[:2], IDS[:2])
    counted()
    check(run, model)
    assert counted() == {"hits_memory": 2, "misses": 2, "stored": 2}


def multiply(model: Any) -> None:
    with torch.no_grad():
        model.encoder[0].weight.mul_(2)


def load(model: Any) -> None:
    model.encoder.load_state_dict({k: v * 2 for k, v in model.encoder.state_dict().items()})


def replace(model: Any) -> None:
    model.encoder[0].weight = nn.Parameter(torch.randn(16, 8), requires_grad=False)


def step(model: Any) -> None:
    model.encoder.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.encoder.parameters(), fused=True)
    model.encoder(X).sum().backward()
    optimizer.step()
    model.encoder.requires_grad_(False)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": multiply,
    "data": lambda model: model.encoder[0].weight.data.mul_(2),
    "load_state_dict": load,
    "another parameter": replace,
    "fused optimizer": step,
    "swapped module": lambda model: setattr(model.encoder, "1", nn.Tanh()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_gives_no_old_output(name: str, counted: Any) -> None:
    model = Classifier()
    run = compiled(model)
    check(run, model)
    counted()
    CHANGES[name](model)
    check(run, model)
    assert counted() == {"misses": 4, "stored": 4}
    check(run, model)
    assert counted() == {"hits_memory": 4}


SCALE = 2.0


class Scaled(nn.Module):
    """Reads numbers in many places, and an array."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.factor = 2.0
        self.times = 3
        self.list = [1.0]
        self.table = {"gain": 1.5}
        self.array = np.ones(16, dtype=np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.factor * self.times * self.list[0] * self.table["gain"]
        return y * SCALE * torch.from_numpy(self.array)


def set_scale(value: float) -> None:
    globals()["SCALE"] = value


NUMBERS: dict[str, Callable[[Scaled, float], Any]] = {
    "attribute": lambda part, value: setattr(part, "factor", value),
    "whole number": lambda part, value: setattr(part, "times", int(value)),
    "list": lambda part, value: part.list.__setitem__(0, value),
    "dict": lambda part, value: part.table.__setitem__("gain", value),
    "global": lambda part, value: set_scale(value),
    "array": lambda part, value: part.array.__setitem__(3, value),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_comes_and_goes(name: str) -> None:
    """Dynamo takes a number that changed once for an input, which nothing guards."""
    model = Classifier(part=frozen(Scaled()))
    run = compiled(model)
    for value in (2.0, 3.0, 2.0, 4.0, 3.0, 5.0):
        NUMBERS[name](model.encoder, value)
        check(run, model)
    set_scale(2.0)


class ReadsItToo(Classifier):
    """Uses a number of the encoder beside it."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().forward(x, ids) * self.encoder.factor
        return result


def test_a_number_that_changes_and_that_the_model_reads_after_the_call() -> None:
    model = ReadsItToo(part=frozen(Scaled()))
    run = compiled(model)
    for value in (2.0, 3.0, 2.0, 4.0):
        model.encoder.factor = value
        expected = model.head(model.encoder(X)) * value
        assert torch.allclose(run(X, IDS), expected, atol=1e-4)
    assert not torch._dynamo.config.specialize_float


class TwoInputs(nn.Module):
    """Tensors and a number in, a structure out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor, times: int = 1) -> Any:
        return {"sum": self.linear(x) + y * times, "rest": (x, [y.sum(1)])}


class TwoCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = frozen(TwoInputs())
        self.second = frozen(TwoInputs())

    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor, times: int = 2) -> Any:
        one = modcache.lookup_or_run(self.first, (x, y, times), ids)
        other = modcache.lookup_or_run(self.second, (x, y), ids)
        return one, other


def test_two_calls_with_structures(counted: Any) -> None:
    model, y = TwoCalls(), torch.randn(4, 16)
    run = compiled(model)
    for growth in ({"misses": 8, "stored": 8}, {"hits_memory": 8}):
        one, other = run(X, y, IDS)
        assert torch.allclose(one["sum"], model.first(X, y, 2)["sum"], atol=1e-6)
        assert torch.equal(other["rest"][0], X)
        assert torch.allclose(other["rest"][1][0], y.sum(1))
        assert counted() == growth
    model(X, y, IDS)
    assert counted() == {"hits_memory": 8}, "eager calls find the same structures"
    for times in (3, 4, 3, 2):
        assert torch.allclose(
            run(X, y, IDS, times)[0]["sum"], model.first(X, y, times)["sum"], atol=1e-5
        )


def test_one_model_compiled_twice(counted: Any) -> None:
    model = Classifier()
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        check(compiled(model), model)
        assert counted() == growth
        torch._dynamo.reset()


def test_without_gradients(counted: Any) -> None:
    model = Classifier()
    model.encoder.requires_grad_(True)
    run = compiled(model)
    for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
        with torch.no_grad():
            check(run, model)
        assert counted() == growth
    with pytest.warns(UserWarning, match="its result requires grad"):
        run(X, IDS).sum().backward()
    assert model.encoder[0].weight.grad is not None
    assert counted() == {}


def test_inference_mode_hands_out_what_training_can_use() -> None:
    model = Classifier()
    run = compiled(model)
    with torch.inference_mode():
        check(run, model)
    run(X, IDS).sum().backward()


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool, counted: Any) -> None:
    model = Classifier("enc@1")

    def call(x: torch.Tensor, ids: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            return model(x, ids)

    run = compiled(call)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        modcache.lookup_or_run(model.encoder, X, IDS, scope="enc@1")
    counted()
    run(X, IDS)
    assert counted() == ({"hits_memory": 4} if inside else {"misses": 4, "stored": 4})


def test_modes(counted: Any) -> None:
    model = Classifier()
    run = compiled(model)
    check(run, model)
    counted()
    for mode, growth in {
        "off": {"bypassed_off": 4}, "read": {"hits_memory": 4},
        "refresh": {"misses": 4, "stored": 4}, "verify": {},
    }.items():  # fmt: skip
        with modcache.mode(mode):
            check(run, model)
        assert counted() == growth, mode


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.dropout(self.linear(x)))


def test_training_and_evaluation(counted: Any) -> None:
    model = Classifier(part=frozen(Drops()))
    run = compiled(model)
    check(run, model)
    assert counted() == {"misses": 4, "stored": 4}
    model.encoder.train()
    with pytest.warns(UserWarning, match="random numbers were drawn by aten"):
        run(X, IDS)
    assert counted() == {}
    model.encoder.eval()
    check(run, model)
    assert counted() == {"misses": 4, "stored": 4}, "the run in training moved the averages"


def keyed(module: nn.Module, x: torch.Tensor, key: Any) -> Any:
    return modcache.lookup_or_run(module, x, key) + 1


def test_keys_that_are_text_run_in_eager_mode(counted: Any) -> None:
    part = encoder()
    run = torch.compile(keyed, backend="aot_eager")
    for key in ("a", "b", "a"):
        assert torch.allclose(run(part, X, key), part(X) + 1, atol=1e-6)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}
    for _ in range(2):
        assert torch.allclose(run(part, X, ["a", "b", "c", "d"]), part(X) + 1, atol=1e-6)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 4}


def test_a_scripted_module_runs_in_eager_mode(counted: Any) -> None:
    part = torch.jit.script(encoder())
    run = torch.compile(keyed, backend="aot_eager")
    for _ in range(2):
        assert torch.allclose(run(part, X, IDS), part(X) + 1, atol=1e-6)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 4}


def test_fullgraph_and_text() -> None:
    with pytest.raises(Exception, match=r"ids, an int64 tensor \[B\]"):
        compiled(keyed)(encoder(), X, "a")


@pytest.mark.parametrize(
    ("ids", "says"), [(IDS.float(), "int64"), (torch.arange(3), "3 keys were given")]
)
def test_bad_ids(ids: torch.Tensor, says: str) -> None:
    with pytest.raises(Exception, match=says):
        compiled(Classifier())(X, ids)


class Breaks(nn.Module):
    """Cannot be compiled in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return self.linear(x)


def test_a_recording_that_fails_leaves_torchs_settings_as_they_were() -> None:
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        compiled(Classifier(part=frozen(Breaks())))(X, IDS)
    assert not torch._dynamo.config.specialize_float


def test_without_fullgraph_any_module_is_cached(counted: Any) -> None:
    for part in (frozen(Breaks()), encoder()):
        model = Classifier(part=part)
        run = torch.compile(model, backend="aot_eager")
        for growth in ({"misses": 4, "stored": 4}, {"hits_memory": 4}):
            check(run, model)
            assert counted() == growth


def test_a_compiled_encoder_inside(counted: Any) -> None:
    part = encoder()
    run = compiled(keyed)
    for module in (torch.compile(part, backend="eager"), part):
        assert torch.allclose(run(module, X, IDS), part(X) + 1, atol=1e-6)
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 4}
