"""What every parameter of every neuralop layer is: importing this package registers the descriptions.

``basic`` has torch's and neuralop's pointwise layers and norms, ``of_torch`` what else torch has, ``kernels`` the spectral
convolutions and their factorizations, ``models`` the blocks and models put together from them, ``sphere`` what needs
torch_harmonics, ``recurrent`` what neuralop has since the release after 2.0, and ``physicsnemo`` the models of that package.
What the installed neuralop has is asked by name: its main branch calls itself 2.0.0, too.
"""

import neuralop.models

from neuralop_mup.core.adapters import basic, kernels, models, of_torch, physicsnemo  # noqa: F401

if hasattr(neuralop.models, "LocalNO"):  # neuralop leaves it out where torch_harmonics is missing
    from neuralop_mup.core.adapters import sphere  # noqa: F401

if hasattr(neuralop.models, "RNO"):
    from neuralop_mup.core.adapters import recurrent  # noqa: F401
