# SPDX-License-Identifier: Apache-2.0
"""Other ways to keep values by key: the limits of the machine, and other caches where installed.

Each is written as its documentation shows it. A value is a float32 tensor of one known shape, and
a number stands for its key.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from suite.values import Noise, Size, inputs_of, keys_of

# A rival hands out memory that must not be written, which torch warns about.
warnings.filterwarnings("ignore", message=".*not writable.*")


def is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def bytes_of(value: Tensor) -> memoryview:
    array: Any = value.contiguous().numpy()
    return memoryview(array).cast("B")


class Store:
    """A way to keep values. `get` and `put` are what is timed."""

    name = ""
    package = ""

    def __init__(self, folder: Path, size: Size, count: int) -> None:
        self.folder = folder / type(self).__name__
        self.size, self.count, self.keys = size, count, keys_of(count)
        self.folder.mkdir(parents=True, exist_ok=True)

    def create(self) -> None:
        """Before the first `put`."""
        self.open()

    def open(self) -> None:
        """Before the first `get`."""

    def get(self, number: int) -> Any:
        raise NotImplementedError

    def put(self, number: int, value: Tensor) -> None:
        raise NotImplementedError

    def gather(self, numbers: list[int]) -> Tensor:
        return torch.stack([self.get(number) for number in numbers])

    def close(self) -> None:
        pass

    def as_tensor(self, buffer: Any) -> Tensor:
        return torch.frombuffer(buffer, dtype=torch.float32).view(self.size.shape)


class Dict(Store):
    name = "dict"

    def open(self) -> None:
        self.values: dict[str, Tensor] = {}

    def get(self, number: int) -> Tensor:
        return self.values[self.keys[number]]

    def put(self, number: int, value: Tensor) -> None:
        self.values[self.keys[number]] = value


class Memmap(Store):
    """One array in a file; the key is the number of the row."""

    name = "memmap"

    def _open(self, mode: Any) -> None:
        shape = (self.count, *self.size.shape)
        self.array = np.memmap(self.folder / "rows", np.float32, mode, shape=shape)

    def create(self) -> None:
        self._open("w+")

    def open(self) -> None:
        self._open("r")

    def get(self, number: int) -> Tensor:
        return torch.from_numpy(np.asarray(self.array[number]))

    def put(self, number: int, value: Tensor) -> None:
        self.array[number] = value.numpy().reshape(self.size.shape)

    def gather(self, numbers: list[int]) -> Tensor:
        return torch.from_numpy(np.asarray(self.array[np.array(numbers)]))

    def close(self) -> None:
        self.array.flush()


class Sequential(Store):
    """The same bytes one after the other in a file: nothing is found again."""

    name = "sequential"

    def create(self) -> None:
        self.file = (self.folder / "bytes").open("wb", buffering=0)

    def open(self) -> None:
        self.file = (self.folder / "bytes").open("rb", buffering=0)

    def put(self, number: int, value: Tensor) -> None:
        self.file.write(bytes_of(value))

    def get(self, number: int) -> Tensor:
        """Reads the next value, whatever its number."""
        value = torch.empty(self.size.shape)
        if self.file.readinto(bytes_of(value)) < self.size.bytes:
            self.file.seek(0)
            self.file.readinto(bytes_of(value))
        return value

    def close(self) -> None:
        self.file.close()


class Lmdb(Store):
    """LMDB as most use it: `get` copies to bytes. Nothing is forced to disk."""

    name = "LMDB"
    package = "lmdb"
    writable = False

    def create(self) -> None:
        self.writable = True
        self.open()

    def open(self) -> None:
        lmdb: Any = importlib.import_module("lmdb")
        room = (self.size.bytes * 2 + 8192) * self.count + (1 << 28)
        self.environment = lmdb.open(
            str(self.folder), map_size=room, sync=False, metasync=False, readonly=not self.writable
        )

    def get(self, number: int) -> Tensor:
        with self.environment.begin() as transaction:
            return self.as_tensor(transaction.get(self.keys[number].encode()))

    def put(self, number: int, value: Tensor) -> None:
        with self.environment.begin(write=True) as transaction:
            transaction.put(self.keys[number].encode(), bytes_of(value))

    def gather(self, numbers: list[int]) -> Tensor:
        out = torch.empty((len(numbers), *self.size.shape))
        with self.environment.begin(buffers=True) as transaction:
            for row, number in zip(out, numbers, strict=True):
                row.copy_(self.as_tensor(transaction.get(self.keys[number].encode())))
        return out

    def close(self) -> None:
        self.environment.close()


class LmdbZeroCopy(Lmdb):
    """LMDB in one long transaction: values are views, which hold no longer than it."""

    name = "LMDB, zero-copy"

    def begin_in(self, other: Lmdb) -> None:
        self.environment = other.environment
        self.transaction = self.environment.begin(buffers=True)

    def get(self, number: int) -> Tensor:
        return self.as_tensor(self.transaction.get(self.keys[number].encode()))

    def close(self) -> None:
        self.transaction.abort()


class Diskcache(Store):
    name = "diskcache"
    package = "diskcache"

    def open(self) -> None:
        diskcache: Any = importlib.import_module("diskcache")
        self.cache = diskcache.Cache(str(self.folder), size_limit=1 << 40)

    def get(self, number: int) -> Tensor:
        return self.as_tensor(self.cache[self.keys[number]])

    def put(self, number: int, value: Tensor) -> None:
        self.cache[self.keys[number]] = bytes_of(value).tobytes()

    def close(self) -> None:
        self.cache.close()


class Safetensors(Store):
    """A file for each value."""

    name = "safetensors"
    package = "safetensors"

    def open(self) -> None:
        module: Any = importlib.import_module("safetensors.torch")
        self.load, self.save = module.load_file, module.save_file

    def get(self, number: int) -> Tensor:
        value: Tensor = self.load(str(self.folder / self.keys[number]))["value"]
        return value

    def put(self, number: int, value: Tensor) -> None:
        self.save({"value": value}, str(self.folder / self.keys[number]))


class Joblib(Store):
    """`joblib.Memory` around the module, by key."""

    name = "joblib"
    package = "joblib"

    def open(self) -> None:
        joblib: Any = importlib.import_module("joblib")
        self.inputs = inputs_of(self.count)
        _joblib_module.append(Noise(self.size.shape).eval())
        memory = joblib.Memory(str(self.folder), verbose=0)
        self.call = memory.cache(_run_for_joblib, ignore=["numbers"])

    def get(self, number: int) -> Tensor:
        return torch.from_numpy(self.call(self.keys[number], self.inputs[number]))

    def put(self, number: int, value: Tensor) -> None:
        self.get(number)


_joblib_module: list[nn.Module] = []


def _run_for_joblib(key: str, numbers: Tensor) -> Any:
    return _joblib_module[-1](numbers)[0].numpy()


class TorchModuleCache(Store):
    """A decorator of modules, as this cache has one; an entry is a file."""

    name = "torch-module-cache"
    package = "torch_module_cache"
    level = "DISK"

    def open(self) -> None:
        self.inputs = inputs_of(self.count)
        self.module = self.wrapped(Noise(self.size.shape))

    def wrapped(self, inner: nn.Module) -> Callable[..., Tensor]:
        peer: Any = importlib.import_module("torch_module_cache")

        class Kept(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Tensor) -> Any:
                return self.inner(x)

        level = getattr(peer.CacheLevel, self.level)
        cache = peer.cache_module(
            cache_path=str(self.folder), cache_name="bench", cache_level=level
        )
        module: Any = cache(Kept)().requires_grad_(False).eval()
        return module  # type: ignore[no-any-return]

    def get(self, number: int) -> Tensor:
        return self.module(self.inputs[number], cache_key=self.keys[number])

    def put(self, number: int, value: Tensor) -> None:
        self.get(number)


class TorchModuleCacheMemory(TorchModuleCache):
    name = "torch-module-cache, memory"
    level = "MEMORY"


_hidden: list[bool] = []


def hide_rivals() -> None:
    """From now on no other cache is there: a profile is to show this one."""
    _hidden.append(True)


def there(*kinds: type[Store]) -> list[type[Store]]:
    """Those whose packages are installed."""
    return [kind for kind in kinds if not kind.package or (not _hidden and is_there(kind.package))]
