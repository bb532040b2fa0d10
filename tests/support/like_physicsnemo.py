"""Small models with the layout of PhysicsNeMo's FNO and AFNO, for use without that package.

Names, shapes and initial weights are those of nvidia-physicsnemo 2.2. neuralop_mup recognizes a class by module and name.
tests_ci/test_installed_physicsnemo.py compares these models with the package's own, where it is installed.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from functools import partial

import torch
from torch import nn
from torch.nn.functional import gelu, relu, softshrink


class _Named(nn.Module):
    def __init_subclass__(cls):
        cls.__module__ = "physicsnemo.like"


class Module(_Named):
    """Keeps the arguments of its constructor, and an empty buffer."""

    def __new__(cls, *args, **kwargs):
        self = super().__new__(cls)
        bound = inspect.signature(cls.__init__).bind_partial(self, *args, **kwargs)
        bound.apply_defaults()
        self._args = {"__name__": cls.__name__, "__args__": {k: v for k, v in bound.arguments.items() if k != "self"}}
        return self

    def __init__(self):
        super().__init__()
        self.register_buffer("device_buffer", torch.empty(0), persistent=False)


class _SpectralConv(_Named):
    def __init__(self, in_channels, out_channels, *modes):
        super().__init__()
        self.modes, self.scale = modes, 1 / (in_channels * out_channels)
        for i in range(2 ** (len(modes) - 1)):
            kernel = self.scale * torch.rand(in_channels, out_channels, *modes, 2)
            self.register_parameter(f"weights{i + 1}", nn.Parameter(kernel))

    def forward(self, x):
        axes = tuple(range(2, x.ndim))
        modes = torch.fft.rfftn(x, dim=axes)
        out = torch.zeros_like(modes)
        for i, kernel in enumerate(self.parameters()):  # bit by bit of i, the sign of the modes on each axis but the last
            where = (..., *(slice(-k, None) if i >> axis & 1 else slice(k) for axis, k in enumerate(self.modes)))
            out[where] = torch.einsum("bi...,io...->bo...", modes[where], torch.view_as_complex(kernel))
        return torch.fft.irfftn(out, s=x.shape[2:], dim=axes)


class _PointwiseLayer(Module):
    """One affine layer, which is stored as ``attribute``."""

    attribute, layer, kernel_size = "conv", nn.Conv1d, (1,)

    def __init__(self, in_features, out_features):
        super().__init__()
        self.add_module(self.attribute, self.layer(in_features, out_features, *self.kernel_size))
        self.reset_parameters()

    def reset_parameters(self):
        layer = self.get_submodule(self.attribute)
        nn.init.constant_(layer.bias, 0)
        layer.bias.requires_grad = self.layer is not nn.Conv2d
        nn.init.xavier_uniform_(layer.weight)

    def forward(self, x):
        return self.get_submodule(self.attribute)(x)


class FCLayer(_PointwiseLayer):
    attribute, layer, kernel_size = "linear", nn.Linear, ()


_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_LIFTS = {n: type(f"Conv{n}dFCLayer", (_PointwiseLayer,), {"layer": conv}) for n, conv in _CONVOLUTIONS.items()}
_SPECTRAL = {n: type(f"SpectralConv{n}d", (_SpectralConv,), {}) for n in _CONVOLUTIONS}


class Encoder(Module):
    def __init__(self, in_channels, width, n_layers, modes):
        super().__init__()
        lift, spectral, conv = (kinds[len(modes)] for kinds in (_LIFTS, _SPECTRAL, _CONVOLUTIONS))
        self.lift_network = nn.Sequential(lift(in_channels, width // 2), nn.GELU(), lift(width // 2, width))
        self.spconv_layers, self.conv_layers = nn.ModuleList(), nn.ModuleList()
        for _ in range(n_layers):
            self.spconv_layers.append(spectral(width, width, *modes))
            self.conv_layers.append(conv(width, width, 1))

    def forward(self, x):
        x = self.lift_network(x)
        for i, (spectral, conv) in enumerate(zip(self.spconv_layers, self.conv_layers, strict=True)):
            x = (gelu if i + 1 < len(self.conv_layers) else lambda y: y)(spectral(x) + conv(x))
        return x


class FNO(Module):
    def __init__(
        self, in_channels, out_channels, decoder_layer_size=32, dimension=2, latent_channels=32,
        num_fno_layers=4, num_fno_modes=16, padding=8, coord_features=True,
    ):  # fmt: skip
        super().__init__()
        modes = [num_fno_modes] * dimension if isinstance(num_fno_modes, int) else num_fno_modes
        self.coord_features, in_channels = coord_features, in_channels + dimension * coord_features
        hidden = nn.Sequential(FCLayer(latent_channels, decoder_layer_size), nn.SiLU())
        final = FCLayer(decoder_layer_size, out_channels)
        self.decoder_net = nn.Sequential(OrderedDict(layers=hidden, final_layer=final))
        self.spec_encoder = Encoder(in_channels, latent_channels, num_fno_layers, modes)

    def forward(self, x):
        if self.coord_features:
            grid = torch.meshgrid(*(torch.linspace(0, 1, n) for n in x.shape[2:]), indexing="ij")
            x = torch.cat([x, torch.stack(grid).expand(len(x), *[-1] * (x.ndim - 1))], dim=1)
        return self.decoder_net(self.spec_encoder(x).movedim(1, -1)).movedim(-1, 1)


class AFNO2DLayer(Module):
    def __init__(self, hidden_size, num_blocks, sparsity_threshold=0.01):
        super().__init__()
        self.num_blocks, self.scale, self.threshold = num_blocks, 0.02, sparsity_threshold
        size = hidden_size // num_blocks
        for i in (1, 2):
            setattr(self, f"w{i}", nn.Parameter(self.scale * torch.randn(2, num_blocks, size, size)))
            setattr(self, f"b{i}", nn.Parameter(self.scale * torch.randn(2, num_blocks, size)))

    def forward(self, x):
        modes = torch.fft.rfft2(x, dim=(1, 2), norm="ortho").unflatten(-1, (self.num_blocks, -1))
        shrink = partial(softshrink, lambd=self.threshold)
        for w, b, activation in ((self.w1, self.b1, relu), (self.w2, self.b2, shrink)):
            modes = torch.einsum("...bi,bio->...bo", modes, torch.complex(*w)) + torch.complex(*b)
            modes = torch.view_as_complex(activation(torch.view_as_real(modes)))
        return x + torch.fft.irfft2(modes.flatten(-2), s=x.shape[1:3], dim=(1, 2), norm="ortho")


class Block(Module):
    def __init__(self, embed_dim, num_blocks, mlp_ratio):
        super().__init__()
        inner = int(embed_dim * mlp_ratio)
        self.norm1 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.filter = AFNO2DLayer(embed_dim, num_blocks)
        self.norm2 = nn.LayerNorm(embed_dim, eps=1e-6)
        layers = {"fc1": nn.Linear(embed_dim, inner), "act": nn.GELU(), "fc2": nn.Linear(inner, embed_dim)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x):
        x = x + self.filter(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class AFNO(Module):
    def __init__(
        self, inp_shape, in_channels, out_channels, patch_size=(16, 16), embed_dim=256, depth=4, mlp_ratio=4.0, num_blocks=16
    ):
        super().__init__()
        self.grid, self.patch_size = [n // p for n, p in zip(inp_shape, patch_size, strict=True)], patch_size
        patches = nn.Conv2d(in_channels, embed_dim, kernel_size=patch_size, stride=patch_size)
        self.patch_embed = nn.Sequential(OrderedDict(proj=patches, flatten=nn.Flatten(2)))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid[0] * self.grid[1], embed_dim))
        self.blocks = nn.ModuleList([Block(embed_dim, num_blocks, mlp_ratio) for _ in range(depth)])
        self.head = nn.Linear(embed_dim, out_channels * patch_size[0] * patch_size[1], bias=False)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.constant_(module.bias, 0)

    def forward(self, x):
        tokens = (self.patch_embed(x).transpose(1, 2) + self.pos_embed).unflatten(1, self.grid)
        for block in self.blocks:
            tokens = block(tokens)
        out = self.head(tokens).unflatten(-1, (*self.patch_size, -1))
        return out.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
