// Everything of one instruction set: included by its source file after the level's simd header, inside no namespace.
// UWAGA_LEVEL is the namespace, UWAGA_LEVEL_NAME what users call it.

#ifndef UWAGA_PAIR_KERNELS  // a level that multiplies pairs of bfloat16 names its four kernels for them
#define UWAGA_LEVEL_PAIRS false
#define UWAGA_PAIR_KERNELS nullptr, nullptr, nullptr, nullptr
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
#include "kernels/backward-inl.h"
#include "kernels/linear-inl.h"
#include "kernels/peak-inl.h"

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {
    UWAGA_LEVEL_NAME, kStrip,       UWAGA_LEVEL_PAIRS, pack_columns, pack_rows,       pack_tile,
    all_finite,       forward_tile, UWAGA_PAIR_KERNELS, merge_rows,  lane_sum,        write_row,
    dot_rows,         backward_tile, product_rows,     product_columns, add_to,       add_scaled_row,
    add_outer_product, add_tile_product, peak_flops,
};

}  // namespace UWAGA_LEVEL
}  // namespace uwaga
