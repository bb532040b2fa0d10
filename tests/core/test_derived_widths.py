"""Constructors that derive inner widths from the width, in the ways that people write: each layer must learn at all widths,
or a message must name the argument.
"""

import warnings

import pytest
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from support.errors import of_category

FORWARD = "return self.out(h := self.fno(x)) + self.out(self.down(torch.tanh(self.up(h))))"


def network(arguments, body, inner="self.inner", width="width"):
    """Return a class with these constructor arguments; ``body`` sets the inner width of a perceptron."""
    source = f"""
class Net(nn.Module):
    def __init__(self, {arguments}):
        super().__init__()
        {body}
        self.fno = FNO((8,), 1, {width}, {width}, n_layers=2)
        self.up, self.down = nn.Conv1d({width}, {inner}, 1), nn.Conv1d({inner}, {width}, 1)
        self.out = nn.Conv1d({width}, 1, 1)

    def forward(self, x):
        {FORWARD}
"""
    namespace = {"nn": nn, "FNO": FNO, "torch": torch, "__name__": __name__}
    exec(source, namespace)
    return namespace["Net"]


KEEP = "self.width = width; "
FOLLOWED = {
    "None": network("width, inner=None", KEEP + "self.inner = 4 * width if inner is None else inner"),
    "or": network("width, inner=None", KEEP + "self.inner = inner or 2 * width"),
    "zero": network("width, inner=0", KEEP + "self.inner = inner or 2 * width"),
    "minus one": network("width, inner=-1", KEEP + "self.inner = 2 * width if inner < 0 else inner"),
    "a usual name": network(
        "width, hidden_channels=None", KEEP + "self.hidden_channels = hidden_channels or 3 * width", "self.hidden_channels"
    ),
    "mlp_dim": network("width, mlp_dim=None", KEEP + "self.mlp_dim = mlp_dim or 4 * width", "self.mlp_dim"),
    "transformer": network(
        "d_model, d_ff=None", "self.d_model = d_model; self.d_ff = d_ff or 4 * d_model", "self.d_ff", "d_model"
    ),
    "ratio": network("width, ratio=2.0", KEEP + "self.ratio = ratio; inner = int(ratio * width)", "inner"),
    "expansion": network("width, expansion=3", KEEP + "self.expansion = expansion", "expansion * width"),
    "heads": network(
        "width, heads=4, dim_head=None",
        KEEP + "self.heads = heads; self.dim_head = dim_head or width // heads",
        "heads * self.dim_head",
    ),
    "list": network("width, dims=None", KEEP + "self.dims = dims or [width, 2 * width]", "self.dims[1]"),
    "tuple": network("width, dims=()", KEEP + "self.dims = dims or (2 * width,)", "self.dims[0]"),
    "chain": network(
        "width, inner=None, outer=None",
        KEEP + "self.inner = inner or 2 * width; self.outer = outer or self.inner",
        "self.outer",
    ),
    "another name": network("width, inner=None", KEEP + "self.inner_dim = inner or 2 * width", "self.inner_dim"),
    "keywords": network("*, width, inner=None", KEEP + "self.inner = inner or 2 * width"),
    "an unknown name": network("n_filters", "self.n_filters = n_filters", "2 * n_filters", "n_filters"),
    "offset": network(
        "width, inner=None, offset=8",
        KEEP + "self.offset = offset; self.inner = 2 * width + offset if inner is None else inner",
    ),
}
ASKED = {
    "a number": (network("width, inner=256", KEEP + "self.inner = inner"), "inner"),
    "a number with a usual name": (
        network("width, latent_dim=256", KEEP + "self.latent_dim = latent_dim", "latent_dim"),
        "latent_dim",
    ),
    "a list": (network("width, dims=(256, 64)", KEEP + "self.dims = dims", "dims[0]"), "dims"),
    "two factors": (network("heads, dim", "self.heads, self.dim_head = heads, dim", "128", "heads * dim"), "base="),
    "a list of widths": (network("channels", "self.channels = channels", "channels[1]", "channels[0]"), "channels"),
}


def change(model):
    """Return the root mean square of the change that ``down``'s first Adam step makes to its output."""
    torch.manual_seed(1)
    x, inputs = torch.randn(8, 1, 32), []
    model.down.register_forward_pre_hook(lambda layer, args: inputs.append(args[0].detach()))
    optimizer = nm.MuAdam(model, lr=1e-3)
    (model(x) - x).square().mean().backward()
    before = model.down.weight.detach().clone()
    optimizer.step()
    return nn.functional.conv1d(inputs[0], model.down.weight.detach() - before).square().mean().sqrt().item()


@pytest.mark.parametrize("idiom", FOLLOWED)
def test_each_layer_learns_equally_at_all_widths(idiom, recwarn):
    """A layer that reads an inner width which the base did not follow learned 7 times as fast at width 256 as at 32."""
    name, found = {"transformer": "d_model", "an unknown name": "n_filters"}.get(idiom, "width"), []
    for width in (32, 64, 256):
        torch.manual_seed(0)
        found.append(change(model := nm.parametrize(FOLLOWED[idiom](**{name: width}))))
    assert not of_category(recwarn)
    assert max(found) < 2 * found[0], found
    at_base = {name: tuple(p.shape) for name, p in FOLLOWED[idiom](**{name: 32}).named_parameters()}
    assert {row.name: row.base_shape for row in nm.summary(model) if row.role != "spectral"}.items() <= at_base.items()


@pytest.mark.parametrize("idiom", ASKED)
def test_a_message_names_the_argument_that_may_be_a_width(idiom):
    cls, argument = ASKED[idiom]
    model = cls(*{"a list of widths": [[64, 128]], "two factors": [8, 8]}.get(idiom, [64]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            nm.parametrize(model)
            text = " ".join(str(warning.message) for warning in caught)
        except nm.MupError as error:
            text = str(error)
    assert argument in text and "base=" in text


def test_an_override_of_the_width_takes_derived_widths_along():
    cls = FOLLOWED["mlp_dim"]
    plan = nm.summary(nm.parametrize(cls(64), base={"width": 16}))
    assert plan["down.weight"].base_shape == (16, 64, 1)
    plan = nm.summary(nm.parametrize(cls(64), base={"width": 16, "mlp_dim": 128}))
    assert plan["down.weight"].base_shape == (16, 128, 1)
