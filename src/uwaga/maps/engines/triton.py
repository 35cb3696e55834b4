"""Map statistics on a GPU: the kernels of triton_kernels.py, in O(N) memory.

Triton is imported when a call first comes here. With TRITON_INTERPRET=1 in the environment at that moment the same kernels
run in Triton's interpreter, on CPU tensors; that is slow, and what the tests use.

Letters as in maps/spec.py.
"""

import importlib
import subprocess
from contextlib import nullcontext
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from uwaga._base.tracing import has_tangent, is_plain_tensor, is_tracing, is_transformed
from uwaga.maps.engines import tiles
from uwaga.maps.spec import Normalizer, RowStatistics, RowStatisticsRequest, Selection
from uwaga.ops.attention import choose
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.operators import run
from uwaga.ops.mask_program import START_LAST, And, Band, Dense, Lengths, MaskProgram, Or, SameDocument

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_WIDTH = 256
_MAX_OPERATIONS = 30  # the kernels keep a mask's results as the bits of an int32
_MAX_TOKENS = 1 << 30  # positions are int32
_LEAST_ROWS = 16  # of a tile
_NO_DEVICE = nullcontext()
_LARGEST, _SMALLEST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).smallest_normal


def refusal(call: Call) -> str | None:
    """Why this engine cannot serve the call, or None."""
    if is_transformed() or has_tangent(*call.operands):
        return "it supports neither torch.func nor forward-mode derivatives"
    if is_tracing():
        return "tracers cannot record its kernels"
    if not all(map(_has_memory, call.tensors)):
        return "it reads memory, and not every tensor is a plain one with memory"
    if call.query.dtype not in _DTYPES:
        return f"it computes float32, bfloat16 and float16, not {_name(call.query.dtype)}"
    if not (call.query.shape[1] > 0 and 0 < call.query.shape[3] <= _MAX_WIDTH):
        return f"it needs at least one head, and head widths from 1 to {_MAX_WIDTH}"
    if abs(call.options.scale) > _LARGEST or 0.0 < call.options.softcap < _SMALLEST or call.options.softcap > _LARGEST:
        return "it computes in float32, where this scale or softcap is infinite or zero"
    if call.bias is not None and call.bias.dtype not in _DTYPES:
        return f"it reads biases of float32, bfloat16 and float16, not {_name(call.bias.dtype)}"
    if len(call.options.mask_program) > _MAX_OPERATIONS:
        return f"a mask has more than {_MAX_OPERATIONS} parts"
    if max(call.query.shape[2], call.key.shape[2]) >= _MAX_TOKENS:
        return f"it counts fewer than {_MAX_TOKENS} tokens"
    return reason_unavailable(call.query.device, call.query.dtype)


@cache
def reason_unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels do not run on this device, found by running a small one, or None."""
    try:
        kernels = load_kernels()
    except ImportError as error:
        return f"Triton cannot be imported ({error}): pip install triton"
    if kernels.IS_INTERPRETED:
        return None if device.type == "cpu" else f"Triton's interpreter reads CPU tensors, and these are on {device}"
    if device.type != "cuda":
        where = "with TRITON_INTERPRET=1, which is slow, also on the CPU"
        return f"its kernels run on CUDA GPUs ({where}), and the tensors are on {device}"
    capability = torch.cuda.get_device_capability(device)
    if dtype == torch.bfloat16 and torch.version.hip is None and capability < (8, 0):
        name, (major, minor) = torch.cuda.get_device_name(device), capability
        return f"{name} computes no bfloat16: its compute capability is {major}.{minor}, and 8.0 is needed"
    try:
        _probe(kernels, device)
    except torch.OutOfMemoryError:  # of others' tensors: it says nothing of the kernels
        raise
    except (RuntimeError, OSError, subprocess.SubprocessError, kernels.TritonError) as error:
        # An old driver, no C compiler for Triton's launchers, a GPU that it does not compile for.
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"Triton cannot run a kernel on {device}: {line}"
    return None


def _probe(kernels: ModuleType, device: torch.device) -> None:
    """Run the smallest kernel. Raises what Triton raises."""
    with torch.cuda.device(device):
        kernels.probe[(1,)](torch.zeros(1, device=device), num_warps=1)
        torch.cuda.synchronize(device)


@cache
def load_kernels() -> ModuleType:
    return importlib.import_module("uwaga.maps.engines.triton_kernels")


def rows(call: Call, request: RowStatisticsRequest) -> RowStatistics:
    """Statistics of the rows in one pass over the keys; an output that is wanted is computed by `uwaga.attention`'s engine."""
    output = None
    if request.output:
        _check()
        output, _ = run(call, choose.engine_name(call, None))
    starts = None if request.distance is None else request.distance[2]
    launch, sizes = _Launch(call, starts), call.query.shape[:3]
    kernels, top, selection = launch.kernels, request.top, request.selection
    maximum, total = launch.new(*sizes), launch.new(*sizes)
    entropy = launch.new(*sizes) if request.entropy else None
    squares = launch.new(*sizes) if request.squares else None
    distance = launch.new(*sizes) if request.distance is not None else None
    scores = launch.new(*sizes, top).fill_(-torch.inf) if top else None
    positions = launch.new(*sizes, top, dtype=torch.int32).fill_(-1) if top else None
    mode, start, _ = request.distance or (START_LAST, 0, None)
    results = kernels.RowResults(
        maximum=maximum,
        sum=total,
        entropy=entropy,
        squares=squares,
        distance=distance,
        distance_mode=mode,
        distance_start=start,
        distance_starts=_address(starts),
        top_scores=scores,
        top_positions=positions,
    )
    chosen, sequences = launch.all_rows(), call.sequences
    if selection is not None:
        chosen, sequences = launch.chosen(selection), len(selection.sequences)
    launch.rows(
        kernels.row_statistics,
        chosen,
        sequences,
        launch.mask(call.options.mask_program, call.mask_tensors),
        chosen,
        call.sinks,
        results,
        TOP=top,
        BLOCK_T=_power_of_two(top),
    )
    normalizer = Normalizer(maximum, total)
    result = (None, None) if scores is None or positions is None else _sorted(scores, positions, normalizer)
    return RowStatistics(normalizer, output, entropy, squares, distance, *result)


def _sorted(scores: Tensor, positions: Tensor, normalizer: Normalizer) -> tuple[Tensor, Tensor]:
    """The largest weights in descending order, equal ones by position; 0 and -1 where fewer keys are visible."""
    missing = positions < 0
    places, order = torch.where(missing, _MAX_TOKENS, positions).sort(dim=-1)
    scores, missing = scores.gather(-1, order), places == _MAX_TOKENS
    divisor = torch.where(normalizer.sum == 0, 1.0, normalizer.sum)[..., None]
    weights = (scores - normalizer.maximum[..., None]).exp() / divisor
    # Hidden keys come after visible ones of weight 0; a NaN is sorted as the largest.
    ranks, order = torch.where(missing, -1.0, weights).sort(dim=-1, descending=True, stable=True)
    places, missing = places.gather(-1, order).long(), missing.gather(-1, order)
    return torch.where(missing, 0.0, ranks), torch.where(missing, -1, places)


def mass(call: Call, normalizer: Normalizer, program: MaskProgram, tensors: tuple[Tensor, ...]) -> Tensor:
    """(B, H, Q): the weight on the keys that a second mask shows too."""
    if len(program) > _MAX_OPERATIONS:
        raise ValueError(f"AttentionMap: a mask has more than {_MAX_OPERATIONS} parts")
    launch = _Launch(call, *normalizer, *tensors)
    out, chosen = launch.new(*call.query.shape[:3]), launch.all_rows()
    launch.rows(
        launch.kernels.second_mask,
        chosen,
        call.sequences,
        launch.mask(call.options.mask_program, call.mask_tensors),
        launch.mask(program, tensors),
        chosen,
        *launch.softmax(normalizer),
        out,
    )
    return out


def received(call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
    """(B, H, K): sum_i w_i a_ij, in one pass with the keys outside."""
    launch = _Launch(call, *normalizer, row_weights)
    out, longest = launch.new(*call.query.shape[:2], call.key.shape[2]), launch.longest_keys
    programs = -(-longest // launch.columns) * call.query.shape[1] * call.sequences
    launch.run(
        launch.kernels.received_weights,
        programs,
        launch.mask(call.options.mask_program, call.mask_tensors),
        *launch.softmax(normalizer),
        row_weights,
        (0, 0, 0) if row_weights is None else row_weights.stride(),
        out,
        longest,
    )
    return out


def diagonal_sums(call: Call, normalizer: Normalizer) -> Tensor:
    """(B, H, Q+K-1) of a dense call: sums of diagonals have no kernel, and PyTorch adds up the weights that the kernels compute."""
    batch, heads, queries, _ = call.query.shape
    device = call.query.device
    keys, every = torch.arange(call.key.shape[2], device=device), (tuple(range(batch)), tuple(range(heads)))
    tiled = torch.arange(queries, device=device).split(max(tiles.height(call), _LEAST_ROWS))
    sums = tiles.diagonal_sums(
        call, ((rows, weights(call, normalizer, Selection(*every, rows), keys)) for rows in tiled)
    )
    return sums.to(normalizer.sum.dtype)


def pool(
    call: Call, normalizer: Normalizer, pooling: str, query_edges: Tensor, key_edges: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Cells (S, H, rows, cols), and for "max" the positions of the largest weights (S, H, rows, cols, 2)."""
    launch = _Launch(call, *normalizer, query_edges, key_edges)
    sizes = (call.sequences, call.query.shape[1], query_edges.shape[1] - 1, key_edges.shape[1] - 1)
    cells = launch.new(*sizes)
    positions = launch.new(*sizes, 2, dtype=torch.int64).fill_(-1) if pooling == "max" else None
    block = max(16, min(64, _power_of_two(sizes[3])))
    launch.run(
        launch.kernels.pooled_cells,
        -(-sizes[3] // block) * sizes[0] * sizes[1] * sizes[2],
        launch.mask(call.options.mask_program, call.mask_tensors),
        *launch.softmax(normalizer),
        query_edges.contiguous(),
        key_edges.contiguous(),
        *sizes[2:],
        cells,
        positions,
        IS_MAX=pooling == "max",
        BLOCK_C=block,
    )
    return cells, positions


def weights(call: Call, normalizer: Normalizer, selection: Selection, keys: Tensor) -> Tensor:
    """(sequences, heads, queries, keys) of the selection."""
    launch = _Launch(call, *normalizer, selection.queries, keys)
    sizes = (len(selection.sequences), len(selection.heads), selection.queries.shape[0], keys.shape[0])
    out = launch.new(*sizes)
    launch.run(
        launch.kernels.chosen_weights,
        -(-sizes[3] // launch.columns) * -(-sizes[2] // launch.height(sizes[2])) * sizes[0] * sizes[1],
        launch.mask(call.options.mask_program, call.mask_tensors),
        launch.chosen(selection),
        *launch.softmax(normalizer),
        keys.contiguous(),
        sizes[3],
        out,
        queries=sizes[2],
    )
    return out


class _Launch:
    """One pass over a call: its operands as kernels take them, and tile sizes."""

    def __init__(self, call: Call, *tensors: Tensor | None) -> None:
        _check(*tensors)
        self.kernels = load_kernels()
        self._call = call
        self._alive: list[Tensor] = []  # what kernels read by address
        # By what ptxas reports for compute capability 9.0: with larger tiles registers spill.
        is_float32, width = call.query.dtype == torch.float32, call.query.shape[3]
        self.columns = self._rows = 32 if width > (32 if is_float32 else 128) else 64
        if is_float32 and width > 128:
            self._rows = 16
        self._warps = 8 if is_float32 or call.relative is not None or call.bias is not None else 4
        is_ragged = call.query_offsets is not None
        self.longest_queries = call.options.max_queries if is_ragged else call.query.shape[2]
        self.longest_keys = call.options.max_keys if is_ragged else call.key.shape[2]

    def new(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Zeros: kernels write the rows and keys of sequences only."""
        return torch.zeros(sizes, dtype=dtype, device=self._call.query.device)

    def height(self, queries: int) -> int:
        """Rows of a tile."""
        return max(16, min(self._rows, _power_of_two(queries)))

    def all_rows(self) -> Any:
        return self.kernels.Chosen(None, None, None, self._call.query.shape[1], self.longest_queries)

    def chosen(self, selection: Selection) -> Any:
        device = self._call.query.device
        b, h = (torch.tensor(numbers, dtype=torch.int64, device=device) for numbers in selection[:2])
        return self.kernels.Chosen(b, h, selection.queries.long().contiguous(), len(h), len(selection.queries))

    def softmax(self, normalizer: Normalizer) -> tuple[Tensor, Tensor]:
        return normalizer.maximum.contiguous(), normalizer.sum.contiguous()

    def mask(self, program: MaskProgram, tensors: tuple[Tensor, ...]) -> Any:
        """A mask program as records in memory."""
        if not program:
            return self.kernels.Program(None, 0, 0)
        call = self._call
        sizes = (call.sequences, call.query.shape[1], self.longest_queries, self.longest_keys)
        self._alive.extend(tensors)
        numbers = [self._record(operation, tensors, sizes) for operation in program]
        records = torch.tensor(numbers, dtype=torch.int64).to(call.query.device)
        narrows = not any(isinstance(operation, Or) for operation in program)
        return self.kernels.Program(records, len(program), len(program) if narrows else 0)

    def _record(self, operation: object, tensors: tuple[Tensor, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of a record; see RECORD of triton_kernels.py."""
        result: tuple[int, ...]
        if isinstance(operation, Band):
            starts = None if operation.starts is None else tensors[operation.starts]
            result = (operation.start_mode, operation.start, operation.low, operation.high, _address(starts))
        elif isinstance(operation, Lengths):
            result = (0, 0, 0, 0, _address(tensors[operation.lengths]))
        elif isinstance(operation, SameDocument):
            keys = tensors[operation.ids]
            queries = None if operation.query_ids is None else tensors[operation.query_ids]
            strides = (_batch_stride(keys), 0 if queries is None else _batch_stride(queries))
            result = (0, 0, 0, 0, _address(keys), _address(queries), *strides)
        elif isinstance(operation, Dense):
            bits = tensors[operation.bits].expand(sizes)
            result = (0, 0, 0, 0, _address(bits), 0, *bits.stride())
        else:
            assert isinstance(operation, And | Or)
            result = ()
        record = (operation.code, *result)
        return (*record, *(0,) * (self.kernels.RECORD - len(record)))

    def rows(self, kernel: Any, chosen: Any, sequences: int, *arguments: object, **constants: int) -> None:
        """Run a kernel whose programs are tiles of rows."""
        tiles = -(-chosen.count_queries // self.height(chosen.count_queries))
        programs = tiles * chosen.count_heads * sequences
        self.run(kernel, programs, *arguments, queries=chosen.count_queries, **constants)

    def run(self, kernel: Any, programs: int, *arguments: object, queries: int | None = None, **constants: int) -> None:
        """Run a kernel on the call's operands; nothing for no programs, which CUDA cannot launch."""
        if not programs:
            return
        call, device = self._call, self._call.query.device
        height = self.height(self.longest_queries if queries is None else queries)
        width = max(16, _power_of_two(call.query.shape[3]))
        with torch.cuda.device(device) if device.type == "cuda" else _NO_DEVICE:
            kernel[(programs,)](
                self._scores(),
                *arguments,
                **constants,
                DOT=self.kernels.dot_type(call.query.dtype),
                BLOCK_M=height,
                BLOCK_N=self.columns,
                BLOCK_D=width,
                num_warps=self._warps,
                num_stages=2,
                # So a score has the same bits in every kernel, and in its maximum: fused, a product and the sum after it are rounded once,
                # where the compiler finds both.
                enable_fp_fusion=False,
            )

    def _scores(self) -> Any:
        call, options = self._call, self._call.options
        bias = call.bias
        if bias is not None:
            bias = bias.expand(call.sequences, call.query.shape[1], self.longest_queries, self.longest_keys)
        return self.kernels.Scores(
            query=call.query,
            key=call.key,
            query_strides=call.query.stride(),
            key_strides=call.key.stride(),
            heads=call.query.shape[1],
            heads_per_key_head=call.heads_per_key_head,
            queries=call.query.shape[2],
            keys=call.key.shape[2],
            width=call.query.shape[3],
            scale=float(options.scale),
            softcap=float(options.softcap) if options.softcap else None,
            bias=bias,
            bias_strides=None if bias is None else bias.stride(),
            relative=call.relative,
            distances=0 if call.relative is None else call.relative.shape[1],
            relative_zero=options.relative_zero,
            relative_start_mode=options.relative_start_mode,
            relative_start=options.relative_start,
            relative_starts=_address(call.relative_starts),
            query_offsets=call.query_offsets,
            key_offsets=call.key_offsets,
            max_queries=options.max_queries,
            max_keys=options.max_keys,
        )


def _check(*tensors: Tensor | None) -> None:
    """The conditions of `refusal` again: tracers may have become active since the map was made.

    Raises:
        RuntimeError: under a tracer.
        TypeError: an argument is not a plain tensor with memory.
    """
    if is_tracing():
        raise RuntimeError(
            "AttentionMap: tracers cannot record the engine 'triton', which serves this map; make the map inside the "
            "traced function, or with impl='reference'"
        )
    if not all(map(_has_memory, tensors)):
        raise TypeError(
            "AttentionMap: the engine 'triton', which serves this map, takes plain tensors only; impl='reference' takes all"
        )


def _has_memory(tensor: Tensor | None) -> bool:
    if tensor is None:
        return True
    return is_plain_tensor(tensor) and not tensor.is_meta and not tensor._is_zerotensor()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _batch_stride(ids: Tensor) -> int:
    """Of (B or 1, K) ids; packed ones, (N,), have none."""
    return ids.stride(0) if ids.dim() == 2 and ids.shape[0] > 1 else 0


def _power_of_two(number: int) -> int:
    """The smallest one that is not below the number."""
    return 1 << max(number - 1, 0).bit_length()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
