# SPDX-License-Identifier: Apache-2.0
"""What a scripted module holds is part of its identity, wherever its code meets it."""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

import importlib.util
import sys
from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: UP035  (TorchScript reads these)

import modcache
import pytest
import torch
from models import Doubles, Scales, reloaded
from processes import ProcessRunner
from torch import nn

X = torch.linspace(-1, 1, 4)


def looked_up(module: Any, *more: Any) -> torch.Tensor:
    result: torch.Tensor = modcache.lookup_or_run(module, (X, *more), "k")
    return result


# --- Which class lies in a slot ------------------------------------------------------------------


@torch.jit.interface
class Stage(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class AddsThree(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 3


class ThreeStages(nn.Module):
    a: Stage
    b: Stage
    c: Stage

    def __init__(self, a: nn.Module, b: nn.Module, c: nn.Module) -> None:
        super().__init__()
        self.a = a
        self.b = b
        self.c = c

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c.forward(self.b.forward(self.a.forward(x)))


def a_function(factor: int) -> type[nn.Module]:
    """Classes of one name: TorchScript tells them apart by a number that it appends."""

    class Times(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    Times.factor = factor  # type: ignore[attr-defined]
    Times.__constants__ = ["factor"]  # type: ignore[attr-defined]
    return Times


Twice, Thrice = a_function(2), a_function(3)

PAIRS = {
    "sequential": (
        lambda: nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.ReLU()),
        lambda: nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.Sigmoid()),
    ),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Sequential(nn.ReLU())),
        lambda: nn.Sequential(nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Sequential(nn.Tanh())),
    ),
    "interface": (
        lambda: ThreeStages(Doubles(), AddsThree(), Doubles()),
        lambda: ThreeStages(Doubles(), AddsThree(), AddsThree()),
    ),
    "one-name": (
        lambda: nn.Sequential(Twice(), Thrice(), Twice()),
        lambda: nn.Sequential(Twice(), Thrice(), Thrice()),
    ),
}
FORMS = {
    "scripted": torch.jit.script,
    "traced": lambda module: torch.jit.trace(module, X),
    "loaded": lambda module: reloaded(torch.jit.script(module)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pair", PAIRS)
def test_modules_of_the_same_classes_in_other_places_differ(pair: str, form: str) -> None:
    one, other = (FORMS[form](make().eval()) for make in PAIRS[pair])
    looked_up(one)
    assert not torch.equal(one(X), other(X))
    assert torch.equal(looked_up(other), other(X))


def fingerprint_of_file(path: str) -> str:
    return modcache.fingerprint(torch.jit.load(path))


@pytest.mark.parametrize("form", ["scripted", "traced"])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_module_of_repeated_classes_keeps_its_fingerprint(
    pair: str, form: str, tmp_path: Any, processes: ProcessRunner
) -> None:
    module = FORMS[form](PAIRS[pair][0]().eval())
    before = modcache.fingerprint(module)
    once = reloaded(module)
    assert modcache.fingerprint(once) == before
    assert modcache.fingerprint(reloaded(once)) == before
    assert modcache.fingerprint(FORMS[form](PAIRS[pair][0]().eval())) == before
    module.save(str(tmp_path / "m.pt"))
    assert processes.run(fingerprint_of_file, str(tmp_path / "m.pt")).value == before


def test_a_stage_is_replaced_by_one_of_a_class_that_is_there_already() -> None:
    module = torch.jit.script(ThreeStages(Doubles(), AddsThree(), Doubles()))
    looked_up(module)
    module.c = torch.jit.script(AddsThree())
    assert torch.equal(looked_up(module), module(X))


def test_a_stage_is_replaced_by_one_of_another_class() -> None:
    module = torch.jit.script(ThreeStages(Doubles(), AddsThree(), Doubles()))
    looked_up(module)
    for factor in (5.0, 7.0):
        module.c = torch.jit.script(Scales(factor))
        assert torch.equal(looked_up(module), (X * 2 + 3) * factor)


class PicksByName(nn.Module):
    def __init__(self, **stages: nn.Module) -> None:
        super().__init__()
        self.stages = nn.ModuleDict(stages)

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        stage: Stage = self.stages[name]
        return stage.forward(x)


def test_stages_that_are_picked_by_name_in_the_run_count() -> None:
    one = torch.jit.script(PicksByName(a=Scales(2.0), b=Scales(3.0)))
    other = torch.jit.script(PicksByName(a=Scales(2.0), b=Scales(5.0)))
    looked_up(one, "b")
    assert torch.equal(looked_up(other, "b"), X * 5)
    other.stages.b.factor.mul_(2)
    assert torch.equal(looked_up(other, "b"), X * 10)


# --- Objects of TorchScript classes --------------------------------------------------------------


@torch.jit.interface
class Rule:
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        pass


@torch.jit.script
class Times:
    def __init__(self, n: int) -> None:
        self.n = n

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.n


@torch.jit.script
class Plus:
    def __init__(self, n: int) -> None:
        self.n = n

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.n


@torch.jit.script
class Shift:
    def __init__(self, by: torch.Tensor) -> None:
        self.by = by

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by


class RuleList(nn.Module):
    rules: List[Rule]  # noqa: UP006

    def __init__(self, *rules: Any) -> None:
        super().__init__()
        self.rules = list(rules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for rule in self.rules:
            x = rule.apply(x)
        return x


class RuleDict(nn.Module):
    rules: Dict[str, Rule]  # noqa: UP006

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rules = {"a": rule}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rules["a"].apply(x)


class RuleTuple(nn.Module):
    rules: Tuple[Rule, int]  # noqa: UP006

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rules = (rule, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rules[0].apply(x) * self.rules[1]


class OptionalRule(nn.Module):
    rule: Optional[Rule]  # noqa: UP045

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rule = self.rule
        return x if rule is None else rule.apply(x)


class EitherRule(nn.Module):
    rule: Union[Times, Plus]  # noqa: UP007

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rule = self.rule
        if isinstance(rule, Times):  # which lets TorchScript compile the call
            return rule.apply(x)
        return rule.apply(x)


class EitherField(nn.Module):
    """Reads the object's field and calls none of its methods."""

    rule: Union[Times, Plus]  # noqa: UP007

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rule = self.rule
        return x * rule.n if isinstance(rule, Times) else x - 1


@pytest.mark.parametrize(
    "holder", [RuleList, RuleDict, RuleTuple, OptionalRule, EitherRule, EitherField]
)
def test_objects_with_equal_fields_and_other_classes_differ(holder: Any, counted: Any) -> None:
    one, other = torch.jit.script(holder(Times(2))), torch.jit.script(holder(Plus(2)))
    looked_up(one)
    assert torch.equal(looked_up(other), other(X))
    assert modcache.fingerprint(reloaded(one)) == modcache.fingerprint(one)
    assert counted() == {"misses": 2, "stored": 2}


def test_objects_in_another_order_differ() -> None:
    one = torch.jit.script(RuleList(Times(2), Plus(2), Times(2)))
    other = torch.jit.script(RuleList(Times(2), Plus(2), Plus(2)))
    looked_up(one)
    assert torch.equal(looked_up(other), other(X))


def test_a_tensor_inside_an_object_counts(counted: Any) -> None:
    by = torch.ones(4)
    module = torch.jit.script(RuleList(Times(2), Shift(by)))
    looked_up(module)
    looked_up(module)
    assert counted() == {"hits_memory": 1, "misses": 1, "stored": 1}
    by.mul_(3)
    assert torch.equal(looked_up(module), X * 2 + 3)


MAKES_A_RULE = """
from typing import List
import torch

@torch.jit.interface
class Rule:
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        pass

@torch.jit.script
class Made:
    def __init__(self, n: int) -> None:
        self.n = n

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x {operator} self.n

class Makes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rules: List[Rule] = [Made(2)]
        return rules[0].apply(x)
"""


def fingerprint_of_edition(path: str) -> str:
    spec: Any = importlib.util.spec_from_file_location("makes_a_rule", path)
    code: Any = importlib.util.module_from_spec(spec)
    sys.modules["makes_a_rule"] = code
    spec.loader.exec_module(code)
    return modcache.fingerprint(torch.jit.script(code.Makes()))


def test_the_code_of_objects_that_the_code_makes_counts(
    tmp_path: Any, processes: ProcessRunner
) -> None:
    fingerprints = []
    for name, operator in (("times", "*"), ("plus", "+"), ("times_again", "*")):
        path = tmp_path / f"{name}.py"
        path.write_text(MAKES_A_RULE.format(operator=operator))
        fingerprints.append(processes.run(fingerprint_of_edition, str(path)).value)
    times, plus, times_again = fingerprints
    assert times != plus
    assert times == times_again


# --- Code that TorchScript does not see ----------------------------------------------------------


class CallsPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    @torch.jit.ignore
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x)


def test_code_that_calls_python_is_not_cached_without_a_scope(counted: Any) -> None:
    module = torch.jit.script(CallsPython())
    looked_up(module)
    module.factor = 5.0
    assert torch.equal(looked_up(module), X * 5)
    assert counted() == {"bypassed_identity": 2}
