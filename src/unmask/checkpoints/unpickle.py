"""Read pickles as data: no class is imported and nothing that a file names is called.

A pickle is a program for a small stack machine that may call any function by name. This is that machine without the
calls: it makes plain values and containers, a tensor becomes a reference to its bytes, and everything else becomes a
``Stub`` with its name, arguments and state.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any, BinaryIO

import torch
from torch import Tensor

FLOATS = {"Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16}
INTEGERS = {"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8}
STORAGES = {f"torch.{name}Storage": dtype for name, dtype in (FLOATS | INTEGERS | {"Bool": torch.bool}).items()}
ITEM_LIMIT = 2_000_000  # opcodes, seconds of work; a checkpoint has thousands, a tokenizer a few hundred thousand


@dataclass(frozen=True)
class Global:
    """A class or function that a pickle names."""

    name: str


@dataclass(eq=False)
class Stub:
    """An object that was not made: its class, arguments and state."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Storage:
    """Bytes in the file: their key, element type and number of elements."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class Stored:
    """A tensor whose values are still in the file."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def of(self, content: bytearray) -> Tensor:
        """The tensor, from its storage's bytes."""
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        room = len(content) // self.dtype.itemsize
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        if last >= room or math.prod(self.shape) > room:
            raise ValueError(f"a tensor of shape {list(self.shape)} does not fit into its {len(content)} stored bytes")
        flat = torch.frombuffer(content, dtype=self.dtype)
        return torch.as_strided(flat, self.shape, self.stride, self.offset).contiguous()


LITERALS = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
        *("SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINBYTES"),
        *("SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
CONTAINERS: dict[str, Callable[..., Any]] = {
    "builtins.list": list,
    "builtins.tuple": tuple,
    "torch.Size": tuple,
    "builtins.set": set,
    "builtins.frozenset": frozenset,
}


class Machine:
    """The opcodes of one pickle, run on plain values; REDUCE, NEWOBJ, BUILD and the like never call anything."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.named: dict[str, None] = {}  # the globals that the pickle names, in order
        self.storages: dict[str, Storage] = {}

    def run(self) -> Any:
        """The pickle's value."""
        for count, (opcode, argument, _) in enumerate(pickletools.genops(self.stream)):
            if count > ITEM_LIMIT:
                raise ValueError(f"a pickle of more than {ITEM_LIMIT} operations")
            name = opcode.name
            if name in LITERALS:
                self.stack.append(argument)
            elif name in CONSTANTS:
                self.stack.append(CONSTANTS[name]())
            elif name == "STOP":
                return self.stack.pop()
            elif name not in ("PROTO", "FRAME"):
                operation = getattr(self, f"op_{name.lower()}", None)
                if operation is None:
                    raise ValueError(f"the pickle has an operation {name}, which torch never writes")
                operation(argument)
        raise ValueError("the pickle has no end")

    def to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def _push_marked(self, make: Callable[[list[Any]], Any]) -> None:
        items = self.to_mark()
        self.stack.append(make(items))

    def op_mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def op_pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.to_mark()

    def op_pop_mark(self, _: Any) -> None:
        self.to_mark()

    def op_dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def op_put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    op_binput = op_long_binput = op_put

    def op_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def op_get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    op_binget = op_long_binget = op_get

    def op_tuple(self, _: Any) -> None:
        self._push_marked(tuple)

    def op_list(self, _: Any) -> None:
        self._push_marked(list)

    def op_frozenset(self, _: Any) -> None:
        self._push_marked(lambda items: frozenset(map(_key, items)))

    def op_dict(self, _: Any) -> None:
        self._push_marked(lambda items: {_key(name): item for name, item in _pairs(items)})

    def op_tuple1(self, _: Any, size: int = 1) -> None:
        if len(self.stack) < size:
            raise ValueError("the pickle makes a tuple of more items than it has")
        self.stack[-size:] = [tuple(self.stack[-size:])]

    op_tuple2, op_tuple3 = partialmethod(op_tuple1, size=2), partialmethod(op_tuple1, size=3)

    def op_append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def op_appends(self, _: Any) -> None:
        self._extend(self.to_mark())

    def op_additems(self, _: Any) -> None:
        items, target = self.to_mark(), self.stack[-1]
        target.update(map(_key, items)) if isinstance(target, set) else self._extend(items)

    def op_setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def op_setitems(self, _: Any) -> None:
        self._set(self.to_mark())

    def op_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(self._name(module, name))

    def op_stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(self._name(str(module), str(name)))

    def op_inst(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        arguments = self.to_mark()
        self.stack.append(made(self._name(module, name), tuple(arguments)))

    def op_obj(self, _: Any) -> None:
        what, *arguments = self.to_mark()
        self.stack.append(made(what, tuple(arguments)))

    def op_reduce(self, _: Any) -> None:
        arguments, what = self.stack.pop(), self.stack.pop()
        self.stack.append(made(what, arguments))

    op_newobj = op_reduce

    def op_newobj_ex(self, _: Any) -> None:
        keywords, arguments, what = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.stack.append(Stub(_name_of(what), (*arguments, keywords)))

    def op_build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Stub):
            target.state = state
        # The state of an OrderedDict (_metadata of a state_dict) and a tensor's attributes are ignored.

    def op_persid(self, argument: str) -> None:
        raise ValueError(f"the pickle refers to {argument[:40]!r}, which is not in the file")

    def op_binpersid(self, _: Any) -> None:
        """('storage', type, key, device, number of elements), and in older files a sixth, for views."""
        match self.stack.pop():
            case ("storage", Global(name), str(key), _, int(count), *rest) if (
                rest in ([], [None]) and count >= 0 and name in (*STORAGES, "torch.storage.UntypedStorage")
            ):
                self.storages[key] = Storage(key, STORAGES.get(name, torch.uint8), count)
                self.stack.append(self.storages[key])
            case other:
                raise ValueError(f"a storage of a kind that is not known: {str(other)[:80]}")

    def _name(self, module: str, name: str) -> Global:
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        self.named[f"{module}.{name}"] = None
        return Global(f"{module}.{name}")

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        (target.items if isinstance(target, Stub) else target).extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Stub):
            target.items.extend(_pairs(items))
        elif isinstance(target, dict):
            target.update((_key(name), item) for name, item in _pairs(items))
        else:
            raise ValueError("the pickle puts an item into something that is not a dict")


def made(what: Any, arguments: Any) -> Any:
    """The result of calling a global, for tensors and plain containers; a stub for everything else."""
    name = _name_of(what)
    match name, arguments:
        case "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor", (Storage() as s, *rest):
            return _stored(s, rest, s.dtype)
        case "torch._utils._rebuild_tensor_v3", (Storage() as s, *rest) if len(rest) >= 6:
            dtype = getattr(torch, _name_of(rest[5]).removeprefix("torch."), None)
            return _stored(s, rest, dtype if isinstance(dtype, torch.dtype) else s.dtype)
        case "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", (Stored() as t, *_):
            return t
        case "torch._tensor._rebuild_from_type_v2", (Global() as function, _, tuple(given), *_):
            return made(function, given)
        case "copyreg._reconstructor", (Global(name), *_):
            return Stub(name)
        case "collections.OrderedDict" | "builtins.dict", tuple(given):
            return {_key(key): item for key, item in (given[0] if given else ())}
        case _ if name in CONTAINERS and isinstance(arguments, tuple) and len(arguments) <= 1:
            items = arguments[0] if arguments else ()
            return CONTAINERS[name](map(_key, items) if "set" in name else items)
        case "collections.defaultdict", tuple():
            return {}
    return Stub(name, arguments if isinstance(arguments, tuple) else (arguments,))


def _stored(storage: Storage, rest: list[Any], dtype: torch.dtype) -> Stored:
    offset, shape, stride = rest[:3]
    numbers = (offset, *shape, *stride)
    if len(shape) != len(stride) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ValueError(f"a tensor of shape {shape}, strides {stride} and offset {offset}")
    return Stored(storage, offset, tuple(shape), tuple(stride), dtype)


def _key(value: Any) -> Any:
    """A key or set element that is safe to hash: deeply nested ones are replaced by the name of their type."""
    return value if isinstance(value, str | bytes | int | float | bool | Global | None) else f"<{type(value).__name__}>"


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=True)


def _name_of(what: Any) -> str:
    return what.name if isinstance(what, Global | Stub) else type(what).__name__
