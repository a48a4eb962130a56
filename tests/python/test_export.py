# SPDX-License-Identifier: Apache-2.0
"""lookup_or_run in a program that torch.export made."""

from __future__ import annotations

import io
import warnings
from typing import Any

import modcache
import pytest
import torch
from models import frozen
from recorded_models import IDS, Classifier, OneKey, Scripted, X, count_of, encoder, exported
from torch import nn

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


def products(run: Any) -> int:
    """How many matrix products a call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(X, IDS)
    return sum(event.count for event in profile.key_averages() if event.key == "aten::addmm")


@STRICT
@pytest.mark.parametrize("scope", ["", "enc@1"])
def test_rows(strict: bool, scope: str, counted: Any) -> None:
    model = Classifier(scope)
    program = exported(model, X, IDS, strict=strict)
    assert counted() == {}
    run = program.module()
    first = run(X, IDS)
    assert torch.allclose(first, model.head(model.encoder(X)), atol=1e-6)
    assert counted() == {"misses": 4, "stored": 4}
    assert torch.equal(run(X, IDS), first)
    assert counted() == {"hits_memory": 4}
    more = torch.cat([X, X + 1])[[0, 1, 2, 3, 4, 5, 6, 6]]
    found = run(more, torch.tensor([0, 1, 2, 3, 7, 8, 9, 9]))
    want = model.head(model.encoder(more))
    assert torch.allclose(found, want, atol=1e-6)
    assert counted() == {"hits_memory": 5, "misses": 3, "stored": 3}


@STRICT
def test_a_hit_does_not_run_the_encoder(strict: bool) -> None:
    run = exported(Classifier(), X, IDS, strict=strict).module()
    assert [products(run) for _ in range(2)] == [2, 1], "the head alone"


@STRICT
def test_one_encoder_is_in_the_program(strict: bool) -> None:
    program = exported(Classifier(), X, IDS, strict=strict)
    for name, count in {
        "aten.linear": 2, "aten.relu": 1, "cache._probe": 1, "cache._fetch": 1, "cache._put": 1,
    }.items():  # fmt: skip
        assert count_of(program, name) == count, name
    decomposed = program.run_decompositions()
    assert count_of(decomposed, "aten.addmm") == 2
    assert count_of(decomposed, "cache._put") == 1


@STRICT
def test_what_was_found_keeps_its_bits(strict: bool, counted: Any) -> None:
    model = Classifier("enc@1")
    modcache.configure(match="none")
    run = exported(model, X, IDS, strict=strict).module()
    stored = modcache.lookup_or_run(model.encoder, X[:2] * 3, IDS[:2], scope="enc@1")
    counted()
    found = run(X, IDS)
    assert counted() == {"hits_memory": 2, "misses": 2, "stored": 2}
    assert torch.allclose(found[:2], model.head(stored), atol=1e-6), "another input made them"
    assert torch.allclose(found[2:], model.head(model.encoder(X[2:])), atol=1e-6)


@STRICT
def test_save_and_load(strict: bool, counted: Any, reopen: Any) -> None:
    program = exported(Classifier(), X, IDS, strict=strict)
    want = program.module()(X, IDS)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    reopen()
    counted()
    assert torch.allclose(loaded(X, IDS), want, atol=1e-6)
    assert counted() == {"hits_disk": 4}


@STRICT
@pytest.mark.parametrize("rows", [0, 1, 3, 64])
def test_any_number_of_rows(strict: bool, rows: int, counted: Any) -> None:
    model = Classifier()
    run = exported(model, X, IDS, strict=strict).module()
    x, ids = torch.randn(rows, 8), torch.arange(rows)
    for growth in ({"misses": rows, "stored": rows}, {"hits_memory": rows}):
        assert torch.allclose(run(x, ids), model.head(model.encoder(x)), atol=1e-6)
        assert counted() == {name: count for name, count in growth.items() if count}


@STRICT
def test_it_shares_with_the_scripted_form(strict: bool, counted: Any) -> None:
    model = Classifier()
    run = exported(model, X, IDS, strict=strict).module()
    scripted = torch.jit.script(Scripted(model.encoder, model.head))
    for one, other in ((run, scripted), (scripted, run)):
        modcache.clear()
        one(X, IDS)
        counted()
        other(X, IDS)
        assert counted() == {"hits_memory": 4}


@STRICT
def test_a_scope_shares_with_every_form(strict: bool, counted: Any) -> None:
    model = Classifier("enc@1")
    run = exported(model, X, IDS, strict=strict).module()
    run(X, IDS)
    scripted = torch.jit.script(model.encoder)
    counted()
    for form in (model.encoder, scripted):
        modcache.lookup_or_run(form, X, ["0", "1", "2", "3"], scope="enc@1")
        assert counted() == {"hits_memory": 4}


class Eager(nn.Module):
    """TorchScript does not take it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x: Any, **options: Any) -> Any:
        return self.linear(x)


@STRICT
def test_what_cannot_be_scripted_shares_with_its_eager_form(strict: bool, counted: Any) -> None:
    model = Classifier(part=frozen(Eager()))
    exported(model, X, IDS, strict=strict).module()(X, IDS)
    counted()
    modcache.lookup_or_run(model.encoder, X, IDS)
    assert counted() == {"hits_memory": 4}


@STRICT
@pytest.mark.parametrize("scope", ["", "enc@1"])
def test_weights_that_change_after_the_export(strict: bool, scope: str, counted: Any) -> None:
    model = Classifier(scope)
    program = exported(model, X, IDS, strict=strict)
    run = program.module()
    run(X, IDS)
    counted()
    with torch.no_grad():
        for parameter in run.encoder.parameters():
            parameter.mul_(2)
    found = run(X, IDS)
    if scope:
        assert counted() == {"hits_memory": 4}, "the name is the caller's"
        return
    assert counted() == {"misses": 4, "stored": 4}
    assert torch.allclose(found, model.head(2 * encoder_of(run, X)), atol=1e-5)


def encoder_of(run: Any, x: torch.Tensor) -> torch.Tensor:
    linear = run.encoder.get_submodule("0")
    return torch.relu(x @ (linear.weight / 2).T + linear.bias / 2)


@STRICT
def test_one_key_for_the_whole_input(strict: bool, counted: Any) -> None:
    part = encoder()
    run = exported(OneKey(part), X, strict=strict).module()
    first = run(X)
    assert torch.allclose(first, part(X), atol=1e-6)
    assert counted() == {"misses": 1, "stored": 1}
    assert torch.equal(run(X), first)
    modcache.lookup_or_run(part, X, "k", scope="enc@1")
    assert counted() == {"hits_memory": 2}
    assert torch.allclose(run(X[:3]), part(X[:3]), atol=1e-6)
    assert counted() == {"key_conflicts": 1, "misses": 1, "stored": 1}


@STRICT
def test_modes(strict: bool, counted: Any, cache_dir: Any) -> None:
    run = exported(Classifier(), X, IDS, strict=strict).module()
    modcache.set_mode("off")
    want = run(X, IDS)
    assert counted() == {"bypassed_off": 4}
    assert not cache_dir.exists()
    modcache.set_mode("read")
    run(X, IDS)
    assert counted() == {"misses": 4}
    modcache.set_mode("on")
    run(X, IDS)
    assert counted() == {"misses": 4, "stored": 4}
    with modcache.mode("off"):
        run(X, IDS)
    with modcache.mode("read"):
        run(X, IDS)
    assert counted() == {"bypassed_off": 4, "hits_memory": 4}
    for mode, growth in {
        "refresh": {"misses": 4, "stored": 4}, "verify": {}, "read": {"hits_memory": 4},
    }.items():  # fmt: skip
        modcache.set_mode(mode)
        assert torch.allclose(run(X, IDS), want, atol=1e-6)
        assert counted() == growth, mode


def test_verify_finds_a_difference(counted: Any) -> None:
    model = Classifier("enc@1")
    run = exported(model, X, IDS).module()
    modcache.configure(match="none")
    modcache.lookup_or_run(model.encoder, X * 2, IDS, scope="enc@1")
    modcache.set_mode("verify")
    counted()
    assert torch.allclose(run(X, IDS), model.head(model.encoder(X)), atol=1e-6)
    assert counted()["verify_differences"] > 0


class UnderAutocast(Classifier):
    def forward(self, x: Any, ids: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x, ids)


@STRICT
def test_autocast_inside_the_model(strict: bool, counted: Any) -> None:
    model = UnderAutocast("enc@1").requires_grad_(False)
    program = exported(model, X, IDS, strict=strict)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        modcache.lookup_or_run(model.encoder, X, IDS, scope="enc@1")
    counted()
    for run in (program.module(), program.run_decompositions().module()):
        run(X, IDS)
        assert counted() == {"hits_memory": 4}


def test_autocast_around_a_program_that_was_recorded_without(counted: Any) -> None:
    model = Classifier("enc@1").requires_grad_(False)
    run = exported(model, X, IDS).module()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(X, IDS)
    assert counted() == {"bypassed_type": 4}


def test_a_stored_row_of_another_shape_is_replaced(counted: Any) -> None:
    model = Classifier("enc@1")
    run = exported(model, X, IDS).module()
    modcache.lookup_or_run(encoder(width=5), X, IDS, scope="enc@1")
    counted()
    for _ in range(2):
        assert torch.allclose(run(X, IDS), model.head(model.encoder(X)), atol=1e-6)
    growth = counted()
    assert growth["key_conflicts"] == 4
    assert growth["stored"] == 4


def test_no_failure_of_the_cache_reaches_the_program(cache_dir: Any, counted: Any) -> None:
    cache_dir.write_text("no directory")
    model = Classifier()
    run = exported(model, X, IDS).module()
    assert torch.allclose(run(X, IDS), model.head(model.encoder(X)), atol=1e-6)
    assert counted()["errors"] > 0


def test_saved_time_is_that_of_the_rows(counted: Any) -> None:
    run = exported(Classifier(), X, IDS).module()
    run(X, IDS)
    ran = modcache.stats()["run_us"]
    assert ran > 0
    run(X, IDS)
    assert 0 <= modcache.stats()["saved_us"] <= ran


@STRICT
def test_an_input_that_comes_to_require_grad(strict: bool, counted: Any) -> None:
    model = Classifier()
    run = exported(model, X, IDS, strict=strict).module()
    counted()
    x = X.clone().requires_grad_()
    run(x, IDS).square().sum().backward()
    assert counted() == {"bypassed_grad": 4}
    want = X.clone().requires_grad_()
    model.head(model.encoder(want)).square().sum().backward()
    assert torch.allclose(x.grad, want.grad, atol=1e-5)
    with torch.no_grad():
        run(x, IDS)
    assert counted() == {"misses": 4, "stored": 4}


@STRICT
def test_what_comes_back_is_the_callers_own(strict: bool) -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return modcache.lookup_or_run(self.encoder, x, ids)

    run = exported(Features(), X, IDS, strict=strict).module()
    want = run(X, IDS).clone()
    for _ in range(3):
        with torch.inference_mode():
            found = run(X, IDS)
        run(X, IDS).fill_(7)
        run(X, IDS).requires_grad_().sum().backward()
        assert torch.equal(found, want)


@STRICT
@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (IDS.to(torch.float32), "int64"),
        (IDS.reshape(2, 2), "one dimension"),
        (torch.arange(3), "3 keys were given"),
    ],
    ids=["dtype", "dimensions", "count"],
)
def test_bad_ids(strict: bool, ids: torch.Tensor, says: str) -> None:
    with pytest.raises(Exception, match=says):
        exported(Classifier(), X, ids, strict=strict, is_dynamic=False)


@STRICT
@pytest.mark.parametrize("key", [["a", "b", "c", "d"], [1, 2, 3, 4], 7, ""])
def test_bad_keys(strict: bool, key: Any) -> None:
    with pytest.raises(Exception, match=r"int64 tensor of ids|empty string"):
        exported(OneKey(encoder(), key), X, strict=strict, is_dynamic=False)


def test_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        exported(Classifier(), X, IDS)
