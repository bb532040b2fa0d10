"""Equation losses: exact solutions, our own solvers' solutions, orders, gradients, neuralop's trainer, bad input."""

import math

import numpy as np
import pytest
import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer
from neuralop.models import FNO

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.darcy import Darcy, solve_darcy
from neuralop_mup.losses import DarcyEqnLoss, PhysicalDataProcessor, sine_mollifier
from neuralop_mup.losses.equations import relative_l2
from problems.equations import InitialConditionLoss, NavierStokesEqnLoss, PeriodicBurgersEqnLoss

DOUBLE = torch.float64


def rng(seed=0):
    return np.random.default_rng(seed)


def random_like(*shape, seed=0):
    return torch.from_numpy(rng(seed).standard_normal(shape))


def darcy_data(n=16, batch=4):
    """Coefficients 3 and 12 and the solver's solutions on the same grid, with channel axes."""
    return Darcy(grid=n, solver_grid=n).solve([rng(i) for i in range(batch)])


# --- Darcy


@pytest.mark.parametrize(
    ("average", "residuals"), [("harmonic", (138.4, -45.2, -45.2, -2)), ("arithmetic", (187, -69.5, -69.5, -2))]
)
def test_darcy_by_hand(average, residuals):
    # 4 nodes, h = 1/3. u = 1 at node (1, 1), else 0. a = 12 at (2, 1) and (1, 2), else 3. Faces of (1, 1): 3 twice, and
    # 2/(1/3 + 1/12) = 4.8 twice. The operator is (3 + 3 + 4.8 + 4.8)·9 = 140.4 there, −4.8·9 = −43.2 at (2, 1) and (1, 2)
    # and 0 at (2, 2). With f = 2: 138.4, −45.2, −45.2, −2, and ‖f‖ = 4. By the arithmetic mean these faces have
    # (3 + 12)/2 = 7.5: (3 + 3 + 7.5 + 7.5)·9 = 189 at (1, 1) and −67.5 at its neighbours.
    u, a = torch.zeros(1, 1, 4, 4, dtype=DOUBLE), torch.full((1, 1, 4, 4), 3.0, dtype=DOUBLE)
    u[0, 0, 1, 1] = 1
    a[0, 0, 2, 1] = a[0, 0, 1, 2] = 12
    expected = math.sqrt(sum(r**2 for r in residuals)) / 4
    assert float(DarcyEqnLoss(2.0, face_average=average)(u, x=a)) == pytest.approx(expected, rel=1e-8)


def test_darcy_data_of_another_scheme_is_warned_of():
    x, y = darcy_data(16)
    own = float(DarcyEqnLoss(face_average="arithmetic", reduction="mean")(y, x=x))
    with pytest.warns(UserWarning, match="of u = 0 is 1, so the equation pulls against the data") as caught:
        DarcyEqnLoss(face_average="arithmetic")(0 * y, x=x, y=y)
    (warning,) = caught
    assert own > 0.1 and f"residual is {own:.2g}," in str(warning.message) and warning.filename == __file__
    assert "with the harmonic mean of a on faces: take DarcyEqnLoss(face_average='harmonic')" in str(warning.message)


@pytest.mark.parametrize("n", [8, 32])
def test_darcy_data_sampled_from_a_finer_grid_is_warned_of(n):
    x, y = Darcy(grid=n, solver_grid=3 * (n - 1) + 1).solve([rng(i) for i in range(2)])
    with pytest.warns(UserWarning, match="y was solved on a finer grid.*solve on the data's own grid"):
        assert float(DarcyEqnLoss()(y, x=x, y=y)) > 0.1
    DarcyEqnLoss()(y, x=x)  # nothing to compare with


@pytest.mark.parametrize(("n", "forcing"), [(16, 1.0), (33, 1.0), (16, 1 + random_like(16, 16) ** 2)])
def test_darcy_of_the_solvers_solution(n, forcing):
    x, _ = darcy_data(n)
    y = solve_darcy(x[:, 0], forcing)[:, None]
    assert float(DarcyEqnLoss(forcing)(y, x=x, y=y)) < 1e-12
    for reduction, samples in (("sum", len(y)), ("mean", 1)):  # linear in u
        loss = DarcyEqnLoss(forcing, reduction=reduction)
        assert float(loss(1.1 * y, x=x, y=y)) == pytest.approx(0.1 * samples, rel=1e-6)


# --- Burgers


def test_burgers_in_space_is_exact():
    # u = sin 2πx at all times: u u_x − ν u_xx = π sin 4πx + 4π²ν sin 2πx, mean square π²/2 + 8π⁴ν².
    u = torch.sin(2 * math.pi * torch.arange(16, dtype=DOUBLE) / 16).expand(3, 1, 6, 16)
    loss = PeriodicBurgersEqnLoss(viscosity=0.1)(u, x=u)
    assert float(loss) == pytest.approx(3 * (math.pi**2 / 2 + 8 * math.pi**4 * 0.01), rel=1e-12)


def test_the_ends_of_the_time_do_not_count():
    # A jump in time at the first point: differences at the first two times see it, and of these only the second counts.
    u = torch.zeros(1, 1, 6, 8, dtype=DOUBLE)
    u[:, :, 0] = 1
    # dt = 1/5: −1/2 / dt = −5/2 at the second, 0 from the third on.
    assert float(PeriodicBurgersEqnLoss(0.1)(u)) == pytest.approx(2.5**2 / 4)


# --- what all have in common


_SPACE_TIME, _TORUS_TIME = random_like(2, 1, 5, 6), random_like(2, 1, 4, 6, 6)
SMALL = {
    "darcy": (DarcyEqnLoss(), random_like(2, 1, 5, 5, seed=1), 3 + random_like(2, 1, 5, 5).abs()),
    "burgers": (PeriodicBurgersEqnLoss(0.1), _SPACE_TIME, None),
    "initial": (InitialConditionLoss(), _SPACE_TIME, random_like(2, 1, 1, 6, seed=1).expand_as(_SPACE_TIME)),
    "navier-stokes": (NavierStokesEqnLoss(7.0, random_like(6, 6, seed=2)), _TORUS_TIME, None),
    "unforced": (NavierStokesEqnLoss(7.0, 0.0), _TORUS_TIME, None),
}


@pytest.mark.parametrize(("loss", "u", "x"), SMALL.values(), ids=SMALL)
def test_gradients_precision_and_the_sum_over_the_batch(loss, u, x):
    assert torch.autograd.gradcheck(lambda field: loss(field, x=x), u.clone().requires_grad_())
    each = [float(loss(u[i : i + 1], x=None if x is None else x[i : i + 1])) for i in range(len(u))]
    assert float(loss(u, x=x)) == pytest.approx(sum(each), rel=1e-12)
    for dtype in (torch.float32, torch.bfloat16):
        field = u.to(dtype).requires_grad_()
        low = loss(field, x=None if x is None else x.float())
        torch.testing.assert_close(low, loss(field.detach().double(), x=x).float(), rtol=1e-5, atol=0)  # in float32
        low.backward()
        assert torch.isfinite(field.grad).all()


def test_relative_norm_has_a_gradient_where_the_error_is_zero():
    v = random_like(3, 5, 6, seed=1)
    u = v.clone().requires_grad_()
    relative_l2(u, v).sum().backward()
    assert not u.grad.any()  # LpLoss's is NaN here


# --- the data processor


def normalizer(values):
    fitted = UnitGaussianNormalizer(dim=[0, *range(2, values.ndim)])
    fitted.fit(values)
    return fitted


def darcy_setup(n=16):
    x, y = (values.float() for values in darcy_data(n))
    # The mollified output is normalised as y / mollifier would be, up to its mean: only its size matters here.
    out = UnitGaussianNormalizer(mean=torch.zeros(1, 1, 1, 1), std=y.std().reshape(1, 1, 1, 1))
    return x, y, PhysicalDataProcessor(normalizer(x), out, sine_mollifier)


@pytest.mark.parametrize("training", [True, False])
def test_losses_see_physical_fields_and_the_model_normalised_ones(training):
    x, y, processor = darcy_setup()
    processor.train(training)
    given = {"x": x, "y": y, "note": "kept"}
    sample = processor.preprocess(given)
    torch.testing.assert_close(sample["x"], (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)
    out, after = processor.postprocess(torch.ones_like(y), sample)
    assert after["x"] is given["x"] is x and after["y"] is y and set(after) == set(given) == {"x", "y", "note"}
    torch.testing.assert_close(out, (y.std() * sine_mollifier((16, 16))).float().expand_as(out))
    assert not out[..., 0].any() and not out[..., -1, :].any()


def test_processor_wraps_a_model_and_suits_any_resolution():
    x, y, processor = darcy_setup()
    processor.wrap(FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=4, n_layers=1))
    for n in (16, 8):
        out, sample = processor(x=x[..., :n, :n], y=y[..., :n, :n])
        assert out.shape == sample["y"].shape
    processor.mollifier = sine_mollifier((16, 16))
    with pytest.raises(MupError, match="grid is"):
        processor(x=x[..., :8, :8], y=y[..., :8, :8])


@pytest.mark.parametrize("normalizes_x", [True, False])
def test_neuralops_own_processor_is_found_out(normalizes_x):
    x, y, _ = darcy_setup()
    processor = DefaultDataProcessor(normalizer(x) if normalizes_x else None, normalizer(y))
    sample = processor.preprocess({"x": x, "y": y})
    with pytest.raises(MupError, match="PhysicalDataProcessor"):
        DarcyEqnLoss()(0 * y, **sample)


# --- bad input


X, Y = darcy_data(8, 2)
HOLE = torch.zeros_like(X)
HOLE[0, 0, 1, 1] = math.nan
BAD = {
    "NaN in x": (Y, {"x": X + HOLE, "y": Y}, r"x has 1 entries.*\(0, 0, 1, 1\)"),
    "NaN in y": (Y, {"x": X, "y": Y + HOLE}, "y has 1 entries"),
    "not square": (Y[..., :-1], {"x": X[..., :-1]}, "equally many points"),
    "no boundary": (Y[..., 1:-1, 1:-1], {"x": X[..., 1:-1, 1:-1], "y": Y[..., 1:-1, 1:-1]}, "lacks"),
    "normalised x": (Y, {"x": X - X.mean(), "y": Y}, "above 0.*PhysicalDataProcessor"),
    "axes": (Y[:, 0], {"x": X}, r"\(batch, 1, n, n\)"),
    "infinite": (Y, {"x": X / 0.0}, "NaN or infinite"),
    "channels": (Y.expand(2, 3, 8, 8), {"x": X}, r"\(batch, 1, n, n\)"),
    "grid of x": (Y, {"x": X[..., :6, :6]}, "same grid"),
    "few points": (Y[..., :3, :3], {"x": X[..., :3, :3]}, "at least 4 points"),
    "no x": (Y, {"y": Y}, "needs the sample's x"),
}


@pytest.mark.parametrize(("field", "sample", "message"), BAD.values(), ids=BAD)
def test_bad_fields(field, sample, message):
    loss = DarcyEqnLoss()
    for _ in range(2):  # a failed call has not made it pass
        with pytest.raises(MupError, match=message) as caught:
            loss(field, **sample)
        assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forcing": 0.0}, "not zero"),
        ({"reduction": "max"}, "'max'"),
        ({"face_average": "aritmetic"}, "'aritmetic': did you mean 'arithmetic'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(MupError, match=message):
        DarcyEqnLoss(**arguments)
