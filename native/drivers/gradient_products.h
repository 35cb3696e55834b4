// The products of the backward pass that sum the gradients: dQ += dS K over a block of keys, dK += dS^T Q and dV += P^T dO over the rows
// of a row block. In float32, or on pairs of bfloat16 where the level has them (PairGradientKernels).
#ifndef UWAGA_DRIVERS_GRADIENT_PRODUCTS_H_
#define UWAGA_DRIVERS_GRADIENT_PRODUCTS_H_

#include <stdint.h>

#include <memory>

#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {

constexpr int kMaxBlockRows = 64;

// Rows [first, first + count) of a row block, a tile whose P and dS were just computed.
struct GradientTile {
  int first, count;
  const uint64_t* bits;  // the visible keys of each row
  TileMask mask;
  bool guard;         // some pair is masked, and something that it would multiply by zero is NaN or infinite
  float* grad_query;  // rows padded_width(query_width) apart, with room for whole tiles; or null
};

// What the tiles of a row block saw of a block of keys.
struct GradientBlock {
  const float* packed;              // the row block's rows, from pack_rows
  const uint64_t* bits;             // the visible keys of each row; zero where a tile sees none
  int first_visible, last_visible;  // rows of the tiles with visible pairs
  int rows, keys;
  bool hides, guard;          // some pair is masked, and as in GradientTile
  bool grad_key, grad_value;  // wanted
};

// Constant: memory is the caller's. `packed`: queries and output gradients of a row block; `memory`: one block of keys, its gradients, and
// the weights of one row block.
class GradientProducts {
 public:
  virtual ~GradientProducts() = default;
  virtual int block_rows() const = 0;
  virtual int64_t packed_size() const = 0;
  virtual int64_t memory_size() const = 0;

  // All `count` rows of a row block, by pointer.
  virtual void pack_rows(float* packed, const void* const* queries, const void* const* grads, int count) const = 0;
  virtual bool rows_are_finite(const float* packed, int count) const = 0;
  virtual void pack_keys(float* memory, const Rows& keys, int count) const = 0;  // and clears their gradients
  virtual bool keys_are_finite(const float* memory, int count) const = 0;

  // Where a tile's P and dS are to be written, which begins at row `first`.
  virtual float* weights(float* memory, int first) const = 0;
  virtual float* grad_scores(float* memory, int first) const = 0;
  virtual void clear_tile(float* memory, int first, int count) const = 0;  // of zeros: it sees no key
  virtual void add_tile(float* memory, const GradientTile& tile) const = 0;
  virtual void add_block(float* memory, const GradientBlock& block) const = 0;

  // The sums in the order of the products: kBlockKeys * padded_width(width) numbers, and 0 before any block was added.
  virtual float* grad_key_sums(float* memory) const = 0;
  virtual float* grad_value_sums(float* memory) const = 0;
  // The sums, rows of padded_width(width); valid until the other one is asked for.
  virtual const float* grad_key(float* memory) const = 0;
  virtual const float* grad_value(float* memory) const = 0;
};

// `scoring` as backward_scoring_of gives it. Lives no longer than its arguments.
std::unique_ptr<const GradientProducts> gradient_products(const uwaga_problem& p, const uwaga_backward_args& args,
                                                          const Kernels& kernels, const Scoring& scoring);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_GRADIENT_PRODUCTS_H_
