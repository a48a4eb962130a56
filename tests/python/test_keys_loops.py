# SPDX-License-Identifier: Apache-2.0
"""Keys in loops of others: keyed datasets, and the callbacks of the Trainer and Lightning.

The loops are played by stand-ins, which pass what the libraries pass; where a library is installed,
its own Trainer is run too, and compared with the same training without the cache.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import modcache
import pytest
import torch
from keyed_loops import Model, Rows, as_dict, as_tuple, model
from keyed_modules import Growth, Tower
from modcache._call.key_column import column_of
from modcache._loops.epoch import Epoch
from modcache._loops.keyed_dataset import column_in
from torch import nn
from torch.utils.data import DataLoader

# Datasets.


def test_samples_carry_their_keys() -> None:
    dataset = modcache.KeyedDataset(Rows(as_dict), "train")
    assert (len(dataset), dataset.key_of(3)) == (12, "train/3")
    batch = next(iter(DataLoader(dataset, batch_size=3)))
    assert sorted(batch) == ["labels", "modcache_keys", "text", "x"]
    assert (batch["modcache_keys"].shape, batch["modcache_keys"].dtype) == ((3, 64), torch.uint8)
    x, _, keys = next(iter(DataLoader(modcache.KeyedDataset(Rows(as_tuple), ""), 2)))
    tower = model().tower
    for column in (keys, keys.long(), keys[[1, 0]].flip(0)):
        with modcache.keys(column):
            assert modcache.explain(tower, x).keys == ["0", "1"]
    numbers = modcache.KeyedDataset([1.5, 2.5], "Größe")
    value, key = numbers[-1]
    with modcache.keys(torch.from_numpy(key)[None]):
        assert modcache.explain(tower, x[:1]).keys == ["Größe/1"]
    assert value == 2.5


class Pair(NamedTuple):
    x: torch.Tensor
    label: int


def test_a_named_tuple_becomes_a_plain_one_with_a_key() -> None:
    for sample in (Pair(torch.ones(2), 1), [torch.ones(2), 1]):
        x, label, key = modcache.KeyedDataset([sample], "train")[0]
        assert (x is sample[0], label, len(key)) == (True, 1, 64)


def test_a_tensor_in_which_one_row_is_no_key_is_no_column() -> None:
    column = torch.stack([torch.from_numpy(column_of(f"a/{row}")) for row in range(2)])
    foreign = torch.cat([column, torch.full((1, 64), 65, dtype=torch.uint8)])
    assert torch.equal(column_in([1, column]), column)  # type: ignore[arg-type]
    assert column_in([1, foreign]) is None
    with pytest.raises(ValueError, match="int64 tensor"):
        modcache.keys(foreign)


def test_a_part_of_a_keyed_dataset_has_the_keys_of_the_whole() -> None:
    part = torch.utils.data.Subset(modcache.KeyedDataset(Rows(as_tuple), "train"), [7, 4])
    x, _, keys = next(iter(DataLoader(part, batch_size=2)))
    with modcache.keys(keys):
        assert modcache.explain(Tower(), x, scope="any").keys == ["train/7", "train/4"]


@pytest.mark.parametrize("workers", [0, 2])
def test_any_order_and_any_worker(counted: Growth, workers: int) -> None:
    tower = model().tower
    dataset = modcache.KeyedDataset(Rows(as_tuple), "train")
    seen = {}
    for _ in range(2):
        for x, _label, keys in DataLoader(dataset, 5, shuffle=True, num_workers=workers):
            with modcache.keys(keys):
                for row, name in zip(tower(x), modcache.explain(tower, x).keys, strict=True):
                    assert torch.equal(seen.setdefault(name, row), row)
    assert sorted(seen) == sorted(f"train/{index}" for index in range(12))
    assert counted()["hits_memory"] >= 12


@pytest.mark.parametrize(
    ("made", "error", "says"),
    [
        (lambda: modcache.KeyedDataset(iter([1]), "train"), TypeError, "must be map-style"),
        (lambda: modcache.KeyedDataset([1], 3), TypeError, "split must be a str"),
        (lambda: modcache.KeyedDataset([1], "x" * 62), ValueError, "63 are the limit"),
        (lambda: modcache.keys(torch.zeros(2, 64, dtype=torch.uint8)), ValueError, "int64 tensor"),
    ],
)
def test_mistakes_are_named(made: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        made()


# The Trainer.


class StandInCallback:
    """The Trainer's and Lightning's base class."""


@pytest.fixture
def trainer_callback(monkeypatch: pytest.MonkeyPatch) -> Any:
    library: Any = types.ModuleType("transformers")
    library.TrainerCallback = StandInCallback
    monkeypatch.setitem(sys.modules, "transformers", library)
    return modcache.trainer_callback()


def run_trainer(callback: Any, trained: nn.Module, epochs: int) -> None:
    """Does what the Trainer does: drops columns that forward does not name, and calls the model."""
    state = types.SimpleNamespace(epoch=0.0, is_world_process_zero=True)
    given = {"model": trained, "train_dataloader": None}
    callback.on_init_end(None, state, None, **given)
    columns = inspect.signature(trained.forward).parameters
    callback.on_train_begin(None, state, None, **given)
    for _ in range(epochs):
        callback.on_epoch_begin(None, state, None, **given)
        for batch in DataLoader(modcache.KeyedDataset(Rows(as_dict), "train"), 5, shuffle=True):
            trained(**{name: batch[name] for name in columns if name in batch})["loss"].backward()
        state.epoch += 1
        callback.on_epoch_end(None, state, None, **given)


def test_a_trainer(
    counted: Growth, capfd: pytest.CaptureFixture[str], trainer_callback: Any
) -> None:
    assert isinstance(trainer_callback, StandInCallback)
    trained = model()
    run_trainer(trainer_callback, trained, 2)
    assert counted() == {"misses": 12, "stored": 12, "hits_memory": 12}
    first, second = capfd.readouterr().err.splitlines()
    assert first == "epoch 1: 0 % hits"
    assert second.startswith("epoch 2: 100 % hits, ")
    assert second.endswith("s saved")


def test_a_model_that_takes_keys_is_otherwise_the_same(
    counted: Growth, trainer_callback: Any
) -> None:
    trained = model()
    names = list(trained.state_dict())
    for _ in range(2):
        trainer_callback.on_init_end(None, None, None, model=trained)
    assert list(trained.state_dict()) == names
    assert list(inspect.signature(trained.forward).parameters) == ["x", "labels", "modcache_keys"]
    x = torch.ones(2, 4)
    plain = trained(x)["logits"]
    assert counted() == {"bypassed_type": 1}
    other = copy.deepcopy(trained)
    other.head.weight.data.zero_()
    column = torch.stack([torch.from_numpy(column_of(f"a/{row}")) for row in range(2)])
    assert torch.equal(other(x, modcache_keys=column)["logits"], other.head.bias.expand(2, 2))
    assert torch.equal(trained(x, modcache_keys=column)["logits"], plain)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}


def test_a_forward_that_was_replaced_goes_on_running(trainer_callback: Any) -> None:
    trained = model()
    trained.forward = lambda x, **_: {"logits": x}  # type: ignore[method-assign]
    trainer_callback.on_init_end(None, None, None, model=trained)
    assert list(inspect.signature(trained.forward).parameters) == ["x", "modcache_keys", "_"]
    assert trained(torch.ones(1), modcache_keys=None)["logits"] == 1


def wrap_for_mixed_precision(model: nn.Module) -> None:
    """Wraps ``forward`` as accelerate does, which keeps the function, but no attributes of it."""
    plain = model.forward.__func__  # type: ignore[attr-defined]

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return {name: part.float() for name, part in plain(*args, **kwargs).items()}

    forward.__wrapped__ = plain  # type: ignore[attr-defined]
    model.forward = types.MethodType(forward, model)


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_forward_that_is_wrapped_for_mixed_precision(
    counted: Growth, trainer_callback: Any, mode: str
) -> None:
    trained = model()
    trainer_callback.on_init_end(None, None, None, model=trained)
    wrap_for_mixed_precision(trained)
    x = torch.ones(2, 4)
    column = torch.stack([torch.from_numpy(column_of(f"a/{row}")) for row in range(2)])
    with modcache.mode(mode):
        for _ in range(2):  # train() is called a second time
            trainer_callback.on_train_begin(None, None, None, model=trained)
            names = list(inspect.signature(trained.forward).parameters)
            assert names == ["x", "labels", "modcache_keys"]
            trained(x, modcache_keys=column)
    expected = {"on": {"misses": 2, "stored": 2, "hits_memory": 2}, "off": {"bypassed_off": 4}}
    assert counted() == expected[mode]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_replicas_of_data_parallel_use_their_own_weights(
    counted: Growth, trainer_callback: Any, is_replaced: bool
) -> None:
    trained = model()
    if is_replaced:  # as accelerate does
        trained.forward = types.MethodType(Model.forward, trained)  # type: ignore[method-assign]
    trainer_callback.on_init_end(None, None, None, model=trained)
    replica = trained._replicate_for_data_parallel()
    replica.head = nn.Linear(2, 2)  # as on another device
    x = torch.ones(2, 4)
    column = torch.stack([torch.from_numpy(column_of(f"a/{row}")) for row in range(2)])
    found = replica(x, modcache_keys=column)["logits"]
    assert counted() == {"misses": 2, "stored": 2}
    assert torch.equal(found, replica.head(trained.tower.linear(x).relu()))
    other = copy.deepcopy(trained)
    other.head.weight.data.zero_()
    assert torch.equal(other(x)["logits"], other.head.bias.expand(2, 2))
    pickle.loads(pickle.dumps(trained))(x)


def test_an_epoch_in_which_the_counters_were_reset() -> None:
    tower = model().tower
    for _ in range(2):
        with modcache.keys([1, 2]):
            tower(torch.ones(2, 4))
    epoch = Epoch()
    modcache.reset_stats()
    assert epoch.line(1) == "epoch 1: nothing was looked up"
    with modcache.mode("off"):
        modcache.lookup_or_run(torch.nn.Identity(), torch.ones(2, 1), ["a", "b"])
    assert epoch.line(1) == "epoch 1: the cache was off"
    with modcache.keys([1, 2]):
        tower(torch.ones(2, 4))
    assert epoch.line(2).startswith("epoch 2: 100 % hits, ")


# Lightning.


@pytest.fixture
def lightning_callback(monkeypatch: pytest.MonkeyPatch) -> Any:
    library: Any = types.ModuleType("lightning.pytorch")
    library.Callback = StandInCallback
    monkeypatch.setitem(sys.modules, "lightning.pytorch", library)
    return modcache.lightning_callback()


def test_lightning(
    counted: Growth, capfd: pytest.CaptureFixture[str], lightning_callback: Any
) -> None:
    assert isinstance(lightning_callback, StandInCallback)
    trained = model()
    train, val = (
        DataLoader(modcache.KeyedDataset(Rows(as_tuple, seed), split), 5)
        for split, seed in (("train", 0), ("val", 100))
    )
    for epoch in range(2):
        trainer = types.SimpleNamespace(current_epoch=epoch, is_global_zero=True)
        lightning_callback.on_train_epoch_start(trainer, trained)
        for number, batch in enumerate(train):
            lightning_callback.on_train_batch_start(trainer, trained, batch, number)
            trained(batch[0], batch[1])["loss"].backward()
            lightning_callback.on_train_batch_end(trainer, trained, None, batch, number)
        for number, batch in enumerate(val):
            lightning_callback.on_validation_batch_start(trainer, trained, batch, number, 0)
            trained(batch[0])
            lightning_callback.on_validation_batch_end(trainer, trained, None, batch, number, 0)
        lightning_callback.on_train_epoch_end(trainer, trained)
    assert counted() == {"misses": 24, "stored": 24, "hits_memory": 24}
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "epoch 1: 0 % hits"
    assert lines[1].startswith("epoch 2: 100 % hits, ")


def test_a_step_that_fails_or_has_no_keys(counted: Growth, lightning_callback: Any) -> None:
    trained = model()
    batch = next(iter(DataLoader(modcache.KeyedDataset(Rows(as_tuple), "train"), 5)))
    lightning_callback.on_train_batch_start(None, trained, batch, 0)
    lightning_callback.on_exception(None, trained, RuntimeError())
    trained(batch[0])
    assert counted() == {"bypassed_type": 1}
    for without in (batch[:2], [], {"x": batch[0]}, batch[0]):
        lightning_callback.on_test_batch_start(None, trained, without, 0)
        trained(batch[0])
        lightning_callback.on_test_batch_end(None, trained, None, without, 0)
        assert counted() == {"bypassed_type": 1}
    assert type(pickle.loads(pickle.dumps(lightning_callback))) is type(lightning_callback)


def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="needs transformers: pip install"):
        modcache.trainer_callback()
    with pytest.raises(ImportError, match="needs Lightning: pip install"):
        modcache.lightning_callback()


# The libraries themselves.


@pytest.mark.parametrize("precision", [{}, {"bf16": True}], ids=["float32", "bf16"])
def test_the_trainer_of_transformers(
    counted: Growth, capfd: pytest.CaptureFixture[str], tmp_path: Path, precision: dict[str, bool]
) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

    def trained(*, is_cached: bool) -> Any:
        sets = [Rows(as_dict), Rows(as_dict, 100)]
        keyed = [
            modcache.KeyedDataset(rows, split)
            for rows, split in zip(sets, ("train", "eval"), strict=True)
        ]
        train, evaluation = keyed if is_cached else sets
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=5,
            eval_strategy="epoch", logging_strategy="epoch", save_strategy="no", report_to=[],
            disable_tqdm=True, use_cpu=True, seed=1, **precision,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model(is_cached=is_cached), arguments, train_dataset=train, eval_dataset=evaluation,
            callbacks=[modcache.trainer_callback()] if is_cached else [],
        )  # fmt: skip
        trainer.train()
        names = ("loss", "eval_loss")
        return [
            entry[name] for entry in trainer.state.log_history for name in names if name in entry
        ]

    want = trained(is_cached=False)
    assert not counted()
    assert trained(is_cached=True) == want
    assert counted() == {"misses": 24, "stored": 24, "hits_memory": 24}
    assert "epoch 2: 100 % hits, " in capfd.readouterr().err


def test_lightning_itself(counted: Growth, capfd: pytest.CaptureFixture[str]) -> None:
    pytorch: Any = pytest.importorskip("lightning.pytorch", exc_type=ImportError)

    class Module(pytorch.LightningModule):  # type: ignore[misc]
        def __init__(self, *, is_cached: bool) -> None:
            super().__init__()
            self.model = model(is_cached=is_cached)
            self.losses: list[float] = []

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.model(batch[0], batch[1])["loss"]
            self.losses.append(float(loss.detach()))
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.losses.append(float(self.model(batch[0], batch[1])["loss"]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.model.head.parameters(), 0.1)

    def trained(*, is_cached: bool) -> list[float]:
        module = Module(is_cached=is_cached)
        rows = [Rows(as_tuple), Rows(as_tuple, 100)]
        if is_cached:
            rows = [
                modcache.KeyedDataset(each, split)  # type: ignore[misc]
                for each, split in zip(rows, ("train", "val"), strict=True)
            ]
        trainer = pytorch.Trainer(
            max_epochs=2, callbacks=[modcache.lightning_callback()] if is_cached else [],
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, accelerator="cpu", num_sanity_val_steps=0,
        )  # fmt: skip
        torch.manual_seed(3)
        trainer.fit(module, DataLoader(rows[0], 5, shuffle=True), DataLoader(rows[1], 5))
        return module.losses

    want = trained(is_cached=False)
    assert trained(is_cached=True) == want
    assert counted() == {"misses": 24, "stored": 24, "hits_memory": 24}
    assert "epoch 2: 100 % hits, " in capfd.readouterr().err
