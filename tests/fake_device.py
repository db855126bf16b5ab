"""An accelerator for tests, made of Python: its tensors wrap tensors of the CPU, so that results can be compared.

It fails where CUDA fails (an operation on tensors of two devices), and records everything that makes the host wait for
the device, with the line of ``unmask`` that did it. With ``float64=False`` it stands for Apple's GPUs, which have none.

    with fake_device.present() as waits:
        network.to(fake_device.NAME)
        ...
    assert not waits

It needs a private function of torch, so tests skip if ``available()`` is false. Outside ``present`` the process has no
accelerator.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from unmask import devices

NAME = "fake"
Wait = tuple[str, str]
"""What was waited for, and the place in the source of the project."""

aten = torch.ops.aten
# Operators whose result, or its shape, depends on data: the host has to read these from the device.
READING = {
    *(aten._local_scalar_dense, aten.item, aten.equal, aten.is_nonzero, aten.nonzero, aten.masked_select),
    *(aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount, aten.multinomial),
    aten.repeat_interleave,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}


class _Device:
    """The state of the one fake device."""

    there = False
    float64 = True
    waits: ClassVar[Counter[Wait]] = Counter()


@cache
def available() -> bool:
    """Whether this torch lets a device be made of Python."""
    try:
        from torch.utils import backend_registration as registration

        class Module(registration._DummyBackendModule):
            def is_available(self) -> bool:
                return _Device.there

            def is_initialized(self) -> bool:
                return _Device.there

            def get_rng_state(self, device: Any = None) -> Tensor:
                return torch.empty(0, dtype=torch.uint8)

            def set_rng_state(self, state: Tensor, device: Any = None) -> None: ...

        registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    except (ImportError, AttributeError):
        return False
    return True


@contextmanager
def present(*, float64: bool = True) -> Iterator[Counter[Wait]]:
    """Inside, the device exists. Yields the waits, which are counted as they happen."""
    assert available(), "the caller must skip"
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # how a module may get tensors of another class
    _Device.there, _Device.float64, _Device.waits = True, float64, Counter()
    devices._computes_float64.cache_clear()
    try:
        with _Operators(), _Constructors():
            yield _Device.waits
    finally:
        _Device.there = False
        torch.__future__.set_swap_module_params_on_conversion(swapped)


class Remote(Tensor):
    """A tensor of the device. ``held`` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Remote:
        if held.dtype == torch.float64 and not _Device.float64:
            raise TypeError("this device has no float64")
        with torch.inference_mode(False), torch.no_grad():
            tensor = torch.Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=torch.device(NAME, 0),
            )
        tensor.held = held
        return tensor  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Remote({self.held!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = Remote(self.held.clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operator, args, kwargs or {})


class _Operators(TorchDispatchMode):
    """Sees every operator, those that make tensors from nothing too."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operator, args, kwargs or {})


class _Constructors(torch.overrides.TorchFunctionMode):
    """torch.tensor, torch.as_tensor and tolist copy where no mode of operators sees it: here they copy by ``to``."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.tolist and isinstance(args[0], Remote):
            return args[0].cpu().tolist()
        device = kwargs.get("device")
        constructs = function in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Remote)
        if constructs and device is not None and torch.device(device).type == NAME:
            return function(*args, **{**kwargs, "device": "cpu"}).to(device)
        return function(*args, **kwargs)


def _run(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Check and count one operator, and apply it to the tensors that are held."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    remote = [one for one in tensors if isinstance(one, Remote)]
    device = kwargs.get("device")
    to_remote = bool(remote) if device is None else torch.device(device).type == NAME
    if not remote and not to_remote:
        return operator(*args, **kwargs)
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
        with _Operators():  # under inference mode such an operator arrives whole
            return operator.decompose(*args, **kwargs)
    if device is not None:
        kwargs = {**kwargs, "device": "cpu"}
    _inspect(operator, args, kwargs, tensors, to_remote)
    held: Callable[[Remote], Tensor] = lambda one: one.held  # noqa: E731
    result = operator(*tree_map_only(Remote, held, args), **tree_map_only(Remote, held, kwargs))
    if not to_remote:
        return result
    same = {id(one.held): one for one in remote}  # an operator in place returns its argument
    return tree_map_only(Tensor, lambda one: same.get(id(one)) if id(one) in same else Remote(one), result)


def _inspect(operator: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor], to_remote: bool) -> None:
    """Refuse what two devices cannot do, and count what makes the host wait."""
    packet = operator.overloadpacket
    if packet in (aten._to_copy, aten.copy_):
        source, there = (args[1], isinstance(args[0], Remote)) if packet is aten.copy_ else (args[0], to_remote)
        queued = kwargs.get("non_blocking") or (packet is aten.copy_ and len(args) > 2 and args[2])
        if isinstance(source, Remote) == there or (there and queued):
            return
        _wait("copy to the device" if there else "copy from the device")
        return
    indices = [one for one in args[1] if one is not None] if packet in INDEXING else []
    for index in indices:
        if not isinstance(index, Remote):
            _wait("index on the CPU")
        elif index.dtype == torch.bool:
            _wait("index by a mask")
    if packet in READING:
        _wait(f"read by {packet.__name__}")
    mixed = [one for one in tensors if not isinstance(one, Remote) and one.ndim and not any(one is i for i in indices)]
    if mixed or (indices and not isinstance(args[0], Remote)):
        raise RuntimeError(f"Expected all tensors to be on the same device: {operator}")


def _wait(what: str) -> None:
    frame = sys._getframe(1)
    while frame.f_back is not None and "/unmask/" not in frame.f_code.co_filename:
        frame = frame.f_back
    inside = "/unmask/" in frame.f_code.co_filename
    place = f"{frame.f_code.co_filename.rpartition('/unmask/')[2]}:{frame.f_lineno}" if inside else "elsewhere"
    _Device.waits[what, place] += 1
