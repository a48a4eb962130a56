# SPDX-License-Identifier: Apache-2.0
"""What identifies an entry: weights and attributes that change never give an old output."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from models import (
    FACES,
    FACES_WITH_ATTRIBUTES,
    Encoder,
    frozen,
    in_form,
    reloaded,
    scale_all_data,
    set_requires_grad,
)
from processes import ProcessRunner
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def step(optimizer: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[Any], None]:
    """One training step of the module, gradients included."""

    def change(module: Any) -> None:
        set_requires_grad(module, True)
        with torch.enable_grad():
            module(X).square().sum().backward()
            optimizer(module.parameters(), lr=0.1, **options).step()

    return change


def load_other_state(module: Any) -> None:
    module.load_state_dict({name: value + 1 for name, value in module.state_dict().items()})


def assign_data(module: Any) -> None:
    for parameter in module.parameters():
        parameter.data = parameter.data + 0.5


def average_in_place(module: Any) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.lerp_(torch.ones_like(parameter), 0.1)


def half_and_back(module: Any) -> None:
    module.half().float()


def replace_parameter(module: Any) -> None:
    module.linear.weight = nn.Parameter(module.linear.weight.detach() * 2, requires_grad=False)


def replace_buffer(module: Any) -> None:
    module.mean = module.mean + 1


def write_buffer(module: Any) -> None:
    module.mean.add_(1)


def swap_submodule(module: Any) -> None:
    other = frozen(nn.Linear(4, 4))
    module.linear = torch.jit.script(other) if isinstance(module, torch.jit.ScriptModule) else other


def set_float(module: Any) -> None:
    module.scale = 2.5


def set_dict(module: Any) -> None:
    module.table = {"gain": 7.0, "unused": 0.0}


def set_list(module: Any) -> None:
    module.offsets = [9.0, 0.25]


def set_plain_tensor(module: Any) -> None:
    module.shift = module.shift * 3


WEIGHT_CHANGES = {
    "sgd": step(torch.optim.SGD),
    "sgd-fused": step(torch.optim.SGD, fused=True),
    "adam": step(torch.optim.Adam),
    "adam-fused": step(torch.optim.Adam, fused=True),
    "adamw-fused": step(torch.optim.AdamW, fused=True),
    "adagrad-fused": step(torch.optim.Adagrad, fused=True),
    "load_state_dict": load_other_state,
    "data=": assign_data,
    "data.mul_": scale_all_data,
    "lerp_": average_in_place,
    "half-float": half_and_back,
}
ATTRIBUTE_CHANGES = {
    "parameter": replace_parameter,
    "buffer": replace_buffer,
    "buffer-in-place": write_buffer,
    "submodule": swap_submodule,
    "float": set_float,
    "dict": set_dict,
    "list": set_list,
    "plain-tensor": set_plain_tensor,
}
CASES = [(face, name) for face in FACES for name in WEIGHT_CHANGES]
CASES += [(face, name) for face in FACES_WITH_ATTRIBUTES for name in ATTRIBUTE_CHANGES]
# Two loaded modules are of different classes to TorchScript: it refuses the swap itself.
CASES.remove(("loaded", "submodule"))


@pytest.mark.parametrize(("face", "name"), CASES)
def test_a_change_gives_a_fresh_output(face: str, name: str, counted: Any) -> None:
    module = in_form(frozen(Encoder()), face)
    change = {**WEIGHT_CHANGES, **ATTRIBUTE_CHANGES}[name]
    with torch.no_grad():
        before = modcache.lookup_or_run(module, X, "k")
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), before)
        assert counted() == {"hits_memory": 1, "misses": 1, "stored": 1}
        change(module)
        expected = module(X)
        assert not torch.equal(expected, before), "the change changes nothing: a useless test"
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), expected)
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), expected)
        assert counted() == {"hits_memory": 1, "misses": 1, "stored": 1}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", ["adamw-fused", "data.mul_"])
def test_changes_are_seen_again_and_again(face: str, name: str) -> None:
    module = in_form(frozen(Encoder()), face)
    for _ in range(5):
        WEIGHT_CHANGES[name](module)
        with torch.no_grad():
            assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


@pytest.mark.parametrize("face", FACES)
def test_two_instances_never_share(face: str) -> None:
    one, two = (in_form(frozen(Encoder()), face) for _ in range(2))
    assert modcache.fingerprint(one) != modcache.fingerprint(two)
    modcache.lookup_or_run(one, X, "k")
    assert torch.equal(modcache.lookup_or_run(two, X, "k"), two(X))


@pytest.mark.parametrize("face", FACES_WITH_ATTRIBUTES)
def test_instances_with_equal_content_share(face: str, counted: Any) -> None:
    one = frozen(Encoder())
    two = copy.deepcopy(one)
    modcache.lookup_or_run(in_form(one, face), X, "k")
    modcache.lookup_or_run(in_form(two, face), X, "k")
    assert counted()["hits_memory"] == 1


@pytest.mark.parametrize("attribute", ["scale", "table", "shift"])
@pytest.mark.parametrize("face", FACES_WITH_ATTRIBUTES)
def test_instances_that_differ_in_one_plain_attribute_differ(face: str, attribute: str) -> None:
    one = frozen(Encoder())
    two = copy.deepcopy(one)
    other = {"scale": 2.25, "table": {"gain": 1.0, "unused": 0.5}, "shift": torch.zeros(4)}
    setattr(two, attribute, other[attribute])
    assert modcache.fingerprint(in_form(one, face)) != modcache.fingerprint(in_form(two, face))


def test_a_written_element_is_seen_after_refresh() -> None:
    for face in ("eager", "scripted"):
        module = in_form(frozen(nn.Linear(64, 64)), face)
        before = modcache.fingerprint(module)
        module.weight.detach().numpy()[17, 23] += 1
        after = modcache.refresh_fingerprint(module)
        assert after != before
        assert modcache.fingerprint(module) == after


# --- Stable where nothing changed ----------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda m: torch.jit.script(m), lambda m: torch.jit.trace(m, X)])
def test_a_scripted_module_keeps_its_fingerprint_when_saved_and_loaded(make: Any) -> None:
    module = make(frozen(Encoder()))
    before = modcache.fingerprint(module)
    module(X)
    module(X)
    assert modcache.fingerprint(module) == before
    once = reloaded(module)
    assert modcache.fingerprint(once) == before
    once(X)
    assert modcache.fingerprint(reloaded(once)) == before


def lookup_in_file(path: str, x: torch.Tensor) -> tuple[str, list[float], dict[str, int]]:
    module = torch.jit.load(path)
    modcache.reset_stats()
    output = modcache.lookup_or_run(module, x, "k")
    return modcache.fingerprint(module), output.flatten().tolist(), modcache.stats()


@pytest.mark.parametrize("make", [lambda m: torch.jit.script(m), lambda m: torch.jit.trace(m, X)])
def test_the_same_file_hits_in_another_process(
    make: Any, tmp_path: Path, processes: ProcessRunner
) -> None:
    module = make(frozen(Encoder()))
    path = str(tmp_path / "encoder.pt")
    module.save(path)
    expected = modcache.lookup_or_run(module, X, "k")
    modcache.flush()
    fingerprint, values, stats = processes.run(lookup_in_file, path, X).value
    assert fingerprint == modcache.fingerprint(module)
    assert values == expected.flatten().tolist()
    assert (stats["hits_disk"], stats["misses"]) == (1, 0)


def lookup_with_state(
    state: dict[str, torch.Tensor], x: torch.Tensor
) -> tuple[str, dict[str, int]]:
    module = frozen(Encoder())
    module.load_state_dict(state)
    modcache.lookup_or_run(module, x, "k")
    return modcache.fingerprint(module), modcache.stats()


def test_an_eager_module_with_the_same_state_hits_in_another_process(
    processes: ProcessRunner,
) -> None:
    module = frozen(Encoder())
    modcache.lookup_or_run(module, X, "k")
    modcache.flush()
    fingerprint, stats = processes.run(lookup_with_state, module.state_dict(), X).value
    assert fingerprint == modcache.fingerprint(module)
    assert (stats["hits_disk"], stats["misses"]) == (1, 0)


def test_ddp_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    rendezvous = f"file://{tmp_path}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    try:
        module = Encoder()
        wrapped = nn.parallel.DistributedDataParallel(module)
        assert modcache.fingerprint(wrapped) == modcache.fingerprint(module)
        with torch.no_grad():
            modcache.lookup_or_run(wrapped, X, "k")
            assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))
        assert modcache.stats()["hits_memory"] == 1
    finally:
        torch.distributed.destroy_process_group()


def test_a_copied_or_pickled_module_keeps_its_fingerprint() -> None:
    for module in (Encoder(), nn.LSTM(4, 4), nn.TransformerEncoderLayer(8, 2)):
        before = modcache.fingerprint(module)
        assert modcache.fingerprint(copy.deepcopy(module)) == before
        assert modcache.fingerprint(pickle.loads(pickle.dumps(module))) == before


def test_nothing_is_left_on_an_eager_module() -> None:
    module = frozen(Encoder())
    before = set(vars(module))
    modcache.lookup_or_run(module, X, "k")
    assert set(vars(module)) == before


def test_a_refresh_holds_for_calls_that_run_beside_the_hashing() -> None:
    module = torch.jit.script(frozen(nn.Linear(4000, 4000, bias=False)))
    x = torch.ones(1, 4000)
    modcache.lookup_or_run(module, x, "k")
    module.weight.data[1::2].mul_(2)
    modcache.refresh_fingerprint(module)
    expected = module(x)
    results: list[torch.Tensor] = []

    def call() -> None:
        results.append(modcache.lookup_or_run(module, x, "k"))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [torch.allclose(result, expected) for result in results] == [True] * 4
