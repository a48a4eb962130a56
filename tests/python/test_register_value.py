# SPDX-License-Identifier: Apache-2.0
"""Values of one's own classes as results, samples and arguments: ``modcache.register_value``."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import modcache
import numpy as np
import pytest
import torch
from modcache._call import registered
from models import Python
from torch import nn

X = torch.arange(24.0).reshape(3, 8)
KEYS = ["a", "b", "c"]


class Gaussian:
    """What diffusers' DiagonalGaussianDistribution is: all of it follows from its parameters."""

    def __init__(self, parameters: torch.Tensor, deterministic: bool = False) -> None:
        self.parameters = parameters
        self.mean, logvar = parameters.chunk(2, dim=1)
        self.deterministic = deterministic
        self.std = torch.exp(0.5 * logvar.clamp(-30.0, 20.0))
        if deterministic:
            self.std = torch.zeros_like(self.mean)

    def sample(self) -> torch.Tensor:
        return self.mean + self.std * torch.randn_like(self.mean)


class Encoded(dict):  # type: ignore[type-arg]
    """What diffusers' AutoencoderKLOutput is: a dict with attributes, which pytree knows."""

    def __init__(self, latent_dist: Any) -> None:
        super().__init__(latent_dist=latent_dist)
        self.latent_dist = latent_dist


torch.utils._pytree.register_pytree_node(
    Encoded,
    lambda value: (list(value.values()), list(value)),
    lambda values, names: Encoded(**dict(zip(names, values, strict=True))),
)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)

    def encode(self, x: torch.Tensor, deterministic: bool = False) -> Encoded:
        return Encoded(Gaussian(self.linear(x), deterministic))


@pytest.fixture
def with_gaussian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "_registered", {})
    modcache.register_value(
        Gaussian,
        lambda value: ([value.parameters], {"deterministic": value.deterministic}),
        lambda children, context: Gaussian(*children, context["deterministic"]),
    )


@pytest.mark.usefixtures("with_gaussian")
@pytest.mark.parametrize("key", ["k", KEYS], ids=["whole", "rows"])
def test_a_distribution_comes_back_and_each_step_still_samples(
    key: Any, reopen: Callable[[], None], counted: Any
) -> None:
    vae = Autoencoder().requires_grad_(False).eval()
    expected = vae.encode(X).latent_dist
    samples = []
    for round_ in range(3):
        if round_ == 2:
            reopen()
        found = modcache.lookup_or_run(vae, X, key, method="encode")
        assert type(found) is Encoded
        assert type(found.latent_dist) is Gaussian
        assert torch.equal(found.latent_dist.mean, expected.mean)
        assert torch.equal(found.latent_dist.std, expected.std)
        samples.append(found.latent_dist.sample())
    assert not torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[1], samples[2])
    count = 1 if key == "k" else 3
    assert counted() == {
        "misses": count, "stored": count, "hits_memory": count, "hits_disk": count
    }  # fmt: skip


@pytest.mark.usefixtures("with_gaussian")
def test_the_context_comes_back() -> None:
    vae = Autoencoder().requires_grad_(False).eval()
    for _ in range(2):
        found = modcache.lookup_or_run(vae, (X, True), KEYS, method="encode").latent_dist
        assert found.deterministic is True
        assert torch.equal(found.sample(), found.mean)


@pytest.mark.usefixtures("with_gaussian")
def test_a_distribution_with_a_graph_is_not_cached(counted: Any) -> None:
    vae = Autoencoder()
    for _ in range(2):
        found = modcache.lookup_or_run(vae, X, KEYS, method="encode")
        assert found.latent_dist.parameters.requires_grad
    assert "stored" not in counted()


def test_without_a_registration_it_runs_uncached_and_says_so(counted: Any, capfd: Any) -> None:
    vae = Autoencoder().requires_grad_(False).eval()
    modcache.lookup_or_run(vae, X, "k", method="encode")
    assert counted() == {"bypassed_type": 1}
    modcache.flush()
    assert "test_register_value.Gaussian" in capfd.readouterr().err


@pytest.mark.usefixtures("with_gaussian")
def test_a_process_that_does_not_know_the_class_runs_the_module(
    monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    vae = Autoencoder().requires_grad_(False).eval()
    modcache.lookup_or_run(vae, X, "k", method="encode")
    monkeypatch.setattr(registered, "_registered", {})
    found = modcache.lookup_or_run(vae, X, "k", method="encode")
    assert torch.equal(found.latent_dist.mean, vae.encode(X).latent_dist.mean)


class Pair:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class Named(NamedTuple):
    first: Any


@pytest.fixture
def with_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "_registered", {})
    modcache.register_value(
        Pair, lambda pair: ((pair.first, pair.second), None), lambda parts, _: Pair(*parts)
    )


@pytest.mark.usefixtures("with_pair")
def test_a_sample_of_a_registered_class(counted: Any) -> None:
    class Samples:
        def __getitem__(self, index: int) -> Any:
            return [Pair(X[index], Pair(b"raw", X.numpy()))]

    dataset: Any = modcache.CachedDataset(Samples(), scope="s")
    for _ in range(2):
        pair = dataset[0][0]
        assert type(pair) is type(pair.second) is Pair
        assert torch.equal(pair.first, X[0])
        assert pair.second.first == b"raw"
        assert (pair.second.second == X.numpy()).all()
    assert counted()["hits_memory"] == 1


@pytest.mark.usefixtures("with_pair")
def test_an_argument_of_a_registered_class_has_rows(counted: Any) -> None:
    module = Python(lambda pair: pair.first * pair.second[0])
    few = Pair(X[:1], (X[:1], 1))
    assert torch.equal(modcache.lookup_or_run(module, few, ["a"], scope="s"), X[:1] ** 2)
    for _ in range(2):
        found = modcache.lookup_or_run(module, Pair(X, (X, 1)), KEYS, scope="s")
        assert torch.equal(found, X**2)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 4}
    modcache.lookup_or_run(module, Pair(X, (X, 2)), KEYS, scope="s")
    assert counted() == {"misses": 3, "stored": 3}
    modcache.lookup_or_run(module, Pair(X + 1, (X, 2)), KEYS, scope="s")
    assert counted()["key_conflicts"] == 3
    trained = X.clone().requires_grad_()
    assert modcache.lookup_or_run(module, Pair(trained, (X, 2)), KEYS, scope="s").requires_grad


@pytest.mark.usefixtures("with_pair")
def test_content_keys_of_a_registered_class() -> None:
    pair = Pair(X, (X, 1))
    assert modcache.content_key(pair) == modcache.content_key(Pair(X.clone(), (X, 1)))
    others = [Pair(X, (X, 2)), Pair(X + 1, (X, 1)), (X, (X, 1)), [X, (X, 1)]]
    keys = {modcache.content_key(other) for other in [pair, *others]}
    assert len(keys) == 5
    rows = modcache.content_keys(pair)
    assert rows == [modcache.content_key(Pair(row, (row, 1))) for row in X]
    forged = ("modcache:object", "test_register_value.Pair", "null", X, (X, 1))
    assert modcache.content_key(pair) != modcache.content_key(forged)
    with pytest.raises(TypeError, match=r"Gaussian, which has no content key"):
        modcache.content_key([Gaussian(X)])


def _lists(value: Any) -> Any:
    return [value.first], (1, 2)


FAULTY: dict[str, tuple[Any, Any]] = {
    "a context that JSON changes": (_lists, lambda parts, context: Pair(*parts, context)),
    "flatten raises": (lambda value: 1 / 0, lambda parts, context: Pair(*parts, 1)),
    "unflatten raises": (lambda value: ([], None), lambda parts, context: Pair(*parts)),
    "another class": (lambda value: ([value.first], None), lambda parts, context: parts),
    "no pair": (lambda value: [value.first], lambda parts, context: Pair(*parts, 1)),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_value_that_would_come_back_wrong_is_not_stored(
    name: str, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    monkeypatch.setattr(registered, "_registered", {})
    modcache.register_value(Pair, *FAULTY[name])
    module = Python(lambda x: Pair(x, 1))
    found = modcache.lookup_or_run(module, X, "k", scope="s")
    assert torch.equal(found.first, X)
    assert counted() == {"bypassed_type": 1}
    dataset: Any = modcache.CachedDataset([Pair(1, 1)], scope="t")
    with pytest.raises(TypeError, match=r"sample is a test_register_value\.Pair"):
        dataset[0]
    modcache.lookup_or_run(Python(lambda pair: pair.first), Pair(X, 1), "k", scope="s")
    assert counted() == {"bypassed_type": 1}


def test_a_class_of_a_function_is_found_by_its_registration(
    monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    class Local(Pair):
        pass

    monkeypatch.setattr(registered, "_registered", {})
    module = Python(lambda x: Local(x, 1))
    modcache.lookup_or_run(module, X, "k", scope="s")
    assert counted() == {"bypassed_type": 1}
    modcache.register_value(
        Local, lambda pair: ([pair.first], None), lambda parts, _: Local(*parts, 1)
    )
    for _ in range(2):
        found = modcache.lookup_or_run(module, X, "k", scope="s")
        assert type(found) is Local
        assert torch.equal(found.first, X)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


@pytest.mark.parametrize("key", ["k", KEYS], ids=["whole", "rows"])
def test_functions_of_other_code_do_not_put_together_what_is_stored(
    key: Any,
    monkeypatch: pytest.MonkeyPatch,
    reopen: Callable[[], None],
    counted: Any,
    capfd: Any,
) -> None:
    monkeypatch.setattr(registered, "_registered", {})
    module = type(f"Pairs{type(key).__name__}", (Python,), {})(lambda x: Pair(x, x + 1))
    ways: Any = {
        "first": (lambda pair: ([pair.first, pair.second], None), lambda parts, _: Pair(*parts)),
        "then": (
            lambda pair: ([pair.second, pair.first], None),
            lambda parts, _: Pair(parts[1], parts[0]),
        ),
    }

    def look_up(way: str) -> None:
        reopen()
        modcache.register_value(Pair, *ways[way])
        found = modcache.lookup_or_run(module, X, key, scope="s")
        assert torch.equal(found.first, X)
        assert torch.equal(found.second, X + 1)
        modcache.flush()

    look_up("first")
    look_up("then")
    assert "refresh" in capfd.readouterr().err
    count = 1 if key == "k" else len(KEYS)
    assert counted()["bypassed_type"] == count
    with modcache.mode("refresh"):
        look_up("then")
    counted()
    look_up("then")
    assert counted() == {"hits_disk": count}


def test_a_named_tuple_may_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "_registered", {})
    modcache.register_value(
        Named, lambda value: ([value.first], "more"), lambda parts, context: Named(*parts)
    )
    module = Python(lambda x: Named(x * 2))
    for _ in range(2):
        found = modcache.lookup_or_run(module, X, KEYS, scope="s")
        assert type(found) is Named
        assert torch.equal(found.first, X * 2)
    twice = Python(lambda named: named.first * 2)
    for _ in range(2):
        modcache.lookup_or_run(twice, (Named(X[1:2]),), ["b"], scope="t")
        assert torch.equal(modcache.lookup_or_run(twice, (Named(X),), KEYS, scope="t"), X * 2)


MISTAKES: dict[str, tuple[tuple[Any, ...], str]] = {
    "an object": ((1, id, id), "cls must be a class, but got int"),
    "a dict": ((dict, id, id), "dict cannot be registered"),
    "a tensor": ((nn.Parameter, id, id), "Parameter cannot be registered: tensors"),
    "an array": ((np.ndarray, id, id), "ndarray cannot be registered: .* NumPy arrays"),
    "a NumPy scalar": ((np.float32, id, id), "float32 cannot be registered"),
    "flatten": ((Pair, 1, id), "flatten must be a function, but got int"),
    "unflatten": ((Pair, id, None), "unflatten must be a function, but got NoneType"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    arguments, says = MISTAKES[name]
    with pytest.raises(TypeError, match=says):
        modcache.register_value(*arguments)


@pytest.mark.usefixtures("with_pair")
def test_it_is_read_from_disk(counted: Any) -> None:
    modcache.lookup_or_run(Python(lambda x: Pair(x, x * 2)), X, KEYS, scope="s")
    modcache.flush()
    modcache.clear(tier="memory")
    found = modcache.lookup_or_run(Python(lambda x: 1 / 0), X, KEYS, scope="s")
    assert torch.equal(found.second, X * 2)
    assert counted()["hits_disk"] == 3


DIFFUSERS = "diffusers.models.autoencoders.vae"


@pytest.fixture
def diffusers_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class under the name of diffusers' own, which is known without a registration."""
    members = {"__init__": Gaussian.__init__, "sample": Gaussian.sample, "__module__": DIFFUSERS}
    kind = type("DiagonalGaussianDistribution", (), members)
    for name in ("diffusers", "diffusers.models", "diffusers.models.autoencoders", DIFFUSERS):
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
    setattr(sys.modules[DIFFUSERS], kind.__name__, kind)
    return kind


def test_diffusers_distribution_is_known_by_its_name(diffusers_class: Any, counted: Any) -> None:
    module = Python(lambda x: [diffusers_class(x), diffusers_class(x, True)])
    for _ in range(2):
        random, fixed = modcache.lookup_or_run(module, X, KEYS, scope="s")
        assert type(random) is diffusers_class
        assert torch.equal(random.std, Gaussian(X).std)
        assert torch.equal(fixed.sample(), fixed.mean)
        assert not torch.equal(random.sample(), random.sample())
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


def test_a_distribution_that_was_changed_is_not_stored(diffusers_class: Any, counted: Any) -> None:
    def changed(x: torch.Tensor) -> Any:
        made = diffusers_class(x)
        made.mean = made.mean * 2
        return made

    modcache.lookup_or_run(Python(changed), X, KEYS, scope="s")
    assert counted() == {"bypassed_type": 3}
