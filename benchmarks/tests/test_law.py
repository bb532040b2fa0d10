"""The learning rate of MuSOAP: the search finds the best rate, and the fit finds a planted formula."""

import math

import pytest
from planted import planted_records

import run
from experiments import curves, formulas, law, law_settings, training

LAW = run.EXPERIMENTS["law"]


def test_a_search_continues_at_an_edge_and_ends_around_the_best_rate():
    def search(error, start=0, most=10):
        done = {}
        while missing := [i for i in law.searched_rates(done, start, most) if i not in done]:
            done[missing[0]] = error(missing[0])
        return sorted(done)

    assert search(abs) == [-2, -1, 0, 1, 2]
    assert search(lambda i: abs(i - 5)) == [-2, 0, 2, 3, 4, 5, 6]  # 4 and 6 are equal: the search surrounds the first
    assert search(lambda i: math.inf if i > -3 else abs(i + 5), start=2) == [-6, -5, -4, -3, -2, 0, 2, 4]
    assert search(lambda i: -i, most=4) == [-2, 0, 2, 3, 4]  # ends at the highest rate


def test_a_planted_formula_is_found():
    """The best rate is 0.02 (steps/1000)^-0.4 (batch/20)^0.2 (depth/4)^-0.5; 8 times that rate diverges."""

    def measured(config):
        best = 0.02 * (config["steps"] / 1000) ** -0.4 * (config["batch_size"] / 20) ** 0.2
        off = math.log2(config["lr"] / (best * (config["model"]["n_layers"] / 4) ** -0.5))
        return {"loss": 0.1 * math.exp(0.15 * off**2), "outcome": "complete" if off < 3 else "diverged"}

    found = LAW.curves(planted_records(LAW, measured))
    assert len(found) == len(LAW.settings())
    chosen = {setting: curve for setting, curve in found.items() if setting.problem in law_settings.CHOSEN_ON}
    fit = formulas.fitted(formulas.Formula("", {}, formulas.FACTORS), chosen)
    assert fit.constant == pytest.approx(0.02, rel=0.02)
    powers = {"steps": -0.4, "batch": 0.2, "depth": -0.5}
    assert fit.powers == pytest.approx({**dict.fromkeys(formulas.FACTORS, 0.0), **powers}, abs=0.02)
    assert max(curve.regret(fit.predict(setting)) for setting, curve in found.items()) < 0.01
    doubled = formulas.Formula("", powers, constant=0.04)
    regrets = [curve.regret(doubled.predict(setting)) for setting, curve in found.items()]
    assert regrets == pytest.approx([math.expm1(0.15)] * len(found), abs=0.02)


def test_regret_is_infinite_from_the_first_diverging_rate():
    curve = curves.Curve({0.5: [0.2], 1.0: [0.1], 2.0: [0.2], 4.0: [math.inf]})
    assert curve.regret(1.0) == pytest.approx(1.0)  # a parabola through its three errors
    assert curve.regret(1.5) < math.inf == curve.regret(2.0)


def test_a_run_has_its_number_of_steps_in_whole_batches(monkeypatch):
    config = LAW.tiny().run(law_settings.Setting.of("burgers", steps=250), 0).config
    data = {"n_train": 25, "n_val": 4, "n_test": 4, "grid": 32}
    own = training._data("burgers", tuple(data.items()))[1]
    stage = training._StagedData(own.train, own.val, own.test, batches=3).loaders(10, 0)[0]
    sizes = [len(batch["x"]) for _ in range(2) for batch in stage]
    assert sizes == [10] * 6
    monkeypatch.setattr(training, "STAGES", 2)
    measured = training.train({**config, "data": data, "batch_size": 10, "steps": 6})
    assert measured["steps"] == 6
