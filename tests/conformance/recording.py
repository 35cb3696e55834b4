"""Calls of the native library as inputs of its fuzzer, native/fuzz/fuzz_c_api.cc, which says what an input is."""

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path

from uwaga._base.native_layout import STRUCTS, codes, struct_of

# The functions by their numbers, with the structs that each takes beside the problem, as the fuzzer reads them.
FUNCTIONS = {
    "uwaga_forward": (0, ["uwaga_forward_result"]),
    "uwaga_backward": (1, ["uwaga_backward_args"]),
    "uwaga_linear_forward": (2, ["uwaga_forward_result"]),
    "uwaga_rows": (3, ["uwaga_forward_result", "uwaga_row_statistics", "uwaga_selection"]),
    "uwaga_weights": (4, ["uwaga_softmax", "uwaga_selection", "uwaga_integers", "uwaga_tensor"]),
    "uwaga_mass": (5, ["uwaga_softmax", "uwaga_tensor"]),
    "uwaga_received": (6, ["uwaga_softmax", "uwaga_tensor", "uwaga_tensor"]),
    "uwaga_pool": (7, ["uwaga_softmax", "uwaga_pool_args"]),
    "uwaga_forward_part": (11, ["uwaga_forward_result", "uwaga_forward_sums"]),
    "uwaga_backward_part": (12, ["uwaga_backward_args", "uwaga_backward_sums"]),
    "uwaga_received_part": (13, ["uwaga_softmax", "uwaga_tensor", "uwaga_tensor", "uwaga_weight_sums"]),
    "uwaga_rows_part": (14, ["uwaga_forward_result", "uwaga_row_statistics", "uwaga_row_sums"]),
    "uwaga_diagonal_sums": (15, ["uwaga_softmax", "uwaga_tensor"]),
    "uwaga_mass_part": (16, ["uwaga_softmax", "uwaga_tensor", "uwaga_weight_sums"]),
    "uwaga_pool_part": (17, ["uwaga_softmax", "uwaga_pool_args", "uwaga_exact_sums"]),
    "uwaga_diagonal_sums_part": (18, ["uwaga_softmax", "uwaga_exact_sums"]),
}
_MOST_BYTES = 6000
_OPERATION = struct_of("uwaga_mask_operation")


class Recorder:
    """Writes calls into a folder: small ones, and of each function and shape of structs one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[object] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def wrapped(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def call(problem: bytes, *arguments) -> int:
            if name in ("uwaga_mass", "uwaga_mass_part"):
                softmax, other, count, *rest = arguments
                self.record(name, problem, (softmax, *rest), _split(bytes(other) if count else b""))
            else:
                self.record(name, problem, arguments, [])
            return function(problem, *arguments)

        return call

    def record(self, name: str, problem: bytes, arguments: tuple[bytes | None, ...], other: list[bytes]) -> None:
        number, structs = FUNCTIONS[name]
        packed = [x or bytes(struct_of(kind).size) for kind, x in zip(structs, arguments, strict=True)]
        if name == "uwaga_rows":
            packed.insert(2, bytes([arguments[2] is not None]))
        if name in ("uwaga_mass", "uwaga_mass_part"):
            packed.append(bytes([len(other)]))
        fields = _fields("uwaga_problem", problem)
        size = int(fields["mask_operations"]) * _OPERATION.size
        operations = [*_split(ctypes.string_at(fields["mask"], size) if size else b""), *other]
        parts = [problem, *packed, *operations]
        kinds = ["uwaga_problem", *structs, *["uwaga_mask_operation"] * len(operations)]
        buffers = [problem, *(x or b"" for x in arguments), *operations]
        presence = tuple(
            tuple(v != 0 for v in _fields(kind, x).values()) for kind, x in zip(kinds, buffers, strict=True) if x
        )
        operation_kinds = tuple(_fields("uwaga_mask_operation", x)["operation"] for x in operations)
        dtype = _fields("uwaga_problem", problem)["query.dtype"]
        key = (name, presence, operation_kinds, dtype)
        numbers = [_numbers("uwaga_mask_operation", x) for x in operations]
        numbers.append(_numbers("uwaga_problem", problem))
        numbers += [_numbers(kind, x) for kind, x in zip(structs, arguments, strict=True) if x]
        content = bytes([number, 0]) + b"".join(parts) + b"".join(numbers)
        if key in self.seen or len(content) > _MOST_BYTES:
            return
        self.seen.add(key)
        (self.folder / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}").write_bytes(content)


def _split(operations: bytes) -> list[bytes]:
    return [operations[at : at + _OPERATION.size] for at in range(0, len(operations), _OPERATION.size)]


def _fields(name: str, packed: bytes) -> dict[str, int | float]:
    """The numbers of a struct by name; of structs within it, `field.name`."""
    return dict(zip(_names(name), struct_of(name).unpack(packed), strict=True))


def _names(name: str) -> list[str]:
    results = []
    for field in STRUCTS[name].split():
        path, kind = field.split(":")
        results += [f"{path}.{inside}" for inside in _names(kind)] if kind in STRUCTS else [path]
    return results


def _numbers(name: str, packed: bytes) -> bytes:
    """The arrays of int64 that a struct points at, one after the other, in the order in which the fuzzer fills them."""
    actual = b""
    for field in STRUCTS[name].split():
        path, kind = field.split(":")
        if kind == "uwaga_start":
            path += ".starts"
        elif kind == "uwaga_pages":
            path += ".table"
        elif kind != "uwaga_integers":
            continue
        values = _fields(name, packed)
        if values[f"{path}.data"]:
            actual += ctypes.string_at(values[f"{path}.data"], int(values[f"{path}.count"]) * 8)
    return actual


assert codes("uwaga_integers") == "Qq", "the fuzzer fills arrays of (address, count)"
