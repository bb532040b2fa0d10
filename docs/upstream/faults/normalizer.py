"""``UnitGaussianNormalizer`` fitted in parts has another standard deviation than fitted at once (neuraloperator 2.0.0).

``incremental_update_mean_std`` multiplies the root by n / (n − 1), which belongs under it. And ``partial_fit`` goes sample
by sample, each of which repeats that. The more elements, the smaller the difference; with few it is large.

A mend, in ``neuralop/data/transforms/normalizers.py``::

    -        self.std = (
    -            torch.sqrt(self.squared_mean - self.mean**2)
    -            * self.n_elements
    -            / (self.n_elements - 1)
    -        )
    +        variance = (self.squared_mean - self.mean**2) * self.n_elements / (self.n_elements - 1)
    +        self.std = torch.sqrt(variance)
"""

import torch
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

torch.manual_seed(0)
x = torch.randn(6, 1, 4, dtype=torch.float64)
normalizer = UnitGaussianNormalizer(dim=[0, 2])
normalizer.partial_fit(x, batch_size=2)
apart = abs(normalizer.std.item() / x.std().item() - 1)
print("The fault is there:" if apart > 1e-6 else "The fault is mended:", f"standard deviations differ by {apart:.1%}")
