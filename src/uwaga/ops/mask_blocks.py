"""What a mask makes of a block of queries and keys, without making its dense form: empty, partial or full.

A partial answer is always allowed where the truth is harder to find; empty and full are exact.
"""

from torch import Tensor

from uwaga.ops.attention.call import START_LAST, START_VALUE
from uwaga.ops.mask_program import BAND, DENSE, DOCUMENTS, LENGTHS, Block, MaskProgram, evaluate

Interval = tuple[int, int]  # first, past the last


def block(program: MaskProgram, rows: Interval, columns: Interval, sequence: int = 0, head: int = 0) -> Block:
    """The block of queries `rows` and keys `columns` of one sequence and head of a dense batch."""
    if not program.records:
        return Block.FULL

    def atom(record: tuple[int, ...]) -> Block:
        return _ATOMS[record[0]](program, record, rows, columns, sequence, head)

    return evaluate(tuple(program.records), atom, min, max)


def _band(program: MaskProgram, record: tuple[int, ...], rows: Interval, columns: Interval, sequence: int, head: int):
    _, mode, value, low, high, index = record
    start = {START_LAST: program.sizes.keys - program.sizes.queries, START_VALUE: value}.get(mode)
    if start is None:
        start = int(program.tensors[index][sequence])
    nearest, farthest = columns[0] - (rows[1] - 1) - start, columns[1] - 1 - rows[0] - start
    if farthest < low or nearest > high:
        return Block.EMPTY
    return Block.FULL if low <= nearest and farthest <= high else Block.PARTIAL


def _lengths(
    program: MaskProgram, record: tuple[int, ...], rows: Interval, columns: Interval, sequence: int, head: int
):
    length = int(program.tensors[record[5]][sequence])
    if columns[0] >= length:
        return Block.EMPTY
    return Block.FULL if columns[1] <= length else Block.PARTIAL


def _documents(
    program: MaskProgram, record: tuple[int, ...], rows: Interval, columns: Interval, sequence: int, head: int
):
    ids_K = _row(program.tensors[record[5]], sequence)
    shift = program.sizes.keys - program.sizes.queries if record[2] == -1 else 0
    ids_Q = ids_K if record[2] == -1 else _row(program.tensors[record[2]], sequence)
    return _of(ids_Q[rows[0] + shift : rows[1] + shift, None] == ids_K[None, columns[0] : columns[1]])


def _dense(program: MaskProgram, record: tuple[int, ...], rows: Interval, columns: Interval, sequence: int, head: int):
    bits_BHQK = program.tensors[record[5]]
    bits_QK = _row(_row(bits_BHQK, sequence), head)
    bits_QK = bits_QK.expand(program.sizes.queries, program.sizes.keys)
    return _of(bits_QK[rows[0] : rows[1], columns[0] : columns[1]])


def _row(tensor: Tensor, index: int) -> Tensor:
    return tensor[index if tensor.shape[0] > 1 else 0]


def _of(bits: Tensor) -> Block:
    if bits.all():
        return Block.FULL
    return Block.PARTIAL if bits.any() else Block.EMPTY


_ATOMS = {BAND: _band, LENGTHS: _lengths, DOCUMENTS: _documents, DENSE: _dense}
