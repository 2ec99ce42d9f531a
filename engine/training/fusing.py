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
        self._plain = function
        # Kinds of input differ by number format and by sizes of one.
        torch._dynamo.config.recompile_limit = 64
        self._compiled: Callable[..., Any] | None = torch.compile(function, dynamic=dynamic)

    def __call__(self, first: torch.Tensor, *rest: Any) -> Any:
        if self._compiled is None or first.device.type != "cuda":
            return self._plain(first, *rest)
        try:
            return self._compiled(first, *rest)
        except Exception as error:
            # Whatever a compiler raises; the plain function raises again what is its own fault.
            name = getattr(self._plain, "__name__", "function")
            print(f"{name} runs uncompiled: {str(error).splitlines()[0][:200]}", flush=True)
            self._compiled = None
            return self._plain(first, *rest)
