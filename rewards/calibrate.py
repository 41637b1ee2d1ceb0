"""Calibration: raw scores to probabilities, and how well raw scores tell two classes apart.

Owns Platt scaling and the area under the ROC curve. Source of the scaling and its smoothed targets: J. Platt,
"Probabilistic outputs for support vector machines", 1999, section 2.2.
"""

import numpy as np

_NUM_NEWTON_STEPS = 50


def auc(positive: np.ndarray, negative: np.ndarray) -> float | None:
    """Return the chance that a positive scores above a negative, ties counted half; None when a class is
    empty.
    """
    if not len(positive) or not len(negative):
        return None
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / (2 * len(negative)))


def fit_platt(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Return [slope, offset] of the logistic curve that best gives the probability of `positive`, both
    classes equally likely.

    The slope is never negative: where the raw score says nothing, all probabilities are one half.
    """
    values = np.concatenate([positive, negative]).astype(np.float64)
    center, scale = values.mean(), max(values.std(), 1e-12)
    inputs = np.stack([(values - center) / scale, np.ones_like(values)], axis=1)
    num_positive, num_negative = len(positive), len(negative)
    targets = np.concatenate(
        [
            np.full(num_positive, (num_positive + 1) / (num_positive + 2)),
            np.full(num_negative, 1 / (num_negative + 2)),
        ]
    )
    weights = np.concatenate(
        [np.full(num_positive, 0.5 / num_positive), np.full(num_negative, 0.5 / num_negative)]
    )
    slope, offset = _logistic(inputs, targets, weights)
    if slope <= 0:
        return np.zeros(2)
    return np.array([slope / scale, offset - slope * center / scale])


def probability(values: np.ndarray, platt: np.ndarray) -> np.ndarray:
    """Return the probability of the positive class, 0 to 1."""
    return _sigmoid(values * platt[0] + platt[1])


def _logistic(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the coefficients of a weighted logistic regression, by damped Newton steps."""
    coefficients = np.zeros(inputs.shape[1])
    for _ in range(_NUM_NEWTON_STEPS):
        predicted = _sigmoid(inputs @ coefficients)
        gradient = inputs.T @ (weights * (predicted - targets))
        curvature = (inputs * (weights * predicted * (1 - predicted))[:, None]).T @ inputs
        step = np.linalg.solve(curvature + 1e-6 * np.eye(len(coefficients)), gradient)
        coefficients = coefficients - np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-9:
            break
    return coefficients


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * values))
