# SPDX-License-Identifier: Apache-2.0
"""cache::lower and modcache.freeze: the same values, entries, rules and modes as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from growth import bypassed
from lowered_models import FROZEN_ROADS, ROADS, Calls, Road, calls_of, scripted
from models import Encoder, Outer, reloaded
from processes import ProcessRunner
from torch import nn

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(params=ROADS, ids=lambda name: name.replace(", ", "-"))
def road(request: pytest.FixtureRequest) -> Road:
    return ROADS[request.param]


@pytest.fixture(params=FROZEN_ROADS, ids=lambda name: name.replace(", ", "-"))
def frozen_road(request: pytest.FixtureRequest) -> Road:
    return ROADS[request.param]


def names_of_operators(run: Any) -> list[str]:
    with torch.autograd.profiler.profile() as profile:
        run()
    return [event.name for event in profile.function_events]


class TestEveryForm:
    def test_a_lowered_model_hits_what_the_scripted_one_stored(
        self, road: Road, counted: Any
    ) -> None:
        model = scripted(Calls())
        for method, arguments in calls_of(X):
            getattr(model, method)(*arguments)
        stored = counted()["stored"]
        served = _with_methods(road, model)
        for method, arguments in calls_of(X):
            expected = getattr(model, method)(*arguments)
            counted()
            found = getattr(served, method)(*arguments)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            grown = counted()
            assert set(grown) == {"hits_memory"}, method
        assert stored > 0

    def test_the_scripted_model_hits_what_the_lowered_one_stored(
        self, road: Road, counted: Any
    ) -> None:
        model = scripted(Calls())
        served = _with_methods(road, model)
        for method, arguments in calls_of(X):
            found = getattr(served, method)(*arguments)
            assert counted()["stored"] > 0, method
            expected = getattr(model, method)(*arguments)
            assert set(counted()) == {"hits_memory"}, method
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            with modcache.mode("off"):
                torch.testing.assert_close(found, getattr(model, method)(*arguments))
            counted()

    def test_another_process_hits(self, processes: ProcessRunner, tmp_path: Path) -> None:
        model = scripted(Outer(Encoder()))
        expected = model(X, "k")
        modcache.flush()
        path = tmp_path / "served.pt"
        modcache.freeze(model).save(path)
        found, hits = processes.run(_serve, str(path), modcache.settings()["dir"], X).value
        assert found == expected.tolist()
        assert hits == 1

    def test_what_a_process_that_loads_it_computes_is_stored(
        self, road: Road, processes: ProcessRunner, tmp_path: Path
    ) -> None:
        path = tmp_path / "served.pt"
        road(scripted(Outer(LastState()))).save(path)
        assert processes.run(_store, str(path), X).value == 1


class LastState(nn.Module):
    """Its weights are also in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x.unsqueeze(0))[1][0]


def _store(path: str, x: torch.Tensor) -> int:
    torch.jit.load(path)(x, "k")
    return modcache.stats()["stored"]


def _serve(path: str, directory: str, x: torch.Tensor) -> tuple[list[list[float]], int]:
    modcache.configure(dir=directory)
    found = torch.jit.load(path)(x, "k")
    # As plain numbers: a tensor would lie in the memory of a process that is gone.
    return found.tolist(), modcache.stats()["hits_disk"]


def _with_methods(road: Road, model: Any) -> Any:
    """torch's own freeze and optimize_for_inference keep only the methods that they are told."""
    others = [name for name, _ in calls_of(X) if name != "forward"]
    if road is ROADS["lowered, torch.jit.freeze"]:
        return torch.jit.freeze(ROADS["lowered"](model), preserved_attrs=others)
    if road is ROADS["lowered, optimize_for_inference"]:
        return torch.jit.optimize_for_inference(ROADS["lowered"](model), other_methods=others)
    if road is ROADS["frozen, optimize_for_inference"]:
        return torch.jit.optimize_for_inference(modcache.freeze(model), other_methods=others)
    return road(model)


class TestRows:
    class RefusesNan(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not bool(x.isnan().any())
            return x * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = TestRows.RefusesNan()

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return modcache.lookup_or_run(self.encoder, x, ids)

    def test_only_the_missing_rows_are_run(self, road: Road, counted: Any) -> None:
        modcache.configure(match="none")  # rows that must not be run are no input of the module
        served = road(scripted(self.Model()))
        served(X[:2], torch.tensor([0, 1]))
        counted()
        with_nan = torch.cat([torch.full((2, 4), torch.nan), X[2:], X[2:]])
        found = served(with_nan, torch.tensor([0, 1, 2, 2]))
        assert torch.equal(found, torch.cat([X, X[2:]]) * 2)
        assert counted() == {"hits_memory": 3, "misses": 1, "stored": 1}

    def test_an_empty_batch(self, road: Road, counted: Any) -> None:
        served = road(scripted(self.Model()))
        assert served(X[:0], torch.arange(0)).shape == (0, 4)
        assert counted() == {}

    def test_a_count_of_keys_that_is_not_that_of_rows(self, road: Road) -> None:
        served = road(scripted(self.Model()))
        with pytest.raises(RuntimeError, match="2 keys"):
            served(X, torch.arange(2))


class TestFrozen:
    def test_a_hit_does_not_run_the_encoder(self, frozen_road: Road) -> None:
        served = frozen_road(scripted(Outer(nn.Sequential(nn.Conv1d(3, 3, 1), nn.Flatten(0)), 12)))
        served(X, "k")
        names = names_of_operators(lambda: served(X, "k"))
        assert "cache::_must_run" in names
        assert not [name for name in names if "conv" in name]

    @pytest.mark.parametrize("encoder", [nn.Linear(4, 4), nn.BatchNorm1d(4)], ids=str)
    def test_the_scope_is_a_constant(self, encoder: nn.Module) -> None:
        model = modcache.freeze(scripted(Outer(encoder)))
        kinds = {node.kind() for node in model.graph.nodes()}
        assert "cache::_lowered_call" in kinds
        assert not kinds & {"cache::_identity", "prim::GetAttr"}

    def test_the_model_itself_stays_as_it_is(self, counted: Any) -> None:
        model = scripted(Outer(Encoder()))
        before = model.code
        modcache.freeze(model)
        assert model.code == before
        model(X, "k")
        assert counted() == {"misses": 1, "stored": 1}

    def test_weights_that_changed_between_lowering_and_freezing(self, counted: Any) -> None:
        model = scripted(Outer(Encoder()))
        old = model(X, "k")
        torch.ops.cache.lower(model)
        with torch.no_grad():
            model.encoder.linear.weight.add_(1)
        served = torch.jit.freeze(model)
        with modcache.mode("off"):
            expected = served(X, "k")
        assert torch.equal(served(X, "k"), expected)
        assert not torch.equal(expected, old)

    def test_two_modules_of_one_class_do_not_share(self, road: Road, counted: Any) -> None:
        class Both(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = Outer(Encoder())
                self.b = Outer(Encoder())

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return self.a(x, "k"), self.b(x, "k")

        both = scripted(Both())
        expected = both(X)
        assert counted()["stored"] == 2
        found = road(both)(X)
        assert counted() == {"hits_memory": 2}
        torch.testing.assert_close(found, expected)
        assert not torch.equal(found[0], found[1])

    def test_constant_input_and_key(self, counted: Any) -> None:
        class Constant(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder = Encoder()
                self.x = X.clone()

            def forward(self) -> torch.Tensor:
                return modcache.lookup_or_run(self.encoder, self.x, "k")

        model = scripted(Constant())
        expected = model()
        served = reloaded(modcache.freeze(model))
        for _ in range(3):
            assert torch.equal(served(), expected)
        assert counted() == {"misses": 1, "stored": 1, "hits_memory": 3}

    def test_the_same_call_twice_is_two_calls(self, road: Road, counted: Any) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder = Encoder()

            def features(self, x: torch.Tensor) -> torch.Tensor:
                return modcache.lookup_or_run(self.encoder, x, "k")

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                first = self.features(x)
                first.add_(1)
                return first, self.features(x)

        served = road(scripted(Twice()))
        for _ in range(2):
            first, second = served(X)
            assert torch.equal(first, second + 1)
        assert counted() == {"misses": 1, "stored": 1, "hits_memory": 3}


class TestMistakes:
    def test_a_model_that_was_frozen_and_not_lowered(self) -> None:
        class Untouched(Outer):  # lowering one module lowers all of its TorchScript class
            pass

        model = torch.jit.freeze(scripted(Untouched(Encoder())))
        with pytest.raises(RuntimeError, match=r"modcache\.freeze\(scripted\).*cache\.lower"):
            model(X, "k")

    def test_an_eager_model(self) -> None:
        with pytest.raises(TypeError, match="Script or trace it first"):
            modcache.freeze(Outer(Encoder()))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="got int"):
            modcache.freeze(3)  # type: ignore[arg-type]
        with pytest.raises((TypeError, RuntimeError), match="TorchScript module"):
            torch.ops.cache.lower("model")

    def test_training_mode(self) -> None:
        with pytest.raises(RuntimeError, match=r"scripted\.eval\(\)"):
            modcache.freeze(torch.jit.script(Outer(Encoder())))

    def test_an_unknown_attribute_to_keep(self) -> None:
        with pytest.raises(RuntimeError, match="Unknown name"):
            modcache.freeze(scripted(Outer(Encoder())), ["nothing"])

    def test_calls_that_cannot_be_lowered_are_all_named_and_nothing_changes(self) -> None:
        class Hooked(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        def hook(self: Any, input: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
            return output + 1

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.good = Encoder()
                self.hooked = Hooked()
                self.hooked.register_forward_hook(hook)

            def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
                y = modcache.lookup_or_run(self.good, x, key)
                return modcache.lookup_or_run(self.hooked, y, key)

            @torch.jit.export
            def other(self, x: torch.Tensor, method: str) -> torch.Tensor:
                return modcache.lookup_or_run(self.good, x, "k", method=method)

        model = scripted(Model())
        before = model.code
        with pytest.raises(RuntimeError) as raised:
            torch.ops.cache.lower(model)
        message = str(raised.value)
        assert "in forward of Model: Hooked has TorchScript hooks" in message
        assert "in other of Model: the name of the method is no constant" in message
        assert model.code == before


def test_a_frozen_model_is_frozen_once_more(counted: Any) -> None:
    model = scripted(Outer(Encoder()))
    expected = model(X, "k")
    counted()
    again = modcache.freeze(reloaded(modcache.freeze(model)))
    assert torch.equal(again(X, "k"), expected)
    assert counted() == {"hits_memory": 1}


def test_weights_that_change_after_freezing_stay_out_of_the_frozen_model(counted: Any) -> None:
    """Else it would go on to store what the new ones give, under the scope of the old ones."""
    model = scripted(Outer(Encoder()))
    expected = model(X, "k")
    frozen = modcache.freeze(model)
    with torch.no_grad():
        model.encoder.linear.weight.add_(1)
        model.encoder.mean.add_(1)
    torch.testing.assert_close(frozen(X, "another"), expected)
    counted()
    assert torch.equal(frozen(X, "k"), expected)
    assert counted() == {"hits_memory": 1}


def test_what_torch_froze_is_stored_under_no_scope_but_its_own(counted: Any) -> None:
    """Constants of torch.jit.freeze are the model's own memory."""
    model = scripted(Outer(Encoder()))
    torch.ops.cache.lower(model)
    frozen = torch.jit.freeze(model)
    with modcache.mode("off"):
        expected = model(X, "k")
    counted()
    with torch.no_grad():
        model.encoder.linear.weight.add_(1)
        frozen(X, "k")
        assert bypassed(counted()) == {"bypassed_impure": 1}
        model.encoder.linear.weight.sub_(1)
    torch.testing.assert_close(model(X, "k"), expected)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512, 512))
        self.again = self.weight
        self.plain = {"gains": [torch.ones(4)]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.sum() * self.again.sum() * self.plain["gains"][0]


def test_a_tensor_in_several_attributes_is_frozen_once(tmp_path: Path, counted: Any) -> None:
    model = scripted(Outer(Tied()))
    expected = model(X, "k")
    model.save(tmp_path / "scripted.pt")
    modcache.freeze(model).save(tmp_path / "frozen.pt")
    sizes = [(tmp_path / name).stat().st_size for name in ("scripted.pt", "frozen.pt")]
    assert sizes[1] < 1.5 * sizes[0]
    counted()
    assert torch.equal(reloaded(modcache.freeze(model))(X, "k"), expected)
    assert counted() == {"hits_memory": 1}
