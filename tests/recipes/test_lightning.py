# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/lightning.md with the real library: losses, bf16-mixed, resuming and DDP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning
import lightning_losses
import modcache
import pytest
import recipe
import torch
from given_lightning import TRAIN, VAL, given
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

NAME = "lightning"
EPOCHS = 3
ALL = TRAIN + VAL
# A backbone may add the numbers of a row in another order where its batch is another one.
SAME = {"32-true": 1e-4, "bf16-mixed": 1e-2}


class Plain(lightning.LightningModule):  # type: ignore[misc]
    """The recipe's module in a program that knows nothing of modcache."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__()
        self.backbone = names["backbone"].requires_grad_(False).eval()
        self.head = torch.nn.Linear(names["width"], names["classes"])

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        inputs, labels = batch
        loss = cross_entropy(self.head(self.backbone(inputs)), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        inputs, labels = batch
        self.log("val_loss", cross_entropy(self.head(self.backbone(inputs)), labels))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.head.parameters(), lr=1e-3)


def run(**options: Any) -> tuple[list[float], dict[str, Any]]:
    """Runs the recipe, and returns the losses and the names that it leaves."""
    modcache.reset_stats()
    losses = lightning_losses.Losses()
    names = given(**{"enable_checkpointing": False, **options}, logger=losses)
    torch.manual_seed(3)
    left = recipe.run(NAME, **names)
    return losses.values, left


def run_plainly(**options: Any) -> list[float]:
    losses = lightning_losses.Losses()
    names: Any = given(**options, enable_checkpointing=False, logger=losses)
    torch.manual_seed(3)
    train, val = DataLoader(names["train"], 8, shuffle=True), DataLoader(names["val"], 8)
    lightning.Trainer(**names["options"]).fit(Plain(names), train, val)
    return losses.values


def counts() -> tuple[int, int]:
    """How many rows ran, and how many hit."""
    return of(dict(modcache.stats()))


def of(stats: dict[str, int]) -> tuple[int, int]:
    return stats["misses"], stats["hits_memory"] + stats["hits_disk"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_losses_are_those_without_the_cache(precision: str) -> None:
    wanted = pytest.approx(run_plainly(precision=precision), rel=SAME[precision])
    assert len(wanted.expected) == EPOCHS * (TRAIN // 8 + 1)
    with modcache.mode("off"):
        assert run(precision=precision)[0] == wanted
    assert run(precision=precision)[0] == wanted
    assert counts() == (ALL, (EPOCHS - 1) * ALL)
    assert run(precision=precision)[0] == wanted
    assert counts() == (0, EPOCHS * ALL)


def test_epochs_after_the_first_do_not_call_the_backbone() -> None:
    assert convolutions(epochs=1) == convolutions(epochs=EPOCHS, clear=True) > 0
    assert convolutions(epochs=EPOCHS) == 0


def convolutions(epochs: int, clear: bool = False) -> int:
    """How often torch's convolution ran in a training."""
    if clear:
        modcache.clear()
    with torch.profiler.profile() as profile:
        run(epochs=epochs)
    return sum(event.count for event in profile.key_averages() if event.key == "aten::conv2d")


def test_bf16_mixed_gives_the_dtype_of_the_run_and_has_its_own_entries() -> None:
    run(precision="32-true")
    _, names = run(precision="bf16-mixed")
    assert counts() == (ALL, (EPOCHS - 1) * ALL)
    inputs = torch.stack([names["val"][row][0] for row in range(8)])
    keys = [f"val/{row}" for row in range(8)]
    plain: Any = given()["backbone"]
    modcache.reset_stats()
    for kind, rtol in ((torch.bfloat16, 2e-2), (torch.float32, 1e-4)):
        with torch.autocast("cpu", kind, enabled=kind is torch.bfloat16), torch.no_grad():
            want = plain.eval()(inputs)
            with modcache.keys(keys):
                found = names["model"].backbone(inputs)
        assert found.dtype is want.dtype is kind
        torch.testing.assert_close(found, want, rtol=rtol, atol=rtol)
    assert counts() == (0, 16)


def test_a_training_that_is_resumed_hits_and_learns_the_same() -> None:
    _, names = run(epochs=2, enable_checkpointing=True)
    checkpoint = names["trainer"].checkpoint_callback.best_model_path
    plain: Any = given()
    assert set(torch.load(checkpoint)["state_dict"]) == set(Plain(plain).state_dict())
    with modcache.mode("off"):
        wanted, _ = run(checkpoint=checkpoint)
    found, names = run(checkpoint=checkpoint)
    assert counts() == (0, ALL)
    assert names["trainer"].current_epoch == EPOCHS
    assert found == pytest.approx(wanted, rel=SAME["32-true"])


@pytest.mark.thorough
def test_processes_of_ddp_hit_what_any_of_them_stored() -> None:
    off = by_ddp("off", EPOCHS, MODCACHE_MODE="off")
    cold = by_ddp("cold", 1)
    warm = by_ddp("warm", EPOCHS)
    for rank in (0, 1):
        wanted = off[rank]["losses"]
        assert len(wanted) == EPOCHS * (TRAIN // 8 // 2 + 1)
        assert cold[rank]["losses"] == pytest.approx(wanted[:3], rel=SAME["32-true"])
        assert warm[rank]["losses"] == pytest.approx(wanted, rel=SAME["32-true"])
        assert warm[rank]["weights"] == warm[0]["weights"]  # the ranks stay in step
        assert of(off[rank]["counts"]) == (0, 0)
        # In one epoch a rank runs half of the samples. Three epochs have more than these.
        assert of(cold[rank]["counts"]) == (ALL // 2, 0)
        assert of(warm[rank]["counts"]) == (0, EPOCHS * ALL // 2)


def by_ddp(name: str, epochs: int, **environment: str) -> list[dict[str, Any]]:
    """What each of two processes found, in a training that Lightning starts from a script."""
    done = subprocess.run(
        [sys.executable, lightning_losses.__file__, name, str(epochs)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(Path(f"{name}.{rank}.json").read_text()) for rank in (0, 1)]
