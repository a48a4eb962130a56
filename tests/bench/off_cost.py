# SPDX-License-Identifier: Apache-2.0
"""What a call costs while the cache is off, beside an operator that only calls the module's method.

    python tests/bench/off_cost.py [--json] [--calls 20000] [--rounds 15]

Both loops run inside of TorchScript, in turns, and their minima are compared, as others use the
machine, too. The module returns its input, so that the calls are all that there is. The other
operator is compiled first, which takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

import modcache
import torch
from torch.utils.cpp_extension import load_inline

CALL_METHOD = r"""
#include <torch/script.h>
void call_method(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const c10::IValue key = torch::jit::pop(*stack);
  c10::IValue input = torch::jit::pop(*stack);
  const auto module = torch::jit::pop(*stack).toObject();
  torch::jit::Function& method = module->type()->getMethod(key.toStringRef());
  stack->push_back(method({module, std::move(input)}));
}
TORCH_LIBRARY(off_cost, library) {
  library.def("call_method(Any module, Any input, str method) -> Tensor",
              torch::CppFunction::makeFromBoxedFunction<&call_method>());
}
"""


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class ByCache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Same()

    def forward(self, x: torch.Tensor, calls: int) -> torch.Tensor:
        for _ in range(calls):
            x = torch.ops.cache.lookup_or_run(self.inner, x, "forward")
        return x


class ByMethod(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Same()

    def forward(self, x: torch.Tensor, calls: int) -> torch.Tensor:
        for _ in range(calls):
            x = torch.ops.off_cost.call_method(self.inner, x, "forward")
        return x


def ns_per_call(loop: torch.jit.ScriptModule, calls: int) -> float:
    x = torch.zeros(1)
    started = time.perf_counter_ns()
    loop(x, calls)
    return (time.perf_counter_ns() - started) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as build:
        load_inline(
            "off_cost",
            CALL_METHOD,
            is_python_module=False,
            extra_cflags=["-O3"],
            build_directory=build,
        )
    loops = {"cache": torch.jit.script(ByCache()), "method": torch.jit.script(ByMethod())}
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        modcache.configure(dir=folder)
        with modcache.mode("off"):
            for _ in range(given.rounds):
                for name, loop in loops.items():
                    best[name] = min(ns_per_call(loop, given.calls), best.get(name, float("inf")))
    found = {
        "off_ns": best["cache"],
        "method_ns": best["method"],
        "more_ns": best["cache"] - best["method"],
    }
    if given.json:
        print(json.dumps(found))
    else:
        print(f"off                 {found['off_ns']:7.0f} ns per call")
        print(f"the method alone    {found['method_ns']:7.0f} ns per call")
        print(f"more                {found['more_ns']:7.0f} ns per call")


if __name__ == "__main__":
    main()
