"""The Darcy loss and the data processor: exact residuals, the solver's solutions, gradients, wrong input."""

import math

import numpy as np
import pytest
import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer
from neuralop.models import FNO

from neuralop_mup.lab.data.problem_data import normalizer_of
from neuralop_mup.lab.problems.darcy import Darcy, solve_darcy
from neuralop_mup.losses import DarcyEqnLoss, PhysicalDataProcessor, sine_mollifier
from neuralop_mup.losses.equations import relative_l2
from support.errors import refused, warned

DOUBLE = torch.float64


def random_like(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def darcy_data(n=16, batch=4, solver_grid=None):
    """Return coefficients 3 and 12 and the solver's solutions, with channel axes."""
    problem = Darcy(grid=n, solver_grid=solver_grid or n)
    return problem.solve([np.random.default_rng(i) for i in range(batch)])


# --- Darcy's equation


@pytest.mark.parametrize(
    ("average", "residuals"), [("harmonic", (138.4, -45.2, -45.2, -2)), ("arithmetic", (187, -69.5, -69.5, -2))]
)
def test_darcy_residual_worked_out_by_hand(average, residuals):
    # 4 nodes, h = 1/3. u = 1 at node (1, 1), else 0. a = 12 at (2, 1) and (1, 2), else 3. Faces of (1, 1): 3 twice, and
    # 2/(1/3 + 1/12) = 4.8 twice. The operator is (3 + 3 + 4.8 + 4.8)·9 = 140.4 there, −4.8·9 = −43.2 at (2, 1) and (1, 2)
    # and 0 at (2, 2). With f = 2: 138.4, −45.2, −45.2, −2, and ‖f‖ = 4. With the arithmetic mean these faces have
    # (3 + 12)/2 = 7.5: (3 + 3 + 7.5 + 7.5)·9 = 189 at (1, 1) and −67.5 at its neighbours.
    u, a = torch.zeros(1, 1, 4, 4, dtype=DOUBLE), torch.full((1, 1, 4, 4), 3.0, dtype=DOUBLE)
    u[0, 0, 1, 1] = 1
    a[0, 0, 2, 1] = a[0, 0, 1, 2] = 12
    expected = math.sqrt(sum(r**2 for r in residuals)) / 4
    assert float(DarcyEqnLoss(2.0, face_average=average)(u, x=a)) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("n", "forcing"), [(33, 1.0), (16, 1 + random_like(16, 16) ** 2)])
def test_residual_of_the_solvers_solution_is_zero(n, forcing):
    x, _ = darcy_data(n)
    y = solve_darcy(x[:, 0], forcing)[:, None]
    assert float(DarcyEqnLoss(forcing)(y, x=x, y=y)) < 1e-12
    for reduction, samples in (("sum", len(y)), ("mean", 1)):  # linear in u
        loss = DarcyEqnLoss(forcing, reduction=reduction)
        assert float(loss(1.1 * y, x=x, y=y)) == pytest.approx(0.1 * samples, rel=1e-6)


def test_data_solved_with_the_other_mean_triggers_a_warning():
    x, y = darcy_data()
    own = float(DarcyEqnLoss(face_average="arithmetic", reduction="mean")(y, x=x))
    with warned("face_average='harmonic'") as caught:
        DarcyEqnLoss(face_average="arithmetic")(0 * y, x=x, y=y)
    (warning,) = caught
    assert own > 0.1 and f"{own:.2g}" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("n", [8, 32])
def test_data_sampled_from_a_finer_grid_triggers_a_warning(n):
    x, y = darcy_data(n, batch=2, solver_grid=3 * (n - 1) + 1)
    with pytest.warns(UserWarning, match="finer grid"):
        assert float(DarcyEqnLoss()(y, x=x, y=y)) > 0.1
    DarcyEqnLoss()(y, x=x)  # no y to check


def test_gradient_and_half_precision():
    u, x = random_like(2, 1, 5, 5, seed=1), 3 + random_like(2, 1, 5, 5).abs()
    loss = DarcyEqnLoss()
    assert torch.autograd.gradcheck(lambda field: loss(field, x=x), u.clone().requires_grad_())
    field = u.bfloat16().requires_grad_()
    low = loss(field, x=x.float())
    torch.testing.assert_close(low, loss(field.detach().double(), x=x).float(), rtol=1e-5, atol=0)
    low.backward()
    assert torch.isfinite(field.grad).all()


def test_relative_norm_has_a_gradient_where_the_error_is_zero():
    v = random_like(3, 5, 6)
    u = v.clone().requires_grad_()
    relative_l2(u, v).sum().backward()
    assert not u.grad.any()  # LpLoss's is NaN here


# --- the data processor


def darcy_setup():
    x, y = (values.float() for values in darcy_data())
    # The mollified output is normalised as y / mollifier would be, up to its mean: only its size matters here.
    out = UnitGaussianNormalizer(mean=torch.zeros(1, 1, 1, 1), std=y.std().reshape(1, 1, 1, 1))
    return x, y, PhysicalDataProcessor(normalizer_of(x), out, sine_mollifier)


@pytest.mark.parametrize("training", [True, False])
def test_losses_get_physical_fields_and_the_model_normalised_ones(training):
    x, y, processor = darcy_setup()
    processor.train(training)
    batch = {"x": x, "y": y, "note": "kept"}
    sample = processor.preprocess(batch)
    torch.testing.assert_close(sample["x"], (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)
    out, after = processor.postprocess(torch.ones_like(y), sample)
    assert after["x"] is batch["x"] is x and after["y"] is y and set(after) == set(batch) == {"x", "y", "note"}
    torch.testing.assert_close(out, (y.std() * sine_mollifier((16, 16))).float().expand_as(out))
    assert not out[..., 0].any() and not out[..., -1, :].any()


def test_processor_wraps_a_model_and_works_at_any_resolution():
    x, y, processor = darcy_setup()
    processor.wrap(FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=4, n_layers=1))
    for n in (16, 8):
        out, sample = processor(x=x[..., :n, :n], y=y[..., :n, :n])
        assert out.shape == sample["y"].shape
    processor.mollifier = sine_mollifier((16, 16))
    with refused("(16,16) (8,8)"):
        processor(x=x[..., :8, :8], y=y[..., :8, :8])


@pytest.mark.parametrize("normalizes_x", [True, False])
def test_neuralops_own_processor_is_rejected(normalizes_x):
    x, y, _ = darcy_setup()
    processor = DefaultDataProcessor(normalizer_of(x) if normalizes_x else None, normalizer_of(y))
    sample = processor.preprocess({"x": x, "y": y})
    with refused("PhysicalDataProcessor"):
        DarcyEqnLoss()(0 * y, **sample)


# --- wrong input

X, Y = darcy_data(8, 2)
HOLE = torch.zeros_like(X)
HOLE[0, 0, 1, 1] = math.nan
BAD = {
    "NaN in x": (Y, {"x": X + HOLE, "y": Y}, "x (0,0,1,1)"),
    "NaN in y": (Y, {"x": X, "y": Y + HOLE}, "y (0,0,1,1)"),
    "infinite": (Y, {"x": X / 0.0}, "x (0,0,0,0)"),
    "not square": (Y[..., :-1], {"x": X[..., :-1]}, "(batch,1,n,n) (2,1,8,7)"),
    "no channel axis": (Y[:, 0], {"x": X}, "(batch,1,n,n) (2,8,8)"),
    "channels": (Y.expand(2, 3, 8, 8), {"x": X}, "(batch,1,n,n) (2,3,8,8)"),
    "few points": (Y[..., :3, :3], {"x": X[..., :3, :3]}, "4 (2,1,3,3)"),
    "no boundary": (Y[..., 1:-1, 1:-1], {"x": X[..., 1:-1, 1:-1], "y": Y[..., 1:-1, 1:-1]}, "y PhysicalDataProcessor"),
    "normalised x": (Y, {"x": X - X.mean(), "y": Y}, "x[:,0] PhysicalDataProcessor"),
    "grid of x": (Y, {"x": X[..., :6, :6]}, "x (2,1,6,6) (2,1,8,8)"),
    "no x": (Y, {"y": Y}, "'x'"),
}


@pytest.mark.parametrize(("field", "sample", "names"), BAD.values(), ids=BAD)
def test_bad_fields(field, sample, names):
    loss = DarcyEqnLoss()
    for _ in range(2):  # a call that failed does not count as a check
        with refused(names):
            loss(field, **sample)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"forcing": 0.0}, "forcing"),
        ({"reduction": "max"}, "reduction 'max'"),
        ({"face_average": "aritmetic"}, "face_average 'aritmetic' 'arithmetic'"),
    ],
)
def test_bad_arguments(arguments, names):
    with refused(names):
        DarcyEqnLoss(**arguments)
