"""Convert between physical fields for the losses and normalised fields for the model."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from neuralop.data.transforms.base_transforms import Transform
from neuralop.data.transforms.data_processors import DefaultDataProcessor

from neuralop_mup.errors import MupError


def sine_mollifier(grid: Sequence[int], scale: float = 1.0) -> torch.Tensor:
    """Return scale · ∏ sin(π x_i) at the nodes of the unit cube, a factor that makes an output zero on the boundary.

    Parameters
    ----------
    grid : sequence of int
        Number of points per axis including the boundary, at least 3.
    scale : float, default 1.0
        Value at the centre. PINO's Darcy code uses 0.001, the order of magnitude of its solutions. Alternatively, use an
        ``out_normalizer``.

    Returns
    -------
    torch.Tensor, float64, shape ``grid``
        Values at the nodes, exactly 0 on the boundary.

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
    """Data processor for neuralop that normalises x for the model but passes physical fields to the losses.

    During training, neuralop's DefaultDataProcessor passes normalised fields to the losses, but these fields do not satisfy
    the equation. With this processor, the model receives ``in_normalizer.transform(x)``. Its output is transformed by
    ``out_normalizer.inverse_transform`` and multiplied by the mollifier. The losses receive the ``x`` and ``y`` of the data
    loader.

    Parameters
    ----------
    in_normalizer : neuralop Transform, optional
        Normalizer of x, such as a fitted UnitGaussianNormalizer.
    out_normalizer : neuralop Transform, optional
        Normalizer of y. Its inverse is applied to the output.
    mollifier : torch.Tensor or callable, optional
        Factor by which the output is multiplied after the inverse normalization. Either the values on the grid of the
        output, or a function that maps the shape of the grid to such values, for example :func:`sine_mollifier`.

    Raises
    ------
    MupError
        When the processor is called, if the mollifier and the output have different grids.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> from neuralop_mup.losses import PhysicalDataProcessor, sine_mollifier
    >>> from neuralop_mup.lab.data.problem_data import normalizer_of
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
        """Return a copy of the batch on the device, with x normalised for the model.

        Parameters
        ----------
        data_dict : dict
            Batch with an entry "x".
        batched : bool, default True
            Ignored. neuralop passes this argument.

        Returns
        -------
        dict
            The batch, which also contains the physical x under "physical_x".

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
        """Return the output in physical units, and the sample with its physical x.

        Parameters
        ----------
        output : torch.Tensor
            Output of the model.
        data_dict : dict
            Sample from :meth:`preprocess`.

        Returns
        -------
        output : torch.Tensor
            Output in physical units, multiplied by the mollifier.
        sample : dict
            The sample with the original x of the data loader.

        Raises
        ------
        MupError
            If the mollifier and the output have different grids.

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
                    f"The mollifier has shape {tuple(factor.shape)}, but the grid of the output has shape {grid}. To "
                    "support several resolutions, pass a function of the grid shape, such as sine_mollifier."
                )
            output = output * factor.to(output)
        return output, sample

    def forward(self, **data_dict: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """Preprocess the batch, call the wrapped model, and postprocess its output.

        Parameters
        ----------
        **data_dict
            Batch with "x" and the entries that the losses require.

        Returns
        -------
        output : torch.Tensor
            The prediction in physical units.
        sample : dict
            The sample for the losses, as returned by the data loader.

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
