"""neuraloperator's own tests, with each of its models put into μP right after construction.

    PYTHONPATH=tests pytest -p neuralop_suite --pyargs neuralop.models neuralop.training

Each model is its own base, so that nothing but the plan is new and every test has to pass as it does without. What
parametrize refuses is counted and listed at the end; the run fails if something else than :data:`EXPECTED` is refused.
"""

from __future__ import annotations

import functools
from collections import Counter

import neuralop.models
import pytest
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES

# The sentences that are right to say, and why.
EXPECTED = {
    "divides by Σ log K": "K ≤ 1 on every axis: Theorem 3.5 divides by zero there; the other rules take it.",
    "'base_model.net' (Linear)": "UQNO of a model that the test itself defines: what its layers are, nobody can know.",
}
SEEN: Counter[str] = Counter()


def _parametrize(model: nn.Module) -> None:
    for part in model.modules():  # UQNO is given a model that was constructed, and so parametrized, before
        if part is not model and nm.is_parametrized(part):
            nm.unparametrize(part)
    for rule in RULES:
        try:
            nm.parametrize(model, base=model, rule=rule, init=False)
        except nm.MupError as error:
            SEEN[f"refused under {rule}: {type(model).__name__}: {error}"] += 1
        else:
            nm.MuAdam(model)
            SEEN[f"taken under {rule}"] += 1
            if rule != list(RULES)[-1]:
                nm.unparametrize(model)


def pytest_configure(config: pytest.Config) -> None:
    classes = [c for c in vars(neuralop.models).values() if isinstance(c, type) and issubclass(c, nn.Module)]
    for cls in classes:

        def __init__(self, *args, _cls=cls, _init=cls.__init__, **kwargs):
            _init(self, *args, **kwargs)
            if type(self) is _cls:
                _parametrize(self)

        cls.__init__ = functools.wraps(cls.__init__)(__init__)


def pytest_terminal_summary(terminalreporter) -> None:
    terminalreporter.section("models in μP")
    for what, count in sorted(SEEN.items()):
        terminalreporter.write_line(f"{count:6d}  {what}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    unexpected = [what for what in SEEN if what.startswith("refused") and not any(words in what for words in EXPECTED)]
    if unexpected or not SEEN:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
