"""Descriptions of the layers of torch, neuraloperator and PhysicsNeMo. Importing this package registers them.

``registry`` has the vocabulary and the registry. neuraloperator's main branch also calls itself 2.0.0, so layers that only
some versions have are looked up by name.
"""

import neuralop.models

from neuralop_mup.core.layers import kernels, mup_readouts, neuralop_models, physicsnemo, pointwise, torch_layers  # noqa: F401

if hasattr(neuralop.models, "LocalNO"):  # neuralop leaves it out where torch_harmonics is missing
    from neuralop_mup.core.layers import sphere  # noqa: F401

if hasattr(neuralop.models, "RNO"):
    from neuralop_mup.core.layers import recurrent  # noqa: F401
