"""SOAP for Fourier kernels: Adam in channel bases that all modes of a layer share, sized by the operator norm."""

from neuralop_mup.optim.soap.optimizer import MuSOAP

__all__ = ["MuSOAP"]
