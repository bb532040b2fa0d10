"""Muon, mode by mode: steepest descent under the operator norm for Fourier kernels."""

from neuralop_mup.optim.muon.newton_schulz import orthogonalize
from neuralop_mup.optim.muon.optimizer import MuMuon

__all__ = ["MuMuon", "orthogonalize"]
