// Everything of one instruction set: included by its source file after the level's simd header, inside no namespace.
// UWAGA_LEVEL is the namespace, UWAGA_LEVEL_NAME what users call it.

#ifdef UWAGA_LEVEL_PAIRS  // this level multiplies pairs of bfloat16
#define UWAGA_PAIR_KERNELS                                                             \
  pack_columns_pairs, pack_rows_pairs, pack_tile_pairs, all_finite_pairs, forward_tile_pairs, weights_tile_pairs, \
      backward_tile_pairs
#else
#define UWAGA_LEVEL_PAIRS false
#define UWAGA_PAIR_KERNELS nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr
#define UWAGA_NO_PAIRS
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

#include "kernels/math-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/forward-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/weights-inl.h"
#include "kernels/backward-inl.h"
#ifndef UWAGA_NO_PAIRS
#include "kernels/pairs-inl.h"
#endif
#include "kernels/linear-inl.h"
#include "kernels/peak-inl.h"

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {
    UWAGA_LEVEL_NAME, kStrip,       UWAGA_LEVEL_PAIRS, pack_columns, pack_rows,       pack_tile,
    all_finite,       forward_tile, UWAGA_PAIR_KERNELS, merge_rows,  lane_sum,        lane_sums,
    write_row,        write_rows,
    dot_rows,         backward_tile, product_rows,     product_columns, add_to,       add_scaled_row,
    add_outer_product, add_tile_product, weights_tile, add_rows,  keep_largest,  add_seen,
    peak_flops,
};

}  // namespace UWAGA_LEVEL
}  // namespace uwaga
