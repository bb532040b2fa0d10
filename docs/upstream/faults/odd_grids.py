"""``SpectralConv`` is wrong on odd grids in 2D and 3D (neuraloperator 2.0.0; mended on its main branch by #688).

``fftshift`` is used as its own inverse, which it is on an even number of points alone. On an odd one the frequencies of all
axes but the last end one place beside theirs, so that a layer that should pass a constant field through does not.

The mend, in ``neuralop/layers/spectral_convolution.py``::

    -            out_fft = torch.fft.fftshift(out_fft, dim=fft_dims[:-1])
    +            out_fft = torch.fft.ifftshift(out_fft, dim=fft_dims[:-1])
"""

import torch
from neuralop.layers.spectral_convolution import SpectralConv

layer = SpectralConv(1, 1, (4, 4), bias=False)
with torch.no_grad():
    layer.weight.tensor.fill_(1.0)
    even, odd = (layer(torch.ones(1, 1, n, n)) for n in (8, 9))
wrong = (odd - 1).abs().max().item()
print(f"Error on an even grid: {(even - 1).abs().max():.1e}")
print("The fault is there:" if wrong > 1e-5 else "The fault is mended:", f"error on an odd grid {wrong:.1e}")
