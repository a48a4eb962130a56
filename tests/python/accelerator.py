# SPDX-License-Identifier: Apache-2.0
"""The accelerator that tests run on: this machine's, or the one of tests/support/test_device.

The test device is loaded where MODCACHE_TEST_DEVICE has the path of its library, and then all of
the process has it: ./tests/run runs the tests that need an accelerator in a process of their own.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Iterator

import torch

_NAME = "testdevice"


def _load_test_device(path: str) -> None:
    torch.ops.load_library(path)
    torch.utils.rename_privateuse1_backend(_NAME)
    generators = (torch.Generator(), torch.Generator())
    # What torch asks of the module of a kind of device.
    functions = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: torch.accelerator.current_device_index(),
        "is_initialized": lambda: True,
        "manual_seed_all": lambda seed: [one.manual_seed(seed) for one in generators],
        "_is_in_bad_fork": lambda: False,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    module = types.ModuleType(f"torch.{_NAME}")
    for name, function in functions.items():
        setattr(module, name, function)
    module.default_generators = generators
    torch._register_device_module(_NAME, module)


if "MODCACHE_TEST_DEVICE" in os.environ:
    _load_test_device(os.environ["MODCACHE_TEST_DEVICE"])

IS_TEST_DEVICE = "MODCACHE_TEST_DEVICE" in os.environ
IS_THERE = torch.accelerator.is_available()
KIND = torch.accelerator.current_accelerator().type if IS_THERE else "cuda"
DEVICE = torch.device(KIND, 0)


@contextlib.contextmanager
def slowed_down(delay_us: int) -> Iterator[None]:
    """Puts off each piece of the test device's work, so that who does not wait reads too early."""
    if IS_TEST_DEVICE:
        torch.ops.test_device.set_delay_us(delay_us)
    try:
        yield
    finally:
        if IS_TEST_DEVICE:
            torch.ops.test_device.set_delay_us(0)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """The current stream does nothing meanwhile; on CUDA, for a second."""
    if IS_TEST_DEVICE:
        torch.ops.test_device.hold()
    else:
        torch.cuda._sleep(1_000_000_000)
    try:
        yield
    finally:
        if IS_TEST_DEVICE:
            torch.ops.test_device.release()
