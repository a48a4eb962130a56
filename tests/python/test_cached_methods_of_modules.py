# SPDX-License-Identifier: Apache-2.0
"""modcache.cached(module, methods=...): methods that are cached beside forward, or without it."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

Growth = Callable[[], dict[str, int]]
X, Y = torch.arange(6.0).reshape(3, 2), torch.arange(12.0).reshape(3, 4)
IDS = torch.arange(3)
ONCE = {"misses": 3, "stored": 3}
HIT = {"hits_memory": 3}


def passing_on(function: Any) -> Any:
    """What a library may put around its methods."""

    @functools.wraps(function)
    def passed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return passed


class Clip(nn.Module):
    """Two towers, as open_clip has them: forward calls both."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.texts = nn.Linear(2, 2), nn.Linear(4, 2)
        self.drop = nn.Dropout()
        self.scale = 2.0

    def encode_image(self, image: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        """Encodes images."""
        features = self.drop(self.images(image)) * self.scale
        return nn.functional.normalize(features) if normalize else features

    @passing_on
    def encode_text(self, text: torch.Tensor) -> torch.Tensor:
        return self.drop(self.texts(text))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.encode_image(image, normalize=True) @ self.encode_text(text).T

    def classify(self, image: torch.Tensor) -> torch.Tensor:
        return self.encode_image(image).argmax(1)

    @staticmethod
    def prepared(x: torch.Tensor) -> torch.Tensor:
        return x

    @classmethod
    def made(cls) -> Any:
        return cls()

    def stream(self, x: torch.Tensor) -> Any:
        yield x

    @property
    def width(self) -> int:
        return 2


class Decorated(Clip):
    """Is changed in place below."""


TOWERS = ("encode_image", "encode_text")
modcache.cached(Decorated, key="ids", methods=TOWERS)


def instance(methods: Any = TOWERS, **options: Any) -> Any:
    module = Clip().requires_grad_(False).eval()
    return modcache.cached(module, key="ids", methods=methods, **options)


def decorated() -> Any:
    return Decorated().requires_grad_(False).eval()


both = pytest.mark.parametrize("make", [instance, decorated])


def plain(module: Any) -> Any:
    """The same module without the cache."""
    made = Clip().requires_grad_(False).eval()
    made.load_state_dict(module.state_dict())
    return made


@both
def test_each_method_is_cached_under_its_own_entries(counted: Growth, make: Any) -> None:
    module = make()
    images, texts = plain(module).encode_image(X), plain(module).encode_text(Y)
    assert torch.equal(module.encode_image(X, ids=IDS), images)
    assert torch.equal(module.encode_text(Y, ids=IDS), texts)
    assert counted() == {"misses": 6, "stored": 6}
    assert torch.equal(module.encode_image(image=X, normalize=False, ids=IDS), images)
    assert torch.equal(module.encode_text(Y, ids=IDS), texts)
    assert counted() == {"hits_memory": 6}
    normalized = module.encode_image(X, normalize=True, ids=IDS)
    assert torch.equal(normalized, plain(module).encode_image(X, True))
    assert counted() == ONCE


@both
def test_the_rest_is_as_it_was(counted: Growth, make: Any) -> None:
    module = make()
    assert torch.equal(module(X, Y), plain(module)(X, Y))
    assert torch.equal(module.forward(X, Y), plain(module)(X, Y))
    assert torch.equal(module.classify(X), plain(module).classify(X))
    assert not counted()
    assert module.encode_image.__doc__ == "Encodes images."
    assert module.width == 2
    assert list(module.state_dict()) == list(Clip().state_dict())


@both
def test_entries_are_those_of_the_plain_module(counted: Growth, make: Any) -> None:
    module = make()
    module.encode_image(X, ids=IDS)
    counted()
    found = modcache.lookup_or_run(module, X, IDS, method="encode_image")
    assert torch.equal(found, plain(module).encode_image(X))
    assert counted() == HIT
    assert modcache.explain(module, X, IDS, method="encode_image").status == "hit"
    assert modcache.explain(module, X, IDS, method="forward").status == "miss"


def test_its_fingerprint_is_that_of_the_plain_module() -> None:
    module = instance(("forward", *TOWERS), freeze=True)
    assert modcache.fingerprint(module) == modcache.fingerprint(plain(module))
    handle = module.register_forward_hook(lambda *_: None)
    with_hook = modcache.fingerprint(module)
    assert with_hook != modcache.fingerprint(plain(module))  # encode_image may call the module
    handle.remove()
    assert modcache.fingerprint(module) == modcache.fingerprint(plain(module))


def test_its_fingerprint_is_that_of_a_plain_module_which_leads_to_itself() -> None:
    given: Any = Clip().eval()
    given.card = {"model": [given]}  # as a SentenceTransformer has it
    assert modcache.fingerprint(modcache.cached(given, key="ids", methods=TOWERS)) == (
        modcache.fingerprint(given)
    )


@both
def test_a_missing_key_is_named(make: Any) -> None:
    module = make()
    with pytest.raises(TypeError, match=r"encode_image\(\) needs the keyword ids="):
        module.encode_image(X)

    def evaluate(model: Any) -> torch.Tensor:
        return model.encode_image(X)  # type: ignore[no-any-return]

    with pytest.raises(TypeError, match=r"encode_image\(\) needs the keyword ids="):
        evaluate(module)
    with pytest.raises(TypeError, match=r"forward\(\) needs the keyword ids="):
        instance(("forward",))(X, Y)


def test_a_method_that_calls_another_one_is_cached_as_a_whole(counted: Growth) -> None:
    module = instance(("forward", *TOWERS))
    want = plain(module)(X, Y)
    for _ in range(2):
        assert torch.equal(module(X, Y, ids="all"), want)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    assert torch.equal(module.encode_image(X, ids=IDS), plain(module).encode_image(X))
    assert counted() == ONCE


def test_a_key_made_of_the_arguments_reaches_calls_inside(counted: Growth) -> None:
    module = modcache.cached(
        Clip().requires_grad_(False).eval(), key="content", methods=list(TOWERS)
    )
    want = plain(module)(X, Y)
    for _ in range(2):
        assert torch.equal(module(X, Y), want)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


@both
def test_weights_and_attributes_that_change_are_seen(make: Any) -> None:
    module = make()
    module.encode_image(X, ids=IDS)
    module.images.weight.data.mul_(3)
    assert torch.equal(module.encode_image(X, ids=IDS), plain(module).encode_image(X))
    module.scale = 5.0
    assert torch.equal(module.encode_image(X, ids=IDS), module.images(X) * 5)


def test_methods_of_a_frozen_module_stay_in_evaluation_mode(counted: Growth) -> None:
    module = modcache.cached(Clip(), key="ids", methods=TOWERS, freeze=True)
    nn.Sequential(module).train()
    assert torch.equal(module.encode_image(X, ids=IDS), plain(module).encode_image(X))
    module.encode_image(X, ids=IDS)
    assert counted() == {**ONCE, **HIT}


def _run_pickled(data: bytes) -> tuple[list[Any], dict[str, int]]:
    module = pickle.loads(data)
    return module.encode_image(X, ids=IDS).tolist(), modcache.stats()


@both
def test_copies_and_pickles_are_cached_alike(
    counted: Growth, processes: ProcessRunner, make: Any
) -> None:
    module = make()
    want = module.encode_image(X, ids=IDS)
    counted()
    double = copy.deepcopy(module)
    assert type(double) is type(module)
    assert torch.equal(double.encode_image(X, ids=IDS), want)
    assert counted() == HIT
    modcache.flush()
    value, stats = processes.run(_run_pickled, pickle.dumps(module)).value
    assert value == want.tolist()
    assert (stats["hits_disk"], stats["misses"]) == (3, 0)


class Inherits(Decorated):
    pass


class Overrides(Decorated):
    def encode_image(  # type: ignore[override]
        self, image: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        return super().encode_image(image, ids=ids) * 10


def test_subclasses_inherit_and_override_cached_methods(counted: Growth) -> None:
    for cls, factor in ((Inherits, 1), (Overrides, 10)):
        module: Any = cls().requires_grad_(False).eval()
        want = plain(module).encode_image(X) * factor
        counted()
        for _ in range(2):
            assert torch.equal(module.encode_image(X, ids=IDS), want)
        assert counted() == {**ONCE, **HIT}


def test_fill_takes_the_bound_method(counted: Growth) -> None:
    module = instance()
    assert modcache.fill(module.encode_image, [(X, IDS)], progress=False).runs == 3
    counted()
    assert torch.equal(module.encode_image(X, ids=IDS), plain(module).encode_image(X))
    assert counted() == HIT
    with pytest.raises(TypeError, match=r"encode_image, encode_text is cached .*module\.encode_im"):
        modcache.fill(module, [(X, IDS)], progress=False)
    with pytest.raises(TypeError, match=r"pass that of an object"):
        modcache.fill(Decorated.encode_image, [(X, IDS)], progress=False)


def test_fill_of_forward_takes_it_bound_or_not(counted: Growth) -> None:
    module = modcache.cached(nn.Linear(2, 2).requires_grad_(False).eval(), key="ids")
    modcache.fill(module.forward, [(X, IDS)], progress=False)
    assert modcache.fill(module, [(X, IDS)], progress=False).runs == 0
    assert counted() == {**ONCE, **HIT}


class Scriptable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x) + 1


@pytest.mark.parametrize("methods", [("encode",), ("encode", "forward")])
def test_scripted_code_runs_other_methods_uncached(methods: Any, counted: Growth) -> None:
    module: Any = Scriptable().requires_grad_(False).eval()
    want = module(X)
    cached = modcache.cached(module, key="ids", methods=methods, scope="scriptable@1")
    scripted = torch.jit.script(cached)
    if "forward" in methods:
        for _ in range(2):
            assert torch.equal(scripted(X, IDS), want)
        assert counted() == {**ONCE, **HIT}
        assert torch.equal(cached(X, ids=IDS), want)
        assert counted() == HIT
    else:
        assert torch.equal(scripted(X), want)
        assert not counted()


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.clip = instance()

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.clip.encode_image(x, ids=ids) + 1


def test_exported_and_compiled_code_looks_methods_up(counted: Growth) -> None:
    parent = Parent().eval()
    want = plain(parent.clip).encode_image(X) + 1
    for make in (
        lambda: torch.export.export(parent, (X, IDS)).module(),
        lambda: torch.compile(parent, fullgraph=True, backend="eager"),
    ):
        program = make()
        counted()
        for _ in range(2):
            assert torch.equal(program(X, IDS), want)
        grown = counted()
        assert grown.get("hits_memory", 0) >= 3, grown


@pytest.mark.parametrize(
    ("methods", "error", "says"),
    [
        (("encode_imag",), AttributeError, r"Clip has no method 'encode_imag'"),
        (("prepared",), TypeError, r"Clip\.prepared cannot .*it is a staticmethod"),
        (("made",), TypeError, r"Clip\.made cannot .*it is a classmethod"),
        (("width",), TypeError, r"Clip\.width cannot .*it is a property"),
        (("train",), TypeError, r"Clip\.train cannot .*torch\.nn\.Module itself"),
        (("__init__",), TypeError, r"Clip\.__init__ cannot .*torch\.nn\.Module itself"),
        (("stream",), TypeError, r"stream is a generator"),
        ("encode_image", TypeError, r"methods must be a tuple .*'encode_image'"),
        ((), TypeError, r"methods must be a tuple"),
        ((1,), TypeError, r"methods must be a tuple"),
    ],
)
def test_mistakes_are_said_at_once(methods: Any, error: Any, says: str) -> None:
    for target in (Clip(), type("Clip", (Clip,), {"__qualname__": "Clip"})):
        with pytest.raises(error, match=says):
            modcache.cached(target, key="ids", methods=methods)


def test_methods_are_for_modules() -> None:
    with pytest.raises(TypeError, match=r"methods= is for modules, but passing_on is none"):
        modcache.cached(passing_on, key="function", methods=("encode",))


def test_a_method_that_was_replaced_on_the_instance_is_refused() -> None:
    module: Any = Clip()
    module.encode_image = lambda image: image
    with pytest.raises(TypeError, match="the encode_image of this Clip was replaced"):
        modcache.cached(module, key="ids", methods=TOWERS)
    assert torch.equal(
        modcache.cached(module.eval(), key="ids").encode_image(X), X
    )  # forward is cached
