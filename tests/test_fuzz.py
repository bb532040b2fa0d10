"""Random FNO, TFNO and UNO configurations: every invariant of ``tests/fuzz_checks.py`` holds for each of them.

500 cases, the same ones each time. More of them, drawn anew (a seed is optional):

    FUZZ_CASES=5000 pytest tests/test_fuzz.py --hypothesis-seed=1
"""

from __future__ import annotations

import os
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings

import fuzz
import fuzz_checks
from neuralop_mup.core.rules import RULES

CASES = int(os.environ.get("FUZZ_CASES", 500))
# Named by hand, so that a change of the strategies cannot quietly stop drawing something.
SEEN = (
    *(f"model={m}" for m in fuzz.MODELS),
    *(f"dims={d}" for d in (1, 2, 3)),
    *(f"rule={r}" for r in RULES),
    *(f"form={f}" for f in fuzz.FORMS),
    *(f"factorization={f}" for f in (None, "tucker", "cp", "tt")),
    *(f"implementation={i}" for i in ("factorized", "reconstructed")),
    *(f"norm={n}" for n in (None, "group_norm", "instance_norm", "batch_norm")),
    *(f"{skip}={s}" for skip in ("fno_skip", "channel_mlp_skip") for s in ("linear", "soft-gating", "identity", None)),
    *(f"{flag}={on}" for flag in ("separable", "complex_data", "preactivation", "max_n_modes") for on in (True, False)),
)


@pytest.mark.parametrize("reason", fuzz.pinned())
def test_each_refusal_has_its_sentence(reason, tmp_path):
    tally = fuzz_checks.Tally()
    fuzz_checks.check(fuzz.pinned()[reason], tmp_path, tally)
    assert tally[f"refused: {reason}"] or tally[reason]


def test_invariants(tmp_path):
    tally = fuzz_checks.Tally()

    @settings(
        max_examples=CASES,
        derandomize="FUZZ_CASES" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(fuzz.configs())
    def run(config):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch|tensorly|tltorch|neuralop")
            try:
                fuzz_checks.check(config, tmp_path, tally)
            except fuzz_checks.Refused:
                reject()  # drawn again: max_examples counts those that neuralop itself can build

    run()
    assert fuzz.pinned().keys() >= fuzz_checks.REASONS.keys()
    print("\n".join(f"{count:6d}  {what}" for what, count in sorted(tally.items())))
    assert tally["cases"] >= CASES and tally["checked"] > 0.6 * CASES
    missing = [what for what in SEEN if not tally[what]]
    assert CASES < 500 or not missing, f"never drawn: {missing}"
