"""Depth under MuSOAP: the longest path through a model, estimated from its modules and measured in the first step."""

import copy
import math
import pickle

import pytest
import torch
from neuralop.models import FNO, UQNO
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.utils.checkpoint import checkpoint

import neuralop_mup as nm
from neuralop_mup.core.layers.registry import BESIDE, RECURRENT
from neuralop_mup.optim.musoap.depth import estimate_depth
from support import like_physicsnemo
from support.cases import BY_NAME

LR = 0.03
CHANNELS = 2


def _fno(layers=2, **kwargs):
    return FNO((4,), CHANNELS, CHANNELS, 4, n_layers=layers, positional_embedding=None, **kwargs)


class Applies(nn.Module):
    """A model of several FNOs, and how it applies them."""

    def __init__(self, forward, *layers):
        super().__init__()
        self.parts, self.how = nn.ModuleList(map(_fno, layers)), forward

    def forward(self, x):
        return self.how(*self.parts, x)


def _loop(f, x):
    for _ in range(5):
        x = x + f(x)
    return x


def _discards(f, g, x):
    g(x)
    return f(x)


def _rolled_out_without_gradient(f, x):
    with torch.no_grad():
        x = f(f(x))
    return f(x)


# The model, its longest path.
MODELS = {
    "FNO": (lambda: _fno(3), 3),
    "sequence": (lambda: nn.Sequential(_fno(1), _fno(3)), 4),
    "branches": (lambda: Applies(lambda f, g, x: f(x) + g(x), 3, 2), 3),
    "ensemble": (lambda: Applies(lambda *fs_x: torch.stack([f(fs_x[-1]) for f in fs_x[:-1]]), 2, 2, 2, 2, 2), 2),
    "one after the other": (lambda: Applies(lambda f, g, x: g(f(x)), 3, 2), 5),
    "siamese": (lambda: Applies(lambda f, x: f(x) - f(x.flip(-1)), 4), 4),
    "twice": (lambda: Applies(lambda f, x: f(f(x)), 4), 8),
    "loop": (lambda: Applies(_loop, 2), 10),
    "discards": (lambda: Applies(_discards, 2, 3), 2),
    "rolled out without gradient": (lambda: Applies(_rolled_out_without_gradient, 2), 2),
    "detached": (lambda: Applies(lambda f, x: f(f(x).detach()), 2), 2),
    "cumulative": (lambda: Applies(lambda f, g, x: f(x) + g(torch.cat([f(x), x], -1))[..., :8], 2, 1), 3),
}


def _built(model, **kwargs):
    model = nm.parametrize(model)
    return model, nm.MuSOAP(model, lr=LR, **kwargs)


def _step(model, optimizer, backward_passes=1):
    optimizer.zero_grad()
    for _ in range(backward_passes):
        model(torch.randn(2, CHANNELS, 8)).square().mean().backward()
    optimizer.step()


def _hooks(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def _rates(optimizer):
    return {group["step_lr"] for group in optimizer.param_groups if group.get("own_rule")}


def _is_rate_of(optimizer, depth):
    return list(_rates(optimizer)) == [pytest.approx(LR * math.sqrt(4 / depth))]


@pytest.mark.filterwarnings("ignore:Fourier kernels receive no gradient")
@pytest.mark.parametrize("name", MODELS)
def test_the_rate_follows_the_longest_path(name):
    build, depth = MODELS[name]
    model, optimizer = _built(build())
    before = [group["lr"] for group in optimizer.param_groups]
    with torch.no_grad():
        model(torch.randn(2, CHANNELS, 8))
    for _ in range(2):
        _step(model, optimizer, backward_passes=2)
        assert _is_rate_of(optimizer, depth)
    assert [group["lr"] for group in optimizer.param_groups] == before
    assert _hooks(model) == 0


@pytest.mark.filterwarnings("ignore:Fourier kernels receive no gradient")
@pytest.mark.parametrize(("name", "depth"), [("uno", 3), ("uqno", 1), ("codano", 8), ("like_physicsnemo_afno", 2)])
def test_estimates_of_known_models_are_what_is_measured(name, depth):
    """In a layer of CODANO keys, queries and values are parallel, and the multi-channel projection and two mixers follow."""
    case = BY_NAME[name]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = nm.MuSOAP(model, lr=LR)
    assert optimizer.param_groups[0]["rule_mult"] == math.sqrt(4 / depth)
    x, y = case.batch()
    (case.output(model, x) - y).square().mean().backward()
    optimizer.step()
    assert _is_rate_of(optimizer, depth)


class Cell(nn.Module):
    """Six gates. The first four are parallel."""

    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList(nn.Identity() for _ in range(6))


def test_estimates(monkeypatch):
    """In a cell of RNO two gates follow each other, once for each time step. The two models of a UQNO are parallel."""
    monkeypatch.setitem(BESIDE, Cell, ("gates.0", "gates.1", "gates.2", "gates.3"))
    cells = nn.Sequential(Cell(), Cell())
    owners = [f"{i}.gates.{j}" for i in range(2) for j in range(6)]
    assert estimate_depth(cells, owners) == (4, False)

    def estimated(model):
        return estimate_depth(model, {row.owner for row in nm.summary(nm.parametrize(model)) if row.role == "spectral"})

    assert estimated(UQNO(_fno(2))) == (2, True)
    assert estimated(nn.ModuleList([_fno(1), _fno(3), nn.Sequential(_fno(2), _fno(2))])) == (4, True)
    assert estimated(nn.ModuleDict({"one": _fno(3)})) == (3, False)


def test_time_steps_of_a_recurrent_cell_count_less(monkeypatch):
    """Five time steps of two layers divide the rate by ⁴√5, in place of √5."""
    monkeypatch.setattr("neuralop_mup.optim.musoap.depth.RECURRENT", RECURRENT | {FNO})
    model, optimizer = _built(MODELS["loop"][0]())
    _step(model, optimizer)
    assert list(_rates(optimizer)) == [pytest.approx(LR * math.sqrt(4 / 2) / 5**0.25)]


def test_a_measured_rate_is_applied_once_and_kept():
    """The same weights as with a rate for the true depth; decay is independent. States and copies keep the factor."""
    kwargs = {"steps": 20, "weight_decay": 0.1}
    model, optimizer = _built(MODELS["twice"][0](), **kwargs)
    other = copy.deepcopy(model)
    reference = nm.MuSOAP(other, lr=LR / math.sqrt(2), base_depth=None, **kwargs)
    for group in reference.param_groups:
        if group.get("own_rule"):
            group["weight_decay"] *= math.sqrt(2)
    batches = torch.randn(6, 2, CHANNELS, 8)

    def train(net, opt, xs):
        for x in xs:

            def closure(net=net, opt=opt, x=x):
                opt.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                return loss

            opt.step(closure)
        return torch.cat([p.detach().abs().flatten() for p in net.parameters()])

    torch.testing.assert_close(train(model, optimizer, batches[:3]), train(other, reference, batches[:3]))
    twin = copy.deepcopy(model)
    resumed = nm.MuSOAP(twin, lr=LR, **kwargs)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    both, copied = copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps(optimizer.state_dict()))
    assert copied["param_groups"][0]["depth_mult"] == pytest.approx(math.sqrt(1 / 2))
    wanted = train(other, reference, batches[3:])
    for net, opt in ((model, optimizer), (twin, resumed), both):
        torch.testing.assert_close(train(net, opt, batches[3:]), wanted)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    """Reentrant checkpointing hides the graph, so the estimate stays."""

    def twice(f, x):
        x = checkpoint(f, x.requires_grad_(), use_reentrant=reentrant)
        return f(x)

    model, optimizer = _built(Applies(twice, 2))
    _step(model, optimizer)
    assert _is_rate_of(optimizer, 2 if reentrant else 4)


def test_what_is_compiled_is_not_measured():
    """The estimate stays, and the model is not compiled again after the first step."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    fno = like_physicsnemo.FNO(2, 2, latent_channels=4, num_fno_modes=[3], dimension=1, num_fno_layers=2, padding=0)
    model, optimizer = _built(nn.Sequential(fno, fno))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        _step(compiled, optimizer)
    assert len(graphs) == 1 and _is_rate_of(optimizer, 4)


def test_an_ambiguous_estimate_warns(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    model, optimizer = _built(MODELS["one after the other"][0]())
    with pytest.warns(UserWarning, match=r"assumes 3 successive Fourier layers.*lr=0\.03 \* \(3 / L\) \*\* 0\.5"):
        _step(model, optimizer)
    _step(model, optimizer)
    assert _is_rate_of(optimizer, 3)


def test_a_step_that_moves_nothing_leaves_the_measurement_to_the_next():
    """torch's get_state_dict has an optimizer make its state in a step with zero gradients and rates."""
    model, optimizer = _built(MODELS["twice"][0]())
    get_optimizer_state_dict(model, optimizer)
    _step(model, optimizer)
    assert _is_rate_of(optimizer, 8)


def test_without_a_depth_rule_nothing_is_measured():
    model, optimizer = _built(MODELS["twice"][0](), base_depth=None)
    assert _hooks(model) == 0
    _step(model, optimizer)
    assert _rates(optimizer) == {LR}


def test_hooks_stay_with_the_optimizer():
    """Copies and pickles of a model measure nothing, and an optimizer that is deleted takes its hooks away."""
    model, optimizer = _built(_fno(2))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(torch.randn(2, CHANNELS, 8)).sum().backward()
    assert optimizer._depth.depth == 0 and _hooks(model) == 2
    _, second = _built(_fno(3))
    model(torch.randn(2, CHANNELS, 8)).sum().backward()
    assert optimizer._depth.depth == 2 and second._depth.depth == 0
    del optimizer
    assert _hooks(model) == 0


def test_a_frozen_layer_that_is_not_reached_keeps_the_estimate():
    model, optimizer = _built(_fno(4))
    model.fno_blocks.convs[0].requires_grad_(False)
    model.lifting.requires_grad_(False)
    model.fno_blocks.fno_skips[0].requires_grad_(False)
    model.fno_blocks.channel_mlp_skips[0].requires_grad_(False)
    model.fno_blocks.channel_mlp[0].requires_grad_(False)
    _step(model, optimizer)
    assert _is_rate_of(optimizer, 4)
