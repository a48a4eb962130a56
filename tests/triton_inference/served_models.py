# SPDX-License-Identifier: Apache-2.0
"""The models that the server has, as folders of a model repository."""

from __future__ import annotations

from pathlib import Path

from triton_server import PACKAGES

# The Python of the backend heeds no PYTHONPATH.
_PREAMBLE = """
import sys
sys.path[:0] = {first!r}
sys.path += {last!r}
"""

_DOUBLE = """
import time
import numpy
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests]

    def answer(self, x):
        time.sleep({delay_s})
        if x.size and x.flat[0] < 0:
            return pb.InferenceResponse([], pb.TritonError("a negative number"))
        return pb.InferenceResponse([pb.Tensor("y", x * {factor})])
"""

_DOUBLE_CONFIG = """
backend: "python"
max_batch_size: 0
input [{ name: "x", data_type: TYPE_FP32, dims: [ -1 ] }]
output [{ name: "y", data_type: TYPE_FP32, dims: [ -1 ] }]
instance_group [{ count: 1, kind: KIND_CPU }]
response_cache { enable: true }
"""


def write_model(
    models: Path, name: str, config: str, code: str, more_packages: list[str] | None = None
) -> Path:
    """Returns the folder of the version."""
    version = models / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (models / name / "config.pbtxt").write_text(config, encoding="utf-8")
    preamble = _PREAMBLE.format(first=[str(PACKAGES)], last=more_packages or [])
    (version / "model.py").write_text(preamble + code, encoding="utf-8")
    return version


def write_double(models: Path, delay_s: float = 0.01, factor: float = 2) -> None:
    """A model `double`, whose responses Triton caches. It fails for a negative first number."""
    code = _DOUBLE.format(delay_s=delay_s, factor=factor)
    write_model(models, "double", _DOUBLE_CONFIG, code)


_TWO_OUTPUTS = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests]

    def answer(self, x):
        return pb.InferenceResponse([pb.Tensor("y", 2 * x), pb.Tensor("z", 3 * x)])
"""

_TWO_OUTPUTS_CONFIG = """
backend: "python"
max_batch_size: 0
input [{ name: "x", data_type: TYPE_FP32, dims: [ -1, -1 ] }]
output [{ name: "y", data_type: TYPE_FP32, dims: [ -1, -1 ] },
        { name: "z", data_type: TYPE_FP32, dims: [ -1, -1 ] }]
instance_group [{ count: 1, kind: KIND_CPU }]
response_cache { enable: true }
"""


def write_two_outputs(models: Path) -> None:
    """A model `two_outputs` that takes a matrix."""
    write_model(models, "two_outputs", _TWO_OUTPUTS_CONFIG, _TWO_OUTPUTS)
