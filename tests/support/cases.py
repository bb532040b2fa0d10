"""Small model configurations that tests iterate over. Each case builds its model only when it is asked to."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import neuralop.models
import torch
from neuralop.layers.legacy_spectral_convolution import SpectralConv as LegacySpectralConv
from neuralop.models import CODANO, FNO, FNOGNO, GINO, TFNO, UNO, UQNO
from torch import nn

from support import like_physicsnemo


@dataclass(frozen=True, eq=False)
class Case:
    """An FNO at target size, by its keyword arguments, and the sizes of its base."""

    name: str
    n_modes: tuple[int, ...]
    base_modes: tuple[int, ...]
    kwargs: dict = field(default_factory=dict)
    width: int = 24
    base_width: int = 8
    model: type = FNO

    @property
    def base(self) -> dict:
        return {"n_modes": self.base_modes, "hidden_channels": self.base_width}

    @property
    def same(self) -> Callable[[], nn.Module]:
        """A base of the model's own size."""
        return lambda: self.sized(self.width, self.n_modes)

    def sized(self, width: int, modes: tuple[int, ...], **overrides) -> nn.Module:
        """Build the model at any size from the current random state."""
        kwargs = {"n_modes": modes, "hidden_channels": width, "in_channels": 2, "out_channels": 3, "n_layers": 2}
        return self.model(**{**kwargs, **self.kwargs, **overrides})

    def build(self, seed: int = 0, **overrides) -> nn.Module:
        torch.manual_seed(seed)
        return self.sized(self.width, self.n_modes, **overrides)

    def build_base(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.sized(self.base_width, self.base_modes)

    def batch(self, seed: int = 0, size: int = 3, grid: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an input and a target on ``grid`` points per axis (default: enough for the target's modes)."""
        g = torch.Generator().manual_seed(seed)
        grid = tuple(grid or 2 * n for n in self.n_modes)
        dtype = torch.cfloat if self.kwargs.get("complex_data") else torch.float
        x = torch.randn(size, 2, *grid, generator=g, dtype=dtype)
        return x, torch.randn(size, 3, *grid, generator=g, dtype=dtype)

    def output(self, model: nn.Module, x: Any) -> torch.Tensor:
        return model(x)


@dataclass(frozen=True, eq=False)
class Model(Case):
    """Any model: ``make(width, modes per axis)`` builds it, ``inputs(generator, n=grid points)`` returns its arguments."""

    make: Callable[..., nn.Module] = None
    inputs: Callable[..., dict] = None
    overrides: dict | None = None  # constructor overrides for base, for models that keep their arguments
    pick: Callable[[Any], torch.Tensor] = staticmethod(lambda y: y)

    @property
    def base(self) -> dict | Callable[[], nn.Module]:
        return (lambda: self.sized(self.base_width, self.base_modes)) if self.overrides is None else self.overrides

    def sized(self, width: int, modes: tuple[int, ...]) -> nn.Module:
        with contextlib.redirect_stdout(io.StringIO()):  # neuralop's models print while they are built
            return self.make(width, modes)

    @cache  # noqa: B019, cases are constants of this module
    def batch(self, seed: int = 0, size: int = 3, grid: int | None = None) -> tuple[dict, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = self.inputs(generator, **({"n": grid} if grid else {}))
        with torch.no_grad():
            y = self.output(self.build(), x)
        return x, torch.randn(y.shape, generator=torch.Generator().manual_seed(seed + 1))

    def output(self, model: nn.Module, x: dict) -> torch.Tensor:
        return self.pick(model(**x))


def _case(name: str, **kwargs) -> Case:
    return Case(name, n_modes=(8, 6), base_modes=(4, 4), kwargs=kwargs)


FNO_CASES = [
    Case("1d", (16,), (4,)),
    Case("2d", (8, 6), (4, 4)),
    Case("3d", (4, 4, 6), (4, 4, 4), {"n_layers": 1}),
    *[_case(f"fno_skip={s}", fno_skip=s) for s in ("soft-gating", "identity", None)],
    _case("channel_mlp_skip=linear", channel_mlp_skip="linear"),
    _case("no_channel_mlp", use_channel_mlp=False),
    *[_case(n, norm=n) for n in ("group_norm", "batch_norm", "instance_norm")],
    _case("ratios=1", lifting_channel_ratio=1, projection_channel_ratio=1),
    _case("no_embedding", positional_embedding=None),
    _case("domain_padding", domain_padding=0.25),
    _case("preactivation", preactivation=True),
    _case("stabilizer", stabilizer="tanh"),
    _case("max_n_modes", max_n_modes=(10, 10)),
    _case("separable", separable=True),
]

FACTORIZATIONS = ("tucker", "cp", "tt")


def _factorized(name: str, factorization: str, rank, **kwargs) -> Case:
    return _case(f"{factorization}_{name}", factorization=factorization, rank=rank, **kwargs)


LAYOUT_CASES = [
    *[
        case
        for f in FACTORIZATIONS
        for case in (
            _factorized("factorized", f, 0.4),
            _factorized("separable", f, 0.5, separable=True),
        )
    ],
    _factorized("reconstructed", "tucker", 0.4, implementation="reconstructed"),
    _factorized("max_n_modes", "tucker", 0.4, max_n_modes=(10, 10)),
    _factorized("ranks", "tucker", [4, 5, 3, 2]),
    _factorized("rank=6", "cp", 6),
    _factorized("rank=4", "tt", 4),
    _factorized("fixed_rank_modes", "tucker", 0.4, fixed_rank_modes=[2, 3]),
    Case("tucker_1d", (16,), (4,), {"factorization": "tucker", "rank": 0.4}),
    Case("tfno", (8, 6), (4, 4), {"rank": 0.4}, model=TFNO),
    Case("complex_data_1d", (16,), (4,), {"complex_data": True, "positional_embedding": None}),
    Case("complex_data_tucker_1d", (16,), (4,), {"complex_data": True, "positional_embedding": None, "norm": None}
         | {"factorization": "tucker", "rank": 0.5}),
]  # fmt: skip


class LegacyNet(nn.Module):
    """The legacy spectral convolution, which no neuralop model uses any longer, between two pointwise maps."""

    def __init__(self, width, modes, kwargs):
        super().__init__()
        self.width, self.modes, self.kwargs = width, modes, kwargs
        self.lifting = nn.Conv2d(2, width, 1)
        self.conv = LegacySpectralConv(width, width, modes, n_layers=2, **kwargs)
        self.projection = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        x = self.lifting(x)
        for i in range(2):
            x = torch.nn.functional.gelu(self.conv(x, i))
        return self.projection(x)


def _uno(width, modes, **kwargs):
    return UNO(
        in_channels=2,
        out_channels=3,
        hidden_channels=width,
        lifting_channels=16,
        projection_channels=16,
        n_layers=3,
        uno_out_channels=[width, 2 * width, width],
        uno_n_modes=[modes, (4, 4), modes],
        uno_scalings=[[1, 1], [0.5, 0.5], [2, 2]],
        channel_mlp_skip="linear",
        **kwargs,
    )


_GNO = {
    "gno_coord_dim": 2,
    "gno_embed_channels": 4,
    "gno_use_open3d": False,
    "gno_use_torch_scatter": False,
    "fno_n_layers": 1,
}


def _gino(width, modes, **kwargs):
    # New lists for each model: GNOBlock appends to its arguments, and neuralop's default lists are shared.
    return GINO(
        2,
        3,
        fno_in_channels=2,
        fno_n_modes=modes,
        fno_hidden_channels=width,
        in_gno_channel_mlp_hidden_layers=[10, 10],
        out_gno_channel_mlp_hidden_layers=[12, 10],
        in_gno_radius=0.5,
        out_gno_radius=0.5,
        **{**_GNO, **kwargs},
    )


def _fnogno(width, modes, **kwargs):
    return FNOGNO(
        2,
        3,
        fno_n_modes=modes,
        fno_hidden_channels=width,
        gno_channel_mlp_hidden_layers=[12, 10],
        gno_radius=0.5,
        **{**_GNO, **kwargs},
    )


def _codano(width, modes, **kwargs):
    return CODANO(
        lifting_channels=12,
        projection_channels=12,
        hidden_variable_codimension=width,
        n_layers=2,
        n_modes=[list(modes)] * 2,
        n_heads=[2, 2],
        per_layer_scaling_factors=[[1, 1]] * 2,
        attention_scaling_factors=[1, 1],
        **kwargs,
    )


def _field(g, n=16, samples=3, axes=2, **more):
    return {"x": torch.randn(samples, 2, *(n,) * axes, generator=g), **more}


_small_field = partial(_field, n=8, samples=2)


def _grid(n):
    return torch.stack(torch.meshgrid(torch.linspace(0, 1, n), torch.linspace(0, 1, n), indexing="ij"), -1)


def _gino_inputs(g, n=12, **more):
    return {
        "input_geom": torch.rand(1, 20, 2, generator=g),
        "latent_queries": _grid(n)[None],
        "output_queries": torch.rand(1, 15, 2, generator=g),
        "x": torch.randn(2, 20, 2, generator=g),
        **more,
    }


def _fnogno_inputs(g, n=12):
    return {
        "in_p": _grid(n),
        "out_p": torch.rand(15, 2, generator=g),
        "f": torch.randn(n, n, 2, generator=g),
    }


def _model(name, make, inputs, **kwargs) -> Model:
    return Model(name, (8, 8), (4, 4), make=make, inputs=inputs, **kwargs)


MODEL_CASES = [
    *[
        _model(f"legacy_{name}", partial(LegacyNet, kwargs=kwargs), _field)
        for name, kwargs in {
            "dense": {},
            "separable": {"separable": True, "implementation": "factorized"},
            "joint": {"joint_factorization": True},
            "tucker_joint": {"joint_factorization": True, "factorization": "tucker", "rank": 0.4},
            "cp": {"factorization": "cp", "rank": 0.4, "implementation": "factorized"},
            "tt": {"factorization": "tt", "rank": 0.4},
            "incremental": {"incremental_n_modes": (4, 4)},
        }.items()
    ],
    _model("uno", _uno, _field),
    _model("uno_tucker", partial(_uno, factorization="tucker", rank=0.4), _field),
    _model("uno_norm", partial(_uno, norm="group_norm", horizontal_skip="soft-gating"), _field),
    _model("gino", _gino, _gino_inputs),
    _model("gino_ada_in", partial(_gino, fno_norm="ada_in"), partial(_gino_inputs, ada_in=torch.tensor([0.5]))),
    _model("gino_nonlinear", partial(_gino, out_gno_transform_type="nonlinear"), _gino_inputs),
    _model("fnogno", _fnogno, _fnogno_inputs, overrides={"fno_hidden_channels": 8, "fno_n_modes": (4, 4)}
           | {"gno_channel_mlp_hidden_layers": [12, 10]}),
    _model("codano", _codano, _small_field),
    _model("codano_token", lambda w, k: _codano(w, k, attention_token_dim=w, use_horizontal_skip_connection=True,
           horizontal_skips_map={1: 0}), _small_field),
    _model("codano_cls_token", lambda w, k: _codano(w, k, enable_cls_token=True, use_positional_encoding=True,
           positional_encoding_dim=2, positional_encoding_modes=[4, 4], variable_ids=["a", "b"]),
           partial(_small_field, input_variable_ids=["a", "b"])),
    _model("uqno", lambda w, k: UQNO(FNO(k, 2, 3, w, n_layers=1)), _field, pick=lambda y: y[1]),
]  # fmt: skip

SPHERE = hasattr(neuralop.models, "LocalNO")  # torch_harmonics is installed
SPHERE_CASES = []
if SPHERE:
    from neuralop.models import SFNO, LocalNO

    def _local_no(width, modes, **kwargs):
        return LocalNO(modes, 2, 3, width, default_in_shape=(16, 16), n_layers=2, **kwargs)

    SPHERE_CASES = [
        *[
            _model(f"sfno_{f}", partial(lambda w, k, f: SFNO(k, 2, 3, w, n_layers=2, factorization=f, rank=0.4), f=f),
                   lambda g, n=16: {"x": torch.randn(3, 2, n, 2 * n, generator=g)},
                   overrides={"hidden_channels": 8, "n_modes": (4, 4)})
            for f in ("dense", *FACTORIZATIONS)
        ],
        _model("local_no", _local_no, _field),
        _model("local_no_groups", partial(_local_no, disco_groups=2, use_channel_mlp=True, norm="group_norm"), _field),
        _model("local_no_per_channel", partial(_local_no, mix_derivatives=False, disco_bias=False), _field,
               overrides={"hidden_channels": 8, "n_modes": (4, 4)}),
    ]  # fmt: skip


def _rno(width, modes, **kwargs):
    return neuralop.models.RNO(modes, 2, 3, width, **{"n_layers": 2, **kwargs})


def _otno(width, modes, **kwargs):
    return neuralop.models.OTNO(modes, width, in_channels=2, out_channels=3, n_layers=2, **kwargs)


def _sequence(g, n=8):
    return {"x": torch.randn(2, 2, 2, n, n, generator=g)}


def _transported(g, n=16):
    return {"x": torch.randn(1, 2, n, n, generator=g), "ind_dec": torch.randint(n * n, (50,), generator=g)}


def _builds(case: Case) -> bool:
    """Whether the installed neuralop has the model and its arguments, which its version number does not reveal."""
    try:
        with torch.device("meta"):
            return case.build() is not None
    except (AttributeError, TypeError):
        return False


# On neuralop's main branch after 2.0.0. Only those that the installed version has are tested.
_SIZES = {"hidden_channels": 8, "n_modes": (4, 4)}
_NEXT = [
    _case("conv_bias_kernel", conv_bias_kernel=3),
    _case("norm_groups", norm="group_norm", norm_groups=4),
    _case("asymmetric", enforce_hermitian_symmetry=False),
    _model("rno", _rno, _sequence, overrides=_SIZES),
    _model("rno_tucker", partial(_rno, factorization="tucker", rank=0.4, rno_skip=True), _sequence, overrides=_SIZES),
    _model("otno", _otno, _transported, overrides=_SIZES),
]

_on_grid = partial(_field, samples=2)


def physicsnemo_cases(name: str, fno: type, afno: type) -> list[Model]:
    """Return cases of PhysicsNeMo's FNO and AFNO, or of classes with their layout."""

    def make(width: int, modes: tuple[int, ...]) -> nn.Module:
        axes = len(modes)
        return fno(2, 3, latent_channels=width, num_fno_modes=list(modes), dimension=axes, num_fno_layers=2, padding=0)

    def make_afno(width: int, modes: tuple[int, ...]) -> nn.Module:
        return afno([16, 16], 2, 3, patch_size=[4, 4], embed_dim=width, depth=2, num_blocks=4)

    return [
        Model(f"{name}_fno_1d", (6,), (3,), make=make, inputs=partial(_on_grid, axes=1),
              overrides={"latent_channels": 8, "num_fno_modes": [3]}),
        Model(f"{name}_fno_2d", (6, 5), (3, 3), make=make, inputs=_on_grid,
              overrides={"latent_channels": 8, "num_fno_modes": [3, 3]}),
        Model(f"{name}_fno_3d", (4, 3, 3), (2, 2, 2), make=make, inputs=partial(_on_grid, n=8, axes=3),
              overrides={"latent_channels": 8, "num_fno_modes": [2, 2, 2]}),
        _model(f"{name}_afno", make_afno, _on_grid, overrides={"embed_dim": 8}),
    ]  # fmt: skip


# Small models with PhysicsNeMo's layout. tests_ci/test_installed_physicsnemo.py has the package's own.
PHYSICSNEMO_CASES = physicsnemo_cases("like_physicsnemo", like_physicsnemo.FNO, like_physicsnemo.AFNO)
NEXT_CASES = [case for case in _NEXT if _builds(case)]

# All cases, and those without the spherical ones, which tests_ci/test_sphere.py runs.
ORDINARY_CASES = [*FNO_CASES, *LAYOUT_CASES, *MODEL_CASES, *NEXT_CASES, *PHYSICSNEMO_CASES]
CASES = [*FNO_CASES, *LAYOUT_CASES, *MODEL_CASES, *SPHERE_CASES, *NEXT_CASES, *PHYSICSNEMO_CASES]
NAMES = [case.name for case in CASES]
BY_NAME = {case.name: case for case in CASES}
