"""The one table of allowed errors of kernels: relative RMS error against the reference in float64."""

import torch
from torch import Tensor

RELATIVE_RMS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""By the type of the inputs; outputs and gradients alike. Half precision: about one rounding each."""


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of what is expected."""
    actual, expected = actual.detach().double(), expected.detach().double()
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-300))


def assert_close(actual: Tensor, expected: Tensor, name: str, dtype: torch.dtype | None = None) -> None:
    """Check shape and error of a result; `dtype` is that of the inputs, by default that of the result."""
    shapes = tuple(actual.shape), tuple(expected.shape)
    assert shapes[0] == shapes[1], f"{name}: shape {shapes[0]}, expected {shapes[1]}"
    error, limit = relative_rms(actual, expected), RELATIVE_RMS[dtype or actual.dtype]
    assert error <= limit, f"{name}: relative RMS error {error:.2e}, allowed {limit:.0e}"
