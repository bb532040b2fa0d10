"""The experiments beside the law for the learning rate: what is planted in their records is on their pages."""

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
run = importlib.import_module("run")  # a skip would hide an experiment that no longer imports
training = importlib.import_module("experiments.training")


class Kept(dict):
    """Records by a run's identity."""

    def get(self, run):
        return super().get(run.id)

    @classmethod
    def of(cls, experiment, measured):
        """All that the experiment wants, as ``measured`` gives it of a configuration."""
        kept = cls()
        for wanted in experiment.wanted(kept):
            kept[wanted.id] = {"outcome": "complete", "metrics": {}, **measured(wanted.config)}
        assert not list(experiment.wanted(kept))
        return kept

    def some(self, share):
        return Kept(list(self.items())[: int(share * len(self))])


def rows(text):
    """The first line of each name."""
    found = {}
    for line in text.splitlines():
        found.setdefault(line.split(" | ")[0].removeprefix("| "), line)
    return found


def base_error(config):
    """Least at a base of width 64, and under AdamW at 0.004 times the root of 32/width; modes mean nothing."""
    width = config["base"]["hidden_channels"]
    off = math.log2(config["lr"] / 0.004) + math.log2(width / 32) / 2 if config["optimizer"] == "adamw" else 0
    return {"loss": 0.1 * 1.1 ** (abs(math.log2(width / 64)) + abs(off) + config["seed"])}


def test_the_best_base_is_on_the_page():
    experiment = run.EXPERIMENTS["reference"]
    kept = Kept.of(experiment, base_error)
    assert len(kept) == 2 * 4 * (5 * 9 - 3)  # on three problems a base is the same by its width and by its modes
    text = experiment.table(kept)
    assert "180 of 180 settings" in text
    found = rows(text)
    assert "| 0.1049 [0.1, 0.11] × 0.909 |" in found["width 64, n_modes of the model"]
    assert "× 1.000 |" in found["width 32, n_modes 16 (reference)"]
    assert "At lr 0.03 the best base is width 64, n_modes of the model, 0.909; the worst one has 1.331 times" in text
    summary = rows(text.split("## adamw, all problems")[1])
    assert summary["width 128, n_modes of the model"] == (
        "| width 128, n_modes of the model | 1.000 | 1.100 | 1.210 | 1.000 | 5 |"
    )
    assert summary["width 32, n_modes 4"].endswith("| 1.100 | 1.000 | 1.100 | 1.000 | 0 |")


def test_the_page_of_half_of_it_compares_bases_on_the_same_problems():
    experiment = run.EXPERIMENTS["reference"]
    kept = Kept.of(experiment, base_error)
    assert "\n0 of 180 settings" in experiment.table(Kept())
    text = experiment.table(kept.some(0.1))
    assert "geometric mean over burgers." in text and "adamw" not in text and "| – |" in text
    lost = {key: {**record, "outcome": "diverged", "loss": None} for key, record in kept.items()}
    assert "inf [inf, inf]" in experiment.table(Kept(lost))


def decayed(config):
    """Best at a weight decay that forgets in 20 epochs, so that every factor of 4 beside it costs 10 %."""
    epochs = 20 / config["data"]["n_train"] / config["lr"] / max(config.get("weight_decay", 0.0), 1e-9)
    return {"loss": 0.1 * 1.1 ** min(3.0, abs(math.log(epochs / 20, 4))) * 1.02 ** config["seed"]}


def test_what_weight_decay_gains_is_on_the_page():
    experiment = run.EXPERIMENTS["decay"]
    kept = Kept.of(experiment, decayed)
    assert len(kept) == 9 * 5 * 2
    text = experiment.table(kept)
    # Burgers: 20 of 800 samples a step at lr 0.03: 0.025 / (0.03 · 0.05) is 17 epochs, within a root of 4 of 20. Without
    # weight decay the error is 1.1³ times the least.
    row = next(line for line in text.splitlines() if line.startswith("| burgers | centre "))
    assert row.endswith(" | 0.05 | 16.7 |") and f"| {1.1 ** (math.log(20 / 16.67, 4) - 3):.3f} [" in row
    # A quarter of the samples wants four times the weight decay.
    assert next(line for line in text.splitlines() if "| samples 200 |" in line).endswith(" | 0.2 | 16.7 |")
    assert "\n4 of 9 settings" in experiment.table(kept.some(0.5))


def in_time(config):
    """One step is best at 0.03, a rollout at 0.015, and lost at 0.12; the second seed's rollouts at 0.03."""
    off, best = math.log2(config["lr"] / 0.03), 0 if config["seed"] == 1 else -1
    rollout = training.LOST if off == 2 else 0.5 * 1.2 ** abs(off - best)
    return {"loss": rollout, "metrics": {"validation_error": 0.1 * 1.5 ** abs(off)}}


def test_what_choosing_by_one_step_loses_is_on_the_page():
    experiment = run.EXPERIMENTS["rollout"]
    kept = Kept.of(experiment, in_time)
    assert len(kept) == 45
    text = experiment.table(kept)
    found = rows(text)
    assert found["0.03"] == "| 0.03 | 0.1 [0.1, 0.1] | 0.5667 [0.5, 0.6] |"
    assert found["0.12"] == "| 0.12 | 0.225 [0.225, 0.225] | inf [inf, inf] |"
    # By one step always 0.03: wrong for two seeds of three. By another seed's rollouts: wrong for four pairs of six.
    cells = found["korteweg-de-vries-in-time"].split(" | ")
    assert cells[1] == "0.03" and cells[3:5] == ["20.0% [0.0%, 20.0%]", "20.0% [0.0%, 20.0%]"]
    assert 0.015 < float(cells[2]) < 0.03


def test_the_page_of_half_of_the_rollouts():
    experiment = run.EXPERIMENTS["rollout"]
    kept = Kept.of(experiment, in_time)
    assert "\n0 of 3 problems" in experiment.table(Kept())
    text = experiment.table(kept.some(0.5))
    assert "\n2 of 3 problems" in text and "| gray-scott-in-time | 0.03 |" in text
    lost = {key: {**record, "outcome": "diverged", "loss": None, "metrics": {}} for key, record in kept.items()}
    assert "| korteweg-de-vries-in-time | – | – |" in experiment.table(Kept(lost))


def test_a_run_in_time_keeps_both_errors(monkeypatch):
    """Also one whose rollout leaves the numbers, and the rollout is the loop that one would write."""
    (first, *_) = run.EXPERIMENTS["rollout"].tiny().wanted(Kept())
    seen = {}

    def watched(model, data, steps):
        state, errors = data.states(0), []
        for number in range(1, steps + 1):
            state, truth = model(state), data.states(number)
            errors.append(((state - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)).mean())
        seen["error"] = float(torch.stack(errors).log().mean().exp())
        return seen.get("told", seen["error"])

    kept = training.train(first.config)
    monkeypatch.setattr(training, "rollout_error", watched)
    assert training.train(first.config)["loss"] == seen["error"] == pytest.approx(kept["loss"], rel=1e-5)
    assert len(training._data(first.config["problem"], tuple(first.config["data"].items()))[1].val[0]) == 14
    seen["told"] = math.inf
    lost = training.train(first.config)
    assert lost["loss"] == training.LOST and lost["validation_error"] == kept["validation_error"] != kept["loss"]


def test_what_a_tuning_took_is_on_the_page(tmp_path):
    """One small target: five learning rates at the proxy, five at the target, and the one that is carried."""
    cheap = run.EXPERIMENTS["cheap"].tiny()
    assert len(cheap.page(tmp_path).splitlines()) == 6  # nothing is done: the table's head alone
    cheap.fill(tmp_path, 1)
    row = rows(cheap.page(tmp_path))["burgers"].split(" | ")
    assert float(row[1].split()[0]) > 0 and float(row[2].split()[0]) > 0.01 and row[-1].strip("| ") == "0"
