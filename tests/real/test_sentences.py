# SPDX-License-Identifier: Apache-2.0
"""The same sentences through every form of TorchScript, eager and C++: values and shared entries.

By default all forms of TorchScript share entries, in Python and in C++; an eager module has its
own. Under one scope all share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from host import serve
from sentences import COUNT, Sentences, encoders, features, sentences
from served import FORMS, HIT_OPERATORS, assert_near, operators_of

SCOPES = pytest.mark.parametrize("scope", ["", "minilm@1"], ids=["fingerprint", "scope"])


@pytest.fixture(scope="module")
def forms() -> dict[str, dict[str, Any]]:
    made = {}
    for scope in ("", "minilm@1"):
        scripted = torch.jit.script(Sentences(encoders()[1], scope).eval())
        made[scope] = {name: form(scripted) for name, form in FORMS.items()}
        made[scope]["eager"] = Sentences(encoders()[0], scope)
    return made


@SCOPES
def test_which_forms_share(scope: str, forms: dict[str, dict[str, Any]], counted: Any) -> None:
    for name, stores in forms[scope].items():
        modcache.clear()
        counted()
        stored = stores(*sentences())
        assert counted() == {"misses": COUNT, "stored": COUNT}, name
        assert_near(stored, features())
        for other, finds in forms[scope].items():
            if not scope and "eager" in (name, other) and name != other:
                continue
            assert torch.equal(finds(*sentences()), stored)
            assert counted() == {"hits_memory": COUNT}, f"{other} after {name}"


def test_eager_has_entries_of_its_own(forms: dict[str, dict[str, Any]], counted: Any) -> None:
    forms[""]["scripted"](*sentences())
    counted()
    forms[""]["eager"](*sentences())
    assert counted() == {"misses": COUNT, "stored": COUNT}


def test_every_form_without_the_cache(forms: dict[str, dict[str, Any]], counted: Any) -> None:
    with modcache.mode("off"):
        for form in forms[""].values():
            assert_near(form(*sentences()), features())
    assert set(counted()) == {"bypassed_off"}


def test_a_partly_missing_batch(forms: dict[str, dict[str, Any]], counted: Any) -> None:
    for name, form in forms[""].items():
        modcache.clear()
        form(*[x[:2] for x in sentences()])
        counted()
        assert_near(form(*sentences()), features())
        assert counted() == {"hits_memory": 2, "misses": COUNT - 2, "stored": COUNT - 2}, name


def test_a_hit_runs_nothing_of_the_encoder(forms: dict[str, dict[str, Any]]) -> None:
    for name, form in forms[""].items():
        for _ in range(2):  # The second call optimizes the graph, and compares constants.
            form(*sentences())
        if name != "eager":
            assert operators_of(lambda form=form: form(*sentences())) <= HIT_OPERATORS, name


@SCOPES
@pytest.mark.parametrize("form", ["scripted", "frozen", "optimize_for_inference"])
def test_a_host_in_cpp(
    form: str,
    scope: str,
    forms: dict[str, dict[str, Any]],
    tmp_path: Path,
    cache_dir: Path,
    counted: Any,
) -> None:
    model = tmp_path / "model.pt"
    forms[scope][form].save(model)
    found, counts = serve(model, sentences(), cache_dir)
    assert (counts["misses"], counts["stored"]) == (COUNT, COUNT)
    assert_near(found, features())
    # What the host stored is found in Python, and what Python stored by a host.
    counted()
    assert torch.equal(forms[scope]["eager" if scope else "loaded"](*sentences()), found)
    assert counted() == {"hits_disk": COUNT}
    again, counts = serve(model, sentences(), cache_dir)
    assert torch.equal(again, found)
    assert counts["hits_disk"] == COUNT
    assert "misses" not in counts
