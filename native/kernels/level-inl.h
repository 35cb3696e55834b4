// Everything of one instruction-set level: its source file includes this after the level's vector type (simd_NAME.h), inside
// no namespace. UWAGA_LEVEL is the level's namespace and UWAGA_LEVEL_NAME its public name. A level that is another one with products
// of pairs of bfloat16 defines UWAGA_LEVEL_BFLOAT16_PAIRS and has those kernels alone (pairs-inl.h); UWAGA_LEVEL_AMX: it
// has wide tiles of them (amx-inl.h, amx_gradients-inl.h). registry.cc joins them with the level below.
#include "kernels/kernels.h"
#include "uwaga/c_api.h"

// Before a loop that shall be unrolled so many times. A level whose vector is one float, which defines UWAGA_LEVEL_SMALL, keeps such loops
// as they are, but for those of a tile of a matrix product, which took five times as long: less than two thirds of its code, a twentieth more
// time for attention, and a half more for decoding.
#define UWAGA_PRAGMA(text) _Pragma(#text)
#ifdef UWAGA_LEVEL_SMALL
#define UWAGA_UNROLL(times)
#else
#define UWAGA_UNROLL(times) UWAGA_PRAGMA(GCC unroll times)
#endif

namespace uwaga {
namespace UWAGA_LEVEL {
namespace {

template <int N>
struct constant {
  static constexpr int value = N;
};
template <class T>
struct remove_pointer_to_const;
template <class T>
struct remove_pointer_to_const<const T*> {
  using type = T;
};
// Rows of outputs in scratch are padded to whole vectors of any level.
inline int64_t padded_width(int width) { return (int64_t{width} + kMaxLanes - 1) / kMaxLanes * kMaxLanes; }

// clang-format off: each uses what those before it define
#include "kernels/math-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/forward-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/in_place-inl.h"
#include "kernels/weights-inl.h"
#include "kernels/backward-inl.h"
#include "kernels/matmul-inl.h"
#include "kernels/activations-inl.h"
#include "kernels/norms-inl.h"
#include "kernels/rotary-inl.h"
// clang-format on
#ifdef UWAGA_LEVEL_BFLOAT16_PAIRS
#include "kernels/pairs-inl.h"
#endif
#include "kernels/linear-inl.h"

#ifdef UWAGA_LEVEL_AMX
#include "kernels/amx-inl.h"
#include "kernels/amx_gradients-inl.h"
#endif
#ifdef UWAGA_LEVEL_BFLOAT16_PAIRS
}  // namespace

extern const PairKernels kPairKernels;
#ifdef UWAGA_LEVEL_AMX
const PairGradientKernels kPairGradientKernels = {
    .backward_tile = backward_of_tiles,
    .pack_transposed = pack_transposed_tiles,
    .split_weights = split_weights,
    .add_rows_gradient = add_rows_gradient,
    .add_columns_gradient = add_columns_gradient,
    .transpose_gradient = transpose_gradient,
};
const PairKernels kPairKernels = {
    .rows = kTileRows,
    .pack_queries = pack_queries_tile,
    .pack_keys = pack_keys_tile,
    .pack_values = pack_values_tile,
    .pack_gradients = pack_tile,
    .all_finite = all_finite_pairs,
    .begin_tiles = begin_tiles,
    .end_tiles = end_tiles,
    .forward_tile = forward_wide_tile,
    .start_tile = start_wide_tile,
    .finish_tile = finish_wide_tile,
    .forward_tile_in_place = nullptr,
    .weights_tile = weights_wide_tile,
    .backward_tile = backward_wide_tile,
    .gradients = &kPairGradientKernels,
    .split_state = nullptr,
    .add_outer_product = nullptr,
    .add_tile_product = nullptr,
    .write_rows_times_state = nullptr,
    .matmul_tile = matmul_wide_tile,
    .pack_few_rows = pack_few_rows_tile,
    .few_rows = few_wide_rows,
    .pack_tiles_from_columns = nullptr,
};
#else
const PairKernels kPairKernels = {
    .rows = kTileRows,
    .pack_queries = pack_tile_pairs,
    .pack_keys = pack_columns_pairs,
    .pack_values = pack_rows_pairs,
    .pack_gradients = pack_tile,
    .all_finite = all_finite_pairs,
    .begin_tiles = nullptr,
    .end_tiles = nullptr,
    .forward_tile = forward_tile_pairs,
    .start_tile = nullptr,
    .finish_tile = nullptr,
    .forward_tile_in_place = forward_tile_in_place_pairs,
    .weights_tile = weights_tile_pairs,
    .backward_tile = backward_tile_pairs,
    .gradients = nullptr,
    .split_state = split_state,
    .add_outer_product = add_outer_product_pairs,
    .add_tile_product = add_tile_product_pairs,
    .write_rows_times_state = write_rows_times_state_pairs,
    .matmul_tile = matmul_tile_pairs,
    .pack_few_rows = nullptr,
    .few_rows = few_rows_pairs,
    .pack_tiles_from_columns = pack_tiles_from_columns_pairs,
};
#endif
#else

// Measures the processor's peak: independent multiply-adds and nothing else.
inline double peak_flops(int64_t iterations) {
  const F a = broadcast(0.999f), b = broadcast(0.001f);
  // Twelve chains hide the latency of a multiply-add (four or five cycles, two a cycle); named one by one, since a
  // compiler may keep an array in memory.
  // Chains that start alike would be computed once.
  F c0 = broadcast(0.0f), c1 = broadcast(1.0f), c2 = broadcast(2.0f), c3 = broadcast(3.0f), c4 = broadcast(4.0f);
  F c5 = broadcast(5.0f), c6 = broadcast(6.0f), c7 = broadcast(7.0f), c8 = broadcast(8.0f), c9 = broadcast(9.0f);
  F c10 = broadcast(10.0f), c11 = broadcast(11.0f);
  for (int64_t n = 0; n < iterations; ++n) {
    c0 = fma(c0, a, b), c1 = fma(c1, a, b), c2 = fma(c2, a, b), c3 = fma(c3, a, b);
    c4 = fma(c4, a, b), c5 = fma(c5, a, b), c6 = fma(c6, a, b), c7 = fma(c7, a, b);
    c8 = fma(c8, a, b), c9 = fma(c9, a, b), c10 = fma(c10, a, b), c11 = fma(c11, a, b);
  }
  const F sums = add(add(add(c0, c1), add(c2, c3)), add(add(c4, c5), add(c6, c7)));
  volatile float sink = reduce_add(add(sums, add(add(c8, c9), add(c10, c11))));
  (void)sink;
  return 2.0 * 12 * kLanes * static_cast<double>(iterations);
}

}  // namespace

// Filled by name, so that no two kernels of one type can be swapped. A kernel that is missing here does not compile
// (-Werror=missing-field-initializers, CMakeLists.txt).
extern const Kernels kKernels;
const Kernels kKernels = {
    .name = UWAGA_LEVEL_NAME,
    .strip = kStrip,
    .pairs = nullptr,
    .six_row_pairs = nullptr,
    .pack_columns = pack_columns,
    .pack_rows = pack_rows,
    .pack_tile = pack_tile,
    .all_finite = all_finite,
    .forward_tile = forward_tile,
    .forward_tile_in_place = forward_tile_in_place,
    .merge_rows = merge_rows,
    .lane_sum = lane_sum,
    .lane_sums = lane_sums,
    .write_row = write_row,
    .write_rows = write_rows,
    .dot_rows = dot_rows,
    .backward_tile = backward_tile,
    .product_rows = product_rows,
    .product_columns = product_columns,
    .add_to = add_to,
    .add_scaled_row = add_scaled_row,
    .add_outer_product = add_outer_product,
    .add_tile_product = add_tile_product,
    .weights_tile = weights_tile,
    .add_rows = add_rows,
    .keep_largest = keep_largest,
    .add_seen = add_seen,
    .matmul_tile = matmul_tile,
    .few_rows = few_rows,
    .pack_tiles_from_columns = pack_tiles_from_columns,
    .finish_tile = finish_tile,
    .activation_gradient = activation_gradient,
    .norm_row = norm_row,
    .norm_gradient_row = norm_gradient_row,
    .rotate_row = rotate_row,
    .peak_flops = peak_flops,
};
#endif

}  // namespace UWAGA_LEVEL
}  // namespace uwaga
