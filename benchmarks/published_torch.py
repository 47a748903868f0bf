"""`published_baseline` with PyTorch for its arrays, as the published code has."""

from __future__ import annotations

from typing import Any

import torch
from published_baseline import Published
from torch.nn.functional import cross_entropy


class PublishedTorch(Published):
    array = staticmethod(torch.tensor)
    copy = staticmethod(torch.clone)
    arange = staticmethod(torch.arange)
    argsort = staticmethod(torch.argsort)

    def multinomial(self, X: Any, y: Any, w: Any) -> Any:
        return cross_entropy(X @ w.view(X.shape[1], -1), y, reduction="none")

    def multinomial_gradients(self, X: Any, y: Any, w: Any) -> Any:
        slopes = torch.softmax(X @ w.view(X.shape[1], -1), dim=1)
        slopes[torch.arange(len(y)), y] -= 1.0
        return torch.bmm(X[:, :, None], slopes[:, None, :]).view(len(y), -1)
