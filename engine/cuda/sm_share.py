"""A stream whose kernels run on some of the GPU's multiprocessors only.

Owns the driver's calls for that ("green contexts", CUDA 12.4): a share of the multiprocessors is
cut off, and what a stream of it launches stays there. What runs on other streams may use them too.
"""

from __future__ import annotations

import ctypes

import torch

_SM = 1
_DEFAULT_STREAM = 1
_NON_BLOCKING = 1
_RESOURCE_BYTES = 144
_COUNT_AT = 96
"""Where a resource of multiprocessors says how many they are."""


class SharedOut:
    """``stream`` on ``multiprocessors`` of the device, the number asked for rounded up to what the
    device can cut off. Raises RuntimeError where the driver cannot."""

    def __init__(self, device: torch.device, wanted: int, priority: int = 0) -> None:
        torch.cuda.current_stream(device).synchronize()  # makes the device's context
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
            self._stream, self.multiprocessors = self._cut(device.index or 0, wanted, priority)
        except (OSError, AttributeError) as error:
            raise RuntimeError(f"this driver shares out no multiprocessors: {error}") from None
        self.stream = torch.cuda.ExternalStream(self._stream, device)

    def _cut(self, index: int, wanted: int, priority: int) -> tuple[int, int]:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        whole, part, rest = (ctypes.create_string_buffer(_RESOURCE_BYTES) for _ in range(3))
        self._call("cuDeviceGetDevResource", device, whole, _SM)
        groups = ctypes.c_uint(1)
        self._call(
            "cuDevSmResourceSplitByCount", part, ctypes.byref(groups), whole, rest, 0, wanted
        )
        described, context, stream = (ctypes.c_void_p() for _ in range(3))
        self._call("cuDevResourceGenerateDesc", ctypes.byref(described), part, 1)
        self._call("cuGreenCtxCreate", ctypes.byref(context), described, device, _DEFAULT_STREAM)
        self._call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _NON_BLOCKING, priority)
        count = ctypes.c_uint.from_buffer(part, _COUNT_AT).value
        return stream.value or 0, count

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._driver, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} failed with CUDA error {result}")
