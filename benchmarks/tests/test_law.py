"""The experiments' runner, and the measurement of a law for the learning rate: a law that is planted is found."""

import math

import pytest

import run
from experiments import curves, law_page, training
from experiments import law as experiment

LAW = run.EXPERIMENTS["law"]


def planted(config):
    """Error 0.1 at 0.02 (steps/1000)^-0.4 (batch/20)^0.2 (depth/4)^-0.5, e^0.15 more a factor of 2 off; none at 8 times."""
    best = 0.02 * (config["steps"] / 1000) ** -0.4 * (config["batch_size"] / 20) ** 0.2
    off = math.log2(config["lr"] / (best * (config["model"]["n_layers"] / 4) ** -0.5))
    return 0.1 * math.exp(0.15 * off**2) if off < 3 else math.inf


class Filled(dict):
    """Records by a run's identity, and the passes that filled them."""

    def get(self, run):
        return super().get(run.id)

    def fill(self, law, most=50):
        for _ in range(most):
            missing = {run.id: run for run in law.wanted(self)}
            for key, wanted in missing.items():
                loss = planted(wanted.config)
                self[key] = {"outcome": "complete" if math.isfinite(loss) else "diverged", "loss": loss}
            if not missing:
                return self
        raise AssertionError("the experiment never has enough")


@pytest.fixture(scope="module")
def filled():
    return Filled().fill(LAW)


def test_a_search_goes_on_at_an_edge_and_ends_around_the_best():
    def search(error, start=0, most=10):
        done = {}
        while missing := [i for i in experiment.rates(done, start, most) if i not in done]:
            done[missing[0]] = error(missing[0])
        return sorted(done)

    assert search(abs) == [-2, -1, 0, 1, 2]
    assert search(lambda i: abs(i - 5)) == [-2, 0, 2, 3, 4, 5, 6]  # 4 and 6 are level: the first one is gone around
    assert search(lambda i: math.inf if i > -3 else abs(i + 5), start=2) == [-6, -5, -4, -3, -2, 0, 2, 4]
    assert search(lambda i: -i, most=4) == [-2, 0, 2, 3, 4]  # the highest rate that there is


def test_a_planted_law_is_found(filled):
    found = LAW.curves(filled)
    assert len(found) == len(LAW.settings())
    chosen = {s: c for s, c in found.items() if s.problem in experiment.CHOSEN_ON}
    free = law_page.Candidate("", {}, law_page.FACTORS)
    law = law_page.fitted(free, chosen)
    assert law.constant == pytest.approx(0.02, rel=0.02)
    expected = {**dict.fromkeys(law_page.FACTORS, 0.0), "steps": -0.4, "batch": 0.2, "depth": -0.5}
    assert law.powers == pytest.approx(expected, abs=0.02)
    assert max(c.regret(law.predict(s)) for s, c in found.items()) < 0.01
    wrong = law_page.Candidate("", {"steps": -0.4, "batch": 0.2, "depth": -0.5}, constant=0.04)
    assert [c.regret(wrong.predict(s)) for s, c in found.items()] == pytest.approx([math.expm1(0.15)] * len(found), abs=0.02)


def test_what_a_search_of_one_seed_loses_to_another():
    """Two of three seeds are best at 1, the third at 2, each by a parabola of curvature 2 a in log error."""
    a = 0.05
    errors = {2.0**i: [math.exp(a * (i - best) ** 2) for best in (0, 0, 1)] for i in (-2, -1, 0, 1, 2)}
    setting = experiment.Setting.of("gray-scott", steps=1000, depth=4)  # for which the law says 0.03
    searched, ours = law_page.searches({setting: curves.Curve({0.03 * lr: own for lr, own in errors.items()})})
    # The mean of seeds 0 and 2 is best half a factor of two above 1: the rate of seed 1 and the law's lose a / 4 there, and
    # so for seeds 1 and 2. Seeds 0 and 1 are best at 1, where the law is right and the rate of seed 2 loses a.
    assert searched == pytest.approx([math.expm1(a / 4), math.expm1(a / 4), math.expm1(a)])
    assert ours == pytest.approx([math.expm1(a / 4), math.expm1(a / 4), 0])


def test_regret_is_infinite_from_the_first_rate_that_does_not_train():
    curve = curves.Curve({0.5: [0.2], 1.0: [0.1], 2.0: [0.2], 4.0: [math.inf]})
    assert curve.best == pytest.approx(0)
    assert curve.regret(1.0) == pytest.approx(1.0)  # a parabola through its three errors
    assert curve.regret(1.5) < math.inf == curve.regret(2.0)


def test_a_run_has_exactly_its_steps_in_batches_of_one_size():
    seen = []
    config = LAW.tiny().run(experiment.Setting.of("burgers", steps=250), 0).config
    config = {**config, "data": {"n_train": 25, "n_val": 4, "n_test": 4, "grid": 32}, "batch_size": 10}
    _, data = training._data("burgers", tuple(config["data"].items()))
    stage = training._Paced(data.train, data.val, data.test, batches=3).loaders(10, 0)[0]
    for _ in range(2):
        seen += [len(batch["x"]) for batch in stage]
    assert seen == [10] * 6 and len(stage) == 3
    result = training.train(
        {**config, "model": {**config["model"], "n_modes": (8,)}, "base": {**config["base"], "n_modes": (8,)}}
    )
    assert result["steps"] == config["steps"] == 50 and result["loss"] < 1
