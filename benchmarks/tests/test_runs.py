"""Runs of the experiments: the runner, the records that it keeps, the pages that quote them, and what a run measures."""

import math
import sys
from dataclasses import replace

import pytest
import torch
from planted import PlantedRecords, planted_records

import run
from experiments import memory, pages, published_code, records, timing, training
from experiments.balancing import ConFIG
from neuralop_mup.lab import outcome
from neuralop_mup.lab.outcome import failed
from neuralop_mup.lab.records import Records


@pytest.fixture
def runner(monkeypatch, capsys):
    """Return a function that calls ``python benchmarks/run.py`` and returns what it prints."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
        run.main()
        return capsys.readouterr()

    return call


@pytest.fixture
def two_steps(monkeypatch):
    monkeypatch.setattr(training, "STAGES", 2)


@pytest.mark.parametrize(
    "name",
    ["paper", "timing", "choices", "optimizers", "unknown-length", "memory", "losses", "gpu-time", "pino", "published-code"],
)
def test_each_experiment_runs_in_little(name, tmp_path, monkeypatch, runner, two_steps):
    """The exported runs give the same page. Experiments of the same classes are left out."""
    file, train = tmp_path / f"{name}.jsonl", training.train
    monkeypatch.setattr(training, "train", lambda config: train({**config, "steps": 2}))
    monkeypatch.setitem(timing._WARM_UP, "cpu", 2)
    monkeypatch.setattr(memory, "_STEPS", 2)
    monkeypatch.setattr(published_code, "SAMPLES", (20, 4, 4))
    page = runner(name, "--tiny", "--folder", tmp_path / "records", "--export", file).out
    page = page[page.index("# ") :]
    assert page.count("| ") > 3
    assert runner(name, "--tiny", "--report", "--folder", file).out.splitlines()[:6] == page.splitlines()[:6]


def test_rollouts_of_published_code(monkeypatch):
    """Its forcing is an eigenfunction of the Laplacian, so this part of the vorticity is known. Errors cover all states."""
    name = "navier–stokes, ten states"
    monkeypatch.setitem(
        published_code.CASES, name, replace(published_code.CASES[name], splits=lambda: published_code.flow(24, (8, 4, 4)))
    )
    states = published_code.CASES[name].splits()[0]
    x = 2 * math.pi / 24 * torch.arange(24)
    forcing = 0.1 * (torch.sin(x[:, None] + x) + torch.cos(x[:, None] + x))
    rate = 8 * math.pi**2 * 1e-3
    part = (states * forcing[..., None]).sum((2, 3)) / forcing.square().sum()
    assert part.mean(0)[0, 0] == pytest.approx((1 - math.exp(-rate)) / rate, rel=0.05)
    errors = {
        optimizer: published_code.train(
            {"equation": name, "width": 4, "optimizer": optimizer, "lr": 1e-3, "steps": steps, "seed": 0, "rule": "none"}
        )["test_loss"]
        for optimizer, steps in (("AdamW", 1), ("Adam", 30))
    }
    assert errors["Adam"] < errors["AdamW"]
    truth = states[:, 0, ..., 10:]
    assert published_code.nrmse(lambda x: truth, states, 10) == 0
    assert published_code.nrmse(lambda x: 1.5 * truth, states, 10) == pytest.approx(0.5, rel=1e-5)


# Records and pages


def test_every_page_agrees_with_its_records():
    assert run.write_pages(check=True) == 0


def test_numbers_and_tables_are_written_between_their_marks():
    numbers = {"law": {"others.median": "1.3 %", "regrets": "\n| a |\n| --- |"}}

    def rendered(text):
        return pages.rendered(text, lambda name: numbers.get(name, {}))

    page = rendered("Loses <!-- = law.others.median -->9 %<!-- / -->.\n<!--=law.regrets--><!--/-->\n")
    assert page == (
        "Loses <!-- = law.others.median -->1.3 %<!-- / -->.\n<!--=law.regrets-->\n\n| a |\n| --- |\n\n<!--/-->\n"
    )
    assert rendered(page) == page
    for text, message in {
        "a <!-- = law.nothing -->1<!-- / -->": "law.nothing.*others.median",
        "a <!-- = price.most -->1<!-- / -->": "price",
        "a\n  <!-- = law.others.median -->1<!-- / -->": "law.others.median",
    }.items():
        with pytest.raises(pages.NoSuchNumber, match=message):
            rendered(text)


def test_a_kept_run_with_other_content_is_measured_again(tmp_path, runner):
    experiment, file = run.EXPERIMENTS["timing"], tmp_path / "timing.jsonl"
    measured = {"loss": 1.0, "metrics": {"ratios": [[1, 1, 1]] * 2, "memory": [1, 1]}}
    used = records.UsedRecords(planted_records(experiment, lambda config: measured))
    experiment.table(used)
    used.write(file, experiment.metrics)
    assert not list(experiment.missing_runs(records.RecordsFile(file)))
    file.write_text(file.read_text().replace('"id": "', '"id": "0', 1))
    assert len(list(experiment.missing_runs(records.RecordsFile(file)))) == 1
    messages = runner("timing", "--report", "--folder", file).err
    assert "1 runs are missing: optimizer, 1D, K = 16, 128 points" in messages
    assert "1 records were not used" in messages


MEASURED = sorted(path.stem for path in pages.RESULTS.glob("*.jsonl"))


@pytest.mark.parametrize("name", MEASURED)
def test_no_experiment_needs_a_training_again(name):
    """73 hours of records: each line belongs to a run, and says which release trained it."""
    experiment, lines = run.EXPERIMENTS[name], records.RecordsFile(pages.RESULTS / f"{name}.jsonl")
    assert not list(experiment.missing_runs(lines))
    assert not lines.refused
    assert all("release" in line for line in lines.lines)
    assert f"release {lines.releases}" in run.described(name)
    used = records.UsedRecords(lines)
    list(experiment.missing_runs(used))
    experiment.table(used)
    assert len(used._used) == len(lines.lines)


def test_records_of_an_older_release_are_reused_by_the_runner_only(tmp_path, monkeypatch, runner):
    """The runner exports them with the release that trained them."""
    (first, *_) = run.EXPERIMENTS["timing"].tiny().missing_runs(PlantedRecords())
    measured = {"loss": 1.0, "metrics": {"ratios": [[1, 1, 1]] * 2, "memory": [1, 1]}}
    record = {**failed(""), "outcome": "complete", "error": None, **measured}
    record["versions"] = {**record["versions"], "neuralop-mup": "0.4.2"}
    with Records(tmp_path).held() as folder:
        folder.write(first, record)
    used = records.UsedRecords(Records(tmp_path))
    assert used.get(first)["loss"] == 1.0
    used.write(tmp_path / "timing.jsonl", ())
    monkeypatch.setattr(outcome, "__version__", "9.9.0")
    (again, *_) = run.EXPERIMENTS["timing"].tiny().missing_runs(PlantedRecords())
    assert Records(tmp_path).get(again) is None
    assert records.RecordsFolder(tmp_path).get(again)["loss"] == 1.0
    found = records.RecordsFile(tmp_path / "timing.jsonl").get(again)
    assert (found["loss"], found["release"]) == (1.0, "0.4")


# Measurements


def test_a_run_in_time_measures_one_step_and_its_rollout(monkeypatch, two_steps):
    """The rollout is the plain loop. A run whose rollout diverges keeps its validation error."""
    first = run.EXPERIMENTS["losses"].tiny().run("korteweg-de-vries-in-time", "l2", 0)
    rollout_error, found = training.rollout_error, {}

    def diverged(model, data, steps):
        state, errors = data.states(0), []
        for number in range(1, steps + 1):
            state, truth = model(state), data.states(number)
            errors.append(((state - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)).mean())
        found["loop"] = float(torch.stack(errors).log().mean().exp())
        found["package"] = rollout_error(model, data, steps)
        return math.inf

    monkeypatch.setattr(training, "rollout_error", diverged)
    measured = training.train({**first.config, "steps": 2})
    assert found["package"] == pytest.approx(found["loop"], rel=1e-5)
    assert measured["loss"] == training.LOST
    assert measured["validation_error"] < 10


def test_balancing_has_the_gradient_of_config():
    """The formula of arXiv 2408.11104: along the sum of the orthogonal parts, as long as the sum of the projections."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(3, dtype=kind, generator=generator, requires_grad=True) for kind in (torch.cfloat, torch.float)]

    def gradient(loss):
        gradients = torch.autograd.grad(loss, params, retain_graph=True)
        return torch.cat([torch.view_as_real(g).flatten() if g.is_complex() else g for g in gradients])

    def orthogonal(first, second):
        return torch.nn.functional.normalize(second - (first @ second) / (first @ first) * first, dim=0)

    losses = {"data": (params[0].abs() ** 2).sum() + params[1][0] ** 3, "equation": (params[0].real + params[1] ** 2).sum()}
    first, second = map(gradient, losses.values())
    direction = torch.nn.functional.normalize(orthogonal(first, second) + orthogonal(second, first), dim=0)
    expected = ((first + second) @ direction) * direction
    assert torch.allclose(gradient(ConFIG(params)(losses, 0)[0]), expected, rtol=1e-4, atol=1e-6)


def test_memory_is_counted_to_the_byte():
    """Adam's states are twice the weights. Memory that is freed no longer counts."""
    with memory.Temporaries() as seen:
        x = torch.zeros(10)
        x = (x + 1).add_(x)[2:]
    assert (seen.most, seen.held) == (80, 40)
    measured = memory.measured(next(run.EXPERIMENTS["memory"].tiny().missing_runs(PlantedRecords())).config)
    assert 2 * measured["weights"] <= measured["states"] < 2.001 * measured["weights"]
