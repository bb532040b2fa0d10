"""Describe the layers of torch, neuraloperator and PhysicsNeMo. Importing this package registers the descriptions.

The module ``registry`` defines the classes of descriptions. neuraloperator's main branch and its release share the version
number 2.0.0, so layers that only exist in some versions are looked up by name.
"""

import neuralop.models

from neuralop_mup.core.layers import kernels, mup_readouts, neuralop_models, physicsnemo, pointwise, torch_layers  # noqa: F401

if hasattr(neuralop.models, "LocalNO"):  # requires torch_harmonics
    from neuralop_mup.core.layers import sphere  # noqa: F401

if hasattr(neuralop.models, "RNO"):
    from neuralop_mup.core.layers import recurrent  # noqa: F401
