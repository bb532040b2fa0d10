"""Between physical fields, in which equations hold, and normalised ones, which models like."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from neuralop.data.transforms.base_transforms import Transform
from neuralop.data.transforms.data_processors import DefaultDataProcessor

from neuralop_mup.errors import MupError


def sine_mollifier(grid: Sequence[int], scale: float = 1.0) -> torch.Tensor:
    """scale · ∏ sin(π x_i) at the nodes of the unit cube, boundary included: an output times this is zero there.

    Parameters
    ----------
    grid : sequence of int
        Points per axis, each at least 3.
    scale : float, default 1.0
        Size in the middle. PINO's Darcy uses 0.001, about the size of its solutions; an ``out_normalizer`` does the same.

    Returns
    -------
    torch.Tensor, float64, shape ``grid``
        Exactly 0 on the boundary.

    References
    ----------
    github.com/neuraloperator/physics_informed, ``train_2d_operator``, the code of arXiv 2111.03794.

    Examples
    --------
    >>> from neuralop_mup.losses import sine_mollifier
    >>> sine_mollifier((5,))
    tensor([0.0000, 0.7071, 1.0000, 0.7071, 0.0000], dtype=torch.float64)
    >>> sine_mollifier((3, 3), scale=0.5)[1, 1]
    tensor(0.5000, dtype=torch.float64)
    """
    product = torch.tensor(scale, dtype=torch.float64)
    for n in grid:
        sine = torch.sin(torch.pi * torch.linspace(0, 1, n, dtype=torch.float64))
        sine[0] = sine[-1] = 0  # sin(π) is 1e-16 in floating point
        product = product[..., None] * sine
    return product


class PhysicalDataProcessor(DefaultDataProcessor):
    """neuralop data processor under which the model sees a normalised x and every loss sees physical fields.

    neuralop's DefaultDataProcessor puts the output back into physical units in evaluation only; in training its losses
    see normalised x, y and predictions, in which no equation holds. Here, in training as in evaluation: the model gets
    ``in_normalizer.transform(x)``; its output goes through ``out_normalizer.inverse_transform`` and is multiplied by the
    mollifier; ``sample["x"]`` and ``sample["y"]`` are, for the losses, exactly what the data loader gave. For the time of
    the model's call the sample keeps x under ``"physical_x"``.

    Parameters
    ----------
    in_normalizer : neuralop Transform, optional
        For x, such as a fitted UnitGaussianNormalizer.
    out_normalizer : neuralop Transform, optional
        Whose inverse is applied to the output.
    mollifier : torch.Tensor or callable, optional
        Multiplies the output, after the normaliser: values on the output's grid, or a function from the grid's shape to
        these values, such as :func:`sine_mollifier`, which suits any resolution.

    Raises
    ------
    MupError
        When it is called: for a mollifier of another grid.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> from neuralop_mup.losses import PhysicalDataProcessor, sine_mollifier
    >>> from neuralop_mup.lab.problems.data import normalizer_of
    >>> x, y = 3 + torch.randn(8, 1, 16), torch.rand(8, 1, 16)
    >>> processor = PhysicalDataProcessor(normalizer_of(x), mollifier=sine_mollifier).wrap(FNO((8,), 1, 1, 8))
    >>> prediction, sample = processor(x=x, y=y)
    >>> torch.equal(sample["x"], x), float(prediction.detach()[..., 0].abs().max())
    (True, 0.0)
    """

    def __init__(
        self,
        in_normalizer: Transform | None = None,
        out_normalizer: Transform | None = None,
        mollifier: torch.Tensor | Callable[[Sequence[int]], torch.Tensor] | None = None,
    ) -> None:
        super().__init__(in_normalizer, out_normalizer)
        self.mollifier = mollifier

    def preprocess(self, data_dict: dict[str, Any], batched: bool = True) -> dict[str, Any]:
        """The batch on the device, x normalised for the model; the given dict stays as it is.

        Parameters
        ----------
        data_dict : dict
            A batch with "x".
        batched : bool, default True
            For neuralop's calls; it has no effect.

        Returns
        -------
        dict
            The batch, with its own x under "physical_x".

        Examples
        --------
        >>> from neuralop_mup.losses import PhysicalDataProcessor
        >>> x = 3 + torch.randn(8, 1, 16)
        >>> processor = PhysicalDataProcessor(normalizer_of(x), normalizer_of(x))
        >>> sample = processor.preprocess({"x": x, "y": x})
        >>> torch.equal(sample["physical_x"], x), abs(float(sample["x"].mean())) < 1e-5
        (True, True)
        """
        sample = {k: v.to(self.device) if isinstance(v, torch.Tensor) else v for k, v in data_dict.items()}
        sample["physical_x"] = sample["x"]
        if self.in_normalizer is not None:
            sample["x"] = self.in_normalizer.transform(sample["x"])
        return sample

    def postprocess(self, output: torch.Tensor, data_dict: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """The output in physical units, and the sample with its physical x.

        Parameters
        ----------
        output : torch.Tensor
            What the model returned.
        data_dict : dict
            What :meth:`preprocess` returned.

        Returns
        -------
        output : torch.Tensor
            In physical units, times the mollifier.
        sample : dict
            With the x that the loader gave.

        Raises
        ------
        MupError
            If the mollifier has another grid than the output.

        Examples
        --------
        >>> from neuralop_mup.losses import PhysicalDataProcessor
        >>> x = 3 + torch.randn(8, 1, 16)
        >>> processor = PhysicalDataProcessor(normalizer_of(x), normalizer_of(x))
        >>> sample = processor.preprocess({"x": x, "y": x})
        >>> output, sample = processor.postprocess(sample["x"], sample)
        >>> torch.allclose(output, x, atol=1e-5), torch.equal(sample["x"], x)
        (True, True)
        """
        sample = dict(data_dict)
        sample["x"] = sample.pop("physical_x")
        if self.out_normalizer is not None:
            output = self.out_normalizer.inverse_transform(output)
        if self.mollifier is not None:
            grid = tuple(output.shape[2:])
            factor = self.mollifier(grid) if callable(self.mollifier) else self.mollifier
            if tuple(factor.shape[-len(grid) :]) != grid:
                raise MupError(
                    f"The mollifier has shape {tuple(factor.shape)}, but the output's grid is {grid}: give a function of "
                    f"the grid, such as sine_mollifier, to work at several resolutions."
                )
            output = output * factor.to(output)
        return output, sample

    def forward(self, **data_dict: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """Preprocess, the wrapped model, postprocess.

        Parameters
        ----------
        **data_dict
            A batch: "x", and whatever the losses need.

        Returns
        -------
        output : torch.Tensor
            The prediction in physical units.
        sample : dict
            For the losses, as the loader gave it.

        Examples
        --------
        >>> from neuralop_mup.losses import PhysicalDataProcessor
        >>> processor = PhysicalDataProcessor().wrap(FNO((8,), 1, 1, 8))
        >>> prediction, sample = processor(x=torch.randn(4, 1, 16))
        >>> prediction.shape, list(sample)
        (torch.Size([4, 1, 16]), ['x'])
        """
        sample = self.preprocess(data_dict)
        return self.postprocess(self.model(sample["x"]), sample)
