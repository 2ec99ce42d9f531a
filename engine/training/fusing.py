"""Small functions compiled into single kernels on a GPU, and left as they are elsewhere.

A kernel that cannot be compiled must not cost a run: the plain function takes over, with a line
that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo


class Fused:
    """``function``, compiled at its first call with CUDA tensors (sizes stay dynamic)."""

    def __init__(self, function: Callable[..., Any], *, dynamic: bool | None = True) -> None:
        self._plain, self._dynamic = function, dynamic
        self._compiled: Callable[..., Any] | None = None
        self._failed = False

    @property
    def works(self) -> bool:
        """Whether no compiler has failed so far."""
        return not self._failed

    def __call__(self, first: torch.Tensor, *rest: Any) -> Any:
        if self._failed or first.device.type != "cuda":
            return self._plain(first, *rest)
        if self._compiled is None:
            # Kinds of input differ by number format and by sizes.
            torch._dynamo.config.recompile_limit = 64
            self._compiled = torch.compile(self._plain, dynamic=self._dynamic)
        try:
            return self._compiled(first, *rest)
        except Exception as error:
            # Whatever a compiler raises; the plain function raises again what is its own fault.
            name = getattr(self._plain, "__name__", "function")
            print(f"{name} runs uncompiled: {str(error).splitlines()[0][:200]}", flush=True)
            self._failed = True
            return self._plain(first, *rest)
