"""The structs of native/include/uwaga/c_api.h, field by field, for packing them with the module `struct`.

A field is written `name:type`, where the type is a code of the module `struct` (Q stands for a pointer, too) or the
name of a struct. All padding is written out in c_api.h, as fields called `reserved`.
"""

import struct

STRUCTS = {
    "uwaga_integers": "data:Q count:q",
    "uwaga_floats": "data:Q count:q",
    "uwaga_tensor": "data:Q bytes:q batch:q head:q row:q column:q dtype:i reserved:i",
    "uwaga_start": "mode:i reserved:i value:q starts:uwaga_integers",
    "uwaga_mask_operation": (
        "operation:i reserved:i start:uwaga_start low:q high:q ids:uwaga_integers query_ids:uwaga_integers "
        "id_batch:q query_id_batch:q bits:Q bytes:q batch:q head:q row:q column:q"
    ),
    "uwaga_pages": "table:uwaga_integers row_of_table:q rows:q count:q",
    "uwaga_problem": (
        "sequences:q query_heads:q key_heads:q queries:q keys:q query_width:q value_width:q query_tokens:q key_tokens:q "
        "query_offsets:uwaga_integers key_offsets:uwaga_integers query:uwaga_tensor key:uwaga_tensor value:uwaga_tensor "
        "mask:Q mask_operations:q scale:f softcap:f relative:uwaga_floats relative_head:q relative_zero:q "
        "relative_start:uwaga_start bias:uwaga_tensor sinks:uwaga_floats normalize:i threads:i dropout:f reserved:I seed:Q "
        "rows:uwaga_integers dropout_query:q dropout_key:q key_pages:uwaga_pages"
    ),
    "uwaga_forward_result": "output:uwaga_tensor lse:uwaga_tensor",
    "uwaga_softmax": "maximum:uwaga_tensor sum:uwaga_tensor",
    "uwaga_row_statistics": (
        "softmax:uwaga_softmax entropy:uwaga_tensor squares:uwaga_tensor distance:uwaga_tensor "
        "distance_start:uwaga_start top:q top_weights:uwaga_tensor top_positions:uwaga_tensor"
    ),
    "uwaga_selection": "sequences:uwaga_integers heads:uwaga_integers queries:uwaga_integers",
    "uwaga_pool_args": (
        "how:i reserved:i query_edges:uwaga_integers key_edges:uwaga_integers rows:q columns:q cells:uwaga_floats "
        "positions:Q position_count:q"
    ),
    "uwaga_backward_args": (
        "output:uwaga_tensor grad_output:uwaga_tensor lse:uwaga_tensor grad_lse:uwaga_tensor grad_query:uwaga_tensor "
        "grad_key:uwaga_tensor grad_value:uwaga_tensor grad_relative:uwaga_floats grad_sinks:uwaga_floats "
        "grad_bias:uwaga_tensor"
    ),
    "uwaga_forward_sums": "sums:uwaga_floats continues:i reserved:i",
    "uwaga_backward_sums": (
        "grad_query:uwaga_floats grad_key:uwaga_floats grad_value:uwaga_floats continues_queries:i continues_keys:i"
    ),
    "uwaga_row_sums": "sums:uwaga_floats continues:i is_last:i",
    "uwaga_weight_sums": "data:Q count:q continues:i reserved:i",
    "uwaga_exact_sums": "data:Q count:q head:q",
    "uwaga_matmul_args": (
        "rows:q columns:q depth:q a:uwaga_tensor b:uwaga_tensor bias:uwaga_tensor residual:uwaga_tensor "
        "preactivation:uwaga_tensor out:uwaga_tensor activation:i threads:i"
    ),
    "uwaga_activation_backward_args": (
        "rows:q width:q activation:i threads:i input:uwaga_tensor grad_output:uwaga_tensor grad_input:uwaga_tensor"
    ),
    "uwaga_norm_args": (
        "rows:q width:q x:uwaga_tensor added:uwaga_tensor weight:uwaga_tensor bias:uwaga_tensor dtype:i kind:i epsilon:f "
        "dropout:f seed:Q threads:i reserved:i"
    ),
    "uwaga_norm_result": "output:uwaga_tensor sum:uwaga_tensor",
    "uwaga_norm_backward_args": (
        "grad_output:uwaga_tensor grad_sum:uwaga_tensor grad_x:uwaga_tensor grad_added:uwaga_tensor "
        "grad_weight:uwaga_floats grad_bias:uwaga_floats"
    ),
    "uwaga_lookup": "table:uwaga_tensor table_rows:q indices:uwaga_integers",
    "uwaga_embed_args": (
        "rows:q width:q tokens:uwaga_lookup types:uwaga_lookup positions:uwaga_lookup weight:uwaga_tensor bias:uwaga_tensor "
        "output:uwaga_tensor epsilon:f threads:i"
    ),
    "uwaga_rotate_args": (
        "rows:q heads:q width:q pairs:q positions:q x:uwaga_tensor out:uwaga_tensor cos:uwaga_tensor sin:uwaga_tensor "
        "threads:i reserved:i"
    ),
}


def codes(name: str, first: str | None = None, last: str | None = None) -> str:
    """Return the codes of a struct, or of its fields from `first` to `last`."""
    fields = [field.split(":") for field in STRUCTS[name].split()]
    names = [field for field, _ in fields]
    selected = fields[names.index(first) if first else 0 : names.index(last) + 1 if last else None]
    return "".join(codes(kind) if kind in STRUCTS else kind for _, kind in selected)


def struct_of(name: str, first: str | None = None, last: str | None = None) -> struct.Struct:
    """Pack a struct, or its fields from `first` to `last`."""
    return struct.Struct("=" + codes(name, first, last))


def layout(name: str) -> list[int]:
    """Return the size of a struct, then the offset of each field, as uwaga_struct_layout returns them."""
    offsets, at = [], 0
    for field in STRUCTS[name].split():
        kind = field.split(":")[1]
        offsets.append(at)
        at += struct_of(kind).size if kind in STRUCTS else struct.calcsize("=" + kind)
    return [at, *offsets]
