# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/hugging-face-trainer.md with the real library."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import recipe
import transformers
from given_hugging_face_trainer import LONGEST, classifier, given

NAME = "hugging-face-trainer"


def samples(collator: str) -> dict[str, Any]:
    """What the reader has, for one of the collators that the Trainer takes by itself."""
    names: dict[str, Any] = given()
    if collator == "default":  # it pads nothing
        pad = {"padding": "max_length", "max_length": LONGEST}
        for split in ("train", "validation"):
            names[split] = [names["tokenizer"].pad(row, **pad) for row in names[split]]
        names["tokenizer"] = None
    return names


def losses_of(trainer: transformers.Trainer) -> list[float]:
    """The losses of all steps and evaluations."""
    kinds = ("loss", "eval_loss")
    return [entry[kind] for entry in trainer.state.log_history for kind in kinds if kind in entry]


def counted() -> dict[str, int]:
    counts = modcache.stats()
    modcache.reset_stats()
    hits = counts["hits_memory"] + counts["hits_disk"]
    return {"runs": counts["misses"], "stored": counts["stored"], "hits": hits}


def plainly_trained(names: dict[str, Any]) -> list[float]:
    """The losses of the same training in a program that knows nothing of modcache."""
    names["model"].bert.requires_grad_(False)
    trainer = transformers.Trainer(
        names["model"],
        names["args"],
        processing_class=names["tokenizer"],
        train_dataset=names["train"],
        eval_dataset=names["validation"],
    )
    trainer.train()
    return losses_of(trainer)


@pytest.mark.parametrize("collator", ["padding", "default"])
def test_losses_are_those_without_the_cache(collator: str) -> None:
    wanted = plainly_trained(samples(collator))
    assert len(wanted) == 10
    with modcache.mode("off"):
        off: Any = recipe.run(NAME, **samples(collator))
    assert losses_of(off["trainer"]) == pytest.approx(wanted, rel=1e-5)
    names: Any = recipe.run(NAME, **samples(collator))
    assert losses_of(names["trainer"]) == pytest.approx(wanted, rel=1e-5)
    assert names["predictions"] == pytest.approx(off["predictions"], rel=1e-4, abs=1e-6)
    # Every sample ran once. Two epochs, two evaluations and the prediction asked for all.
    assert counted() == {"runs": 72, "stored": 72, "hits": 60 + 2 * 12}


def test_another_process_runs_nothing() -> None:
    first: Any = recipe.run(NAME, **samples("padding"))
    modcache.flush()
    found, counts = recipe.in_another_process(once_more, "padding")
    assert counts == {"runs": 0, "stored": 0, "hits": 2 * 60 + 3 * 12}
    assert found == pytest.approx(losses_of(first["trainer"]), rel=1e-5)


def once_more(collator: str) -> tuple[list[float], dict[str, int]]:
    names: Any = recipe.run(NAME, **samples(collator))
    return losses_of(names["trainer"]), counted()


def test_a_training_that_is_resumed_hits() -> None:
    trainer: Any = recipe.run(NAME, **samples("padding"))["trainer"]
    counted()
    trainer.args.num_train_epochs = 3
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.epoch == 3
    assert counted() == {"runs": 0, "stored": 0, "hits": 60 + 12}


def test_a_head_for_other_labels_hits() -> None:
    recipe.run(NAME, **samples("padding"))
    counted()
    names = samples("padding")
    names["model"] = classifier(labels=2)
    for row in (*names["train"], *names["validation"]):
        row["labels"] %= 2
    recipe.run(NAME, **names)
    assert counted() == {"runs": 0, "stored": 0, "hits": 2 * 60 + 3 * 12}


def test_an_edited_sample_runs_anew_and_is_noticed() -> None:
    recipe.run(NAME, **samples("padding"))
    counted()
    names = samples("padding")
    names["validation"][3]["input_ids"] = names["validation"][3]["input_ids"][::-1]
    recipe.run(NAME, **names)
    assert modcache.stats()["key_conflicts"] == 1
    assert counted()["runs"] == 1
