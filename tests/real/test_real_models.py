# SPDX-License-Identifier: Apache-2.0
"""Models that others made, through every form of TorchScript."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from real_models import CUT, KHMER_WORDS, MODELS, Real
from served import FORMS, HIT_OPERATORS, assert_near, assert_same, operators_of


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: name.replace(" ", "-"))
def real(request: pytest.FixtureRequest) -> Real:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def forms(real: Real) -> dict[str, Any]:
    scripted = real.served
    return {name: form(scripted) for name, form in FORMS.items()}


def test_every_form_finds_what_each_form_stored(
    real: Real, forms: dict[str, Any], counted: Any
) -> None:
    expected = (real.eager or real.encoder)(*real.inputs)
    for name, stores in forms.items():
        modcache.clear()
        counted()
        stored = stores(*real.inputs, "k")
        assert counted() == {"misses": 1, "stored": 1}, name
        assert_near(stored, expected)
        for other, finds in forms.items():
            assert_same(finds(*real.inputs, "k"), stored)
            assert counted() == {"hits_memory": 1}, f"{other} after {name}"


def test_every_form_without_the_cache(real: Real, forms: dict[str, Any], counted: Any) -> None:
    expected = (real.eager or real.encoder)(*real.inputs)
    with modcache.mode("off"):
        for form in forms.values():
            assert_near(form(*real.inputs, "k"), expected)
    assert counted() == {"bypassed_off": len(forms)}


def test_rows(real: Real, forms: dict[str, Any], counted: Any) -> None:
    ids = torch.arange(real.inputs[0].size(0))
    for name, stores in forms.items():
        modcache.clear()
        counted()
        if any(x.size(0) != len(ids) for x in real.inputs):
            with pytest.raises(RuntimeError, match="the first size of every tensor"):
                stores.rows(*real.inputs, ids)
            continue
        expected = (real.eager or real.encoder)(*real.inputs)
        proving = stores.rows(*real.inputs, ids + 1000)
        assert_near(proving, expected)
        if not real.has_rows:
            assert counted() == {"bypassed_rows": len(ids)}
            continue
        counted()
        stores.rows(*[x[:1] for x in real.inputs], ids[:1])
        assert counted() == {"misses": 1, "stored": 1}, name
        found = stores.rows(*real.inputs, ids)
        assert counted() == {"hits_memory": 1, "misses": len(ids) - 1, "stored": len(ids) - 1}
        assert_near(found, (real.eager or real.encoder)(*real.inputs))
        for other, finds in forms.items():
            assert_same(finds.rows(*real.inputs, ids), found)
            assert counted() == {"hits_memory": len(ids)}, f"{other} after {name}"


def test_a_hit_runs_nothing_of_the_encoder(real: Real, forms: dict[str, Any]) -> None:
    for name, form in forms.items():
        for _ in range(2):  # The second call optimizes the graph, and compares constants.
            form(*real.inputs, "k")
        assert operators_of(lambda form=form: form(*real.inputs, "k")) <= HIT_OPERATORS, name


def test_another_process_hits_with_the_saved_frozen_file(
    real: Real, forms: dict[str, Any], processes: ProcessRunner, tmp_path: Path
) -> None:
    forms["scripted"](*real.inputs, "k")
    modcache.flush()
    model, inputs = tmp_path / "frozen.pt", tmp_path / "inputs.pt"
    forms["frozen"].save(model)
    torch.save(real.inputs, inputs)
    assert processes.run(_hits_on_disk, str(model), str(inputs)).value == 1


def _hits_on_disk(model: str, inputs: str) -> int:
    torch.jit.load(model)(*torch.load(inputs), "k")
    return modcache.stats()["hits_disk"]


# --- What the models are for -------------------------------------------------------------------


def twice(model: Real, form: str, counted: Any) -> Any:
    """What a form computes, and then finds."""
    served = FORMS[form](model.served)
    served(*model.inputs, "k")
    counted()
    found = served(*model.inputs, "k")
    assert counted() == {"hits_memory": 1}
    return found


def test_the_face_is_seen(counted: Any) -> None:
    _, _, probability = twice(MODELS["face detector"](), "frozen", counted)
    face, elsewhere = probability[:, 1].tolist()
    assert face > 0.99
    assert elsewhere < 0.01


def test_the_words_are_read(counted: Any) -> None:
    from khmer_ocr_ocm import inference

    logits = twice(MODELS["text reader"](), "frozen", counted)
    assert inference.ctc_greedy_decode(logits, inference.load_vocab()) == list(KHMER_WORDS)


def test_the_cut_is_found(counted: Any) -> None:
    one_hot, _ = twice(MODELS["scene detector"](), "frozen", counted)
    assert int(one_hot[0, :, 0].argmax()) in (CUT - 1, CUT)


def test_voices_are_unit_vectors(counted: Any) -> None:
    vectors = twice(MODELS["speaker encoder"](), "frozen", counted)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))
