"""Records of benchmark runs: what is written comes back, whatever a run measured."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from suite_runs import Records, task


def test_what_is_written_comes_back(tmp_path):
    """Numbers to five digits; learned multipliers and the words of an error as well."""
    done = {
        "plain": (task("burgers", "MuSOAP", 0.02), {"loss": 0.123456789, "seconds": 12.3456789}),
        "learned": ({**task("burgers", "MuAdam", 4e-3), "learned": {"by": "role"}}, {"mults": {"input": 1.23456789}}),
        "diverged": ({**task("burgers", "MuAdam", 8e-3), "learned": {"by": "role"}}, {"loss": float("inf"), "error": "NaN"}),
    }
    records = Records(tmp_path / "records.jsonl")
    for run, result in done.values():
        records.add(run, result)
    again = Records(tmp_path / "records.jsonl")
    assert again.get(done["plain"][0]) == {"loss": 0.12346, "seconds": 12.346}
    assert again.get(done["learned"][0]) == {"mults": {"input": 1.2346}}
    assert again.get(done["diverged"][0]) == done["diverged"][1]
    assert again.get(task("burgers", "MuSOAP", 0.04)) is None
