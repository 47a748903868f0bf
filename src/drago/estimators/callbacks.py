"""scikit-learn's callback protocol (1.9 and later), and what stands in for it before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drago.loop.protocol import Progress

try:
    from sklearn.callback import CallbackSupportMixin as CallbackSupport
    from sklearn.callback import with_callbacks
except ImportError:  # scikit-learn < 1.9

    class CallbackSupport:  # type: ignore[no-redef]
        """Nothing: this scikit-learn knows no callbacks."""

    def with_callbacks(method: Any) -> Any:
        """`method` itself."""
        return method


class FitTask:
    """A fit as scikit-learn's callbacks see it: one task, with a subtask for each certificate.

    Parameters
    ----------
    estimator : estimator
    X, y : arrays
        What the callbacks are told that it is fitted on.
    metadata : dict
    attributes : callable
        From the coefficients and the intercept at a certificate to the fitted attributes with
        which the estimator could predict.
    """

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        metadata: dict[str, Any],
        attributes: Callable[[Any, Any], dict[str, Any]],
    ) -> None:
        self._estimator, self._attributes = estimator, attributes
        # Scorers among them pass the metadata on to `score`, which takes no groups.
        weight = metadata["sample_weight"]
        told = None if weight is None else {"sample_weight": weight}
        self._told = {"estimator": estimator, "X": X, "y": y, "metadata": told}
        self._context: Any = None
        if hasattr(estimator, "_init_callback_context"):
            # How many certificates there will be is not known beforehand.
            self._context = estimator._init_callback_context(max_subtasks=None)
            self._context.call_on_fit_task_begin(**self._told)

    @property
    def has_callbacks(self) -> bool:
        """Whether anybody listens."""
        return bool(getattr(self._estimator, "_skl_callbacks", ()))

    def certificate(self, progress: Progress) -> bool:
        """Tell the callbacks of a certificate; whether one of them wants to stop."""
        context = self._context.subcontext(task_name="certificate")
        context.call_on_fit_task_begin(**self._told)
        return context.call_on_fit_task_end(
            **self._told,
            reconstruction_attributes=lambda: self._attributes(progress.coef, progress.intercept),
        )

    def end(self) -> None:
        """Tell them that the fit is over and its attributes are set."""
        if self._context is not None:
            self._context.call_on_fit_task_end(**self._told, reconstruction_attributes={})
