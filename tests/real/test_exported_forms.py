# SPDX-License-Identifier: Apache-2.0
"""The same sentences, and models that others made, through torch.export, AOTInductor and compile.

An exported program shares by default with what the scripted form of the same module stored, or,
where the module cannot be scripted, with the eager form. Under one scope all forms share.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from host import serve
from real_models import MODELS
from sentences import COUNT, Sentences, encoders, features, sentences
from served import FORMS, assert_near
from torch import Tensor, nn

SCOPE = "minilm@1"
STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


def exported(model: nn.Module, *inputs: Tensor, strict: bool = False) -> Any:
    """With a dynamic number of rows."""
    rows = torch.export.Dim("rows", min=1, max=64)
    return torch.export.export(
        model, inputs, dynamic_shapes=[{0: rows}] * len(inputs), strict=strict
    )


def products(run: Callable[[], Any]) -> int:
    """How many matrix products a call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    names = ("aten::addmm", "aten::mm", "aten::bmm", "aten::linear", "aten::mkldnn_linear")
    return sum(event.count for event in profile.key_averages() if event.key in names)


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """The exported program by scope."""
    return {scope: exported(Sentences(encoders()[0], scope), *sentences()) for scope in ("", SCOPE)}


@pytest.fixture(scope="module")
def package(program: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled by AOTInductor, with SCOPE."""
    path = tmp_path_factory.mktemp("package") / "sentences.pt2"
    torch._inductor.aoti_compile_and_package(program[SCOPE], package_path=str(path))
    return path


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def check_shared(run: Callable[..., Tensor], other: Callable[..., Tensor], counted: Any) -> None:
    """Each finds what the other stored."""
    for stores, finds in ((run, other), (other, run)):
        modcache.clear()
        counted()
        stored = stores(*sentences())
        assert counted() == {"misses": COUNT, "stored": COUNT}
        assert_near(stored, features())
        assert torch.equal(finds(*sentences()), stored)
        assert counted() == {"hits_memory": COUNT}


@pytest.mark.parametrize("scope", ["", SCOPE], ids=["fingerprint", "scope"])
def test_exported_and_eager_share(scope: str, program: dict[str, Any], counted: Any) -> None:
    check_shared(program[scope].module(), Sentences(encoders()[0], scope), counted)


@pytest.mark.parametrize("form", FORMS)
def test_under_a_scope_exported_shares_with_every_form(
    form: str, program: dict[str, Any], counted: Any
) -> None:
    scripted = torch.jit.script(Sentences(encoders()[1], SCOPE).eval())
    check_shared(program[SCOPE].module(), FORMS[form](scripted), counted)


def test_exported_saved_and_loaded(program: dict[str, Any], tmp_path: Path, counted: Any) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(program[""], path)
    check_shared(torch.export.load(path).module(), program[""].module(), counted)


def test_compiled_and_eager_share(counted: Any) -> None:
    model = Sentences(encoders()[0])
    check_shared(torch.compile(model, fullgraph=True, backend="aot_eager"), model, counted)


def test_an_all_hit_call_runs_no_encoder(program: dict[str, Any]) -> None:
    compiled = torch.compile(Sentences(encoders()[0]), fullgraph=True, backend="aot_eager")
    for run in (program[""].module(), compiled):
        modcache.clear()
        assert products(lambda run=run: run(*sentences())) > 0
        assert products(lambda run=run: run(*sentences())) == 0


def test_a_partly_missing_batch(program: dict[str, Any], counted: Any) -> None:
    run = program[""].module()
    stored = run(*[x[:1] for x in sentences()])
    counted()
    found = run(*sentences())
    assert_near(found, features())
    assert torch.equal(found[:1], stored)
    assert counted() == {"hits_memory": 1, "misses": COUNT - 1, "stored": COUNT - 1}


def test_a_package_in_python_shares(package: Path, counted: Any) -> None:
    run = torch._inductor.aoti_load_package(str(package))
    check_shared(run, Sentences(encoders()[0], SCOPE), counted)


def test_a_package_in_cpp_shares(package: Path, cache_dir: Path, counted: Any) -> None:
    found, counts = serve(package, sentences(), cache_dir)
    assert (counts["misses"], counts["stored"]) == (COUNT, COUNT)
    assert_near(found, features())
    counted()
    assert torch.equal(Sentences(encoders()[0], SCOPE)(*sentences()), found)
    assert counted() == {"hits_disk": COUNT}
    again, counts = serve(package, sentences(), cache_dir)
    assert torch.equal(again, found)
    assert counts["hits_disk"] == COUNT
    assert "misses" not in counts


# --- Models that others made -------------------------------------------------------------------


class Rows(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, ids: Tensor) -> Any:
        return modcache.lookup_or_run(self.encoder, x, ids)


@STRICT
@pytest.mark.parametrize(
    "name", [pytest.param("speaker encoder", marks=pytest.mark.thorough), "face detector"]
)
def test_an_exported_model_shares_with_the_scripted_one(
    name: str, strict: bool, counted: Any
) -> None:
    real = MODELS[name]()
    (x,) = real.inputs
    ids = torch.arange(x.size(0))
    model = Rows(real.eager)  # type: ignore[arg-type]
    run = exported(model, x, ids, strict=strict).module()
    expected = real.eager(x)  # type: ignore[misc]
    scripted = real.served
    for stores, finds in ((run, scripted.rows), (scripted.rows, run)):
        modcache.clear()
        counted()
        assert_near(stores(x, ids), expected)
        assert counted() == {"misses": len(ids), "stored": len(ids)}
        assert_near(finds(x, ids), expected)
        assert counted() == {"hits_memory": len(ids)}
