"""The baselines of the predictor: the paper's four models, and estimators that know no size."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor  # type: ignore[import-untyped]
from sklearn.linear_model import LinearRegression, LogisticRegression  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV, KFold  # type: ignore[import-untyped]
from sklearn.neural_network import MLPClassifier, MLPRegressor  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]
from sklearn.svm import SVC, SVR  # type: ignore[import-untyped]

from libra_predictor.estimators import MOVING_WINDOW_CALLS

Values = NDArray[np.int64]
Predict = Callable[[Values], Values]

_FOLDS = 3
_HIDDEN = {"hidden_layer_sizes": [(16,), (32, 16)]}


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the paper, as a classifier and as a regressor, with the settings to search."""

    name: str
    classifier: Any
    classifier_grid: dict[str, list[Any]]
    regressor: Any
    regressor_grid: dict[str, list[Any]]


MODELS = (
    Model("LR", LogisticRegression(max_iter=500), {"C": [1, 10, 100]}, LinearRegression(), {}),
    Model("SVM", SVC(random_state=0), {"C": [1, 10, 100]}, SVR(), {"C": [1, 10, 100]}),
    Model(
        "NN",
        MLPClassifier(solver="lbfgs", max_iter=200, random_state=0),
        _HIDDEN,
        MLPRegressor(solver="lbfgs", max_iter=200, random_state=0),
        _HIDDEN,
    ),
    Model(
        "RF",
        RandomForestClassifier(n_estimators=50, random_state=0),
        {"min_samples_leaf": [1, 3, 5]},
        RandomForestRegressor(n_estimators=50, random_state=0),
        {"min_samples_leaf": [1, 3, 5]},
    ),
)


def classified(model: Model, sizes: Values, options: Values) -> Predict:
    """The model, trained to tell the option that a size needs."""
    if len(np.unique(options)) == 1:
        only = int(options[0])
        return lambda asked: np.full(len(asked), only, dtype=np.int64)
    searched = _searched(model.classifier, model.classifier_grid, _logarithm(sizes), options, "accuracy")
    return lambda asked: np.asarray(searched.predict(_logarithm(asked)), dtype=np.int64)


def regressed(
    model: Model, sizes: Values, durations_ms: NDArray[np.float64]
) -> Callable[[Values], NDArray[np.float64]]:
    """The model, trained to tell the milliseconds that a size takes. It learns their logarithm."""
    searched = _searched(model.regressor, model.regressor_grid, _logarithm(sizes), np.log(durations_ms), "r2")
    most = float(np.log(durations_ms).max()) + 5  # a straight line may go anywhere, but must fit a float
    return lambda asked: np.exp(np.minimum(searched.predict(_logarithm(asked)), most))


def _logarithm(sizes: Values) -> NDArray[np.float64]:
    return np.log1p(sizes.astype(np.float64)).reshape(-1, 1)


def _searched(model: Any, grid: dict[str, list[Any]], features: Any, targets: Any, scoring: str) -> Any:
    step = type(model).__name__.lower()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {f"{step}__{name}": values for name, values in grid.items()},
        scoring=scoring,
        cv=KFold(_FOLDS, shuffle=True, random_state=0),
        error_score=-1e9,
    )
    with warnings.catch_warnings():
        # For models that did not converge and folds that lack a class: the search takes another setting.
        warnings.simplefilter("ignore")
        return search.fit(features, targets)


def moving_window(options: Sequence[int]) -> int:
    """The largest of the last five (LIBRA, section 8.3)."""
    return max(options[-MOVING_WINDOW_CALLS:])
