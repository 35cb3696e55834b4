// One unit of the backward pass: a sequence and a key head, with all query rows that attend to it.
#ifndef UWAGA_DRIVERS_BACKWARD_UNIT_H_
#define UWAGA_DRIVERS_BACKWARD_UNIT_H_

#include <stdint.h>

#include <memory>

#include "base/scratch.h"
#include "drivers/gradient_products.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {

constexpr int64_t kSegmentKeys = 512;
struct Unit {
  int64_t sequence, key_head;
};

// Queries and output gradients of one unit, as tiles (for scores) and as the products over rows read them.
struct PackedRows {
  float *query_tiles, *grad_tiles, *blocks, *lse, *delta;
  int64_t query_tile, grad_tile, block;  // strides between them, in floats
  int64_t count;                         // row blocks

  // `size`: rows of a tile.
  static int64_t lay_out(const uwaga_problem& p, int64_t rows, int size, const GradientProducts& products, float* base,
                         PackedRows* packed) {
    ScratchLayout layout(base);
    const int block_rows = products.block_rows();
    packed->count = (rows + block_rows - 1) / block_rows;
    packed->query_tile = rounded_up(packed_tile(p.query_width, size), 16);
    packed->grad_tile = rounded_up(packed_tile(p.value_width, size), 16);
    packed->block = rounded_up(products.packed_size(), 16);
    packed->query_tiles = layout.take(packed->count * (block_rows / size) * packed->query_tile);
    packed->grad_tiles = layout.take(packed->count * (block_rows / size) * packed->grad_tile);
    packed->blocks = layout.take(packed->count * packed->block);
    packed->lse = layout.take(packed->count * block_rows);
    packed->delta = layout.take(packed->count * block_rows);
    return layout.used();
  }
};

struct KeyBlockScratch;  // one packed block of keys and its gradients

class UnitPass {
 public:
  UnitPass(const uwaga_problem& p, const uwaga_backward_args& args, const uwaga_backward_sums& sums, const Mask& mask,
           const Kernels& kernels, Unit unit);
  int64_t rows() const { return rows_; }
  int64_t segments() const { return (s_.keys + kSegmentKeys - 1) / kSegmentKeys; }
  int64_t packed_size();
  int64_t grad_query_size() const { return rounded_up(rows_, scoring_.rows) * padded_width(query_width_); }

  // The caller's memory for the sums of dQ over the parts of the keys, or null; and whether earlier parts are in it.
  float* grad_query_sums() const;
  bool continues_grad_query() const { return sums_.grad_query.data && sums_.continues_queries; }

  void set_memory(float* packed);
  int64_t row_blocks() const { return packed_.count; }
  int64_t block_rows() const { return block_rows_; }

  // Packs row block `n`.
  void pack(int64_t n);

  // Writes dK and dV of segment `n`, and its part of dQ to `grad_query`, which is cleared first. Adds to `grad_relative`, of the
  // unit's heads, unless that is null.
  void run_segment(int64_t n, float* grad_query, float* grad_relative) const;
  void write_grad_query(const float* grad_query, int64_t first, int64_t last) const;

  // Adds the sum over rows of -exp(sink - lse) * delta, for each head of the unit.
  void add_grad_sinks(float* grad_sinks) const;

 private:
  void set_lse_and_delta(int64_t r, GroupedRow at, const void* grad);
  void run_block(const KeyBlockScratch& w, int64_t j0, int count, float* grad_query, float* grad_relative) const;

  // One row block and one block of keys. *keys_are_finite caches whether all of these are; -1: not computed yet.
  void run_row_block(const KeyBlockScratch& w, int64_t n, int64_t j0, int count, int* keys_are_finite,
                     float* grad_query, float* grad_relative) const;

  void add_grad_relative(const TileRows& rows, int64_t j0, int count, const float* grad, float* grad_relative) const;
  void write_grad_bias(const TileRows& rows, int64_t j0, int count, const float* grad) const;
  // The caller's memory for the sums of dK or dV over the parts of the queries, of the block of keys from j0 on; or null.
  float* key_sums(const uwaga_floats& sums, int64_t j0, int width) const;
  void write_keys(const KeyBlockScratch& w, int64_t j0, int count) const;

  const uwaga_problem& p_;
  const uwaga_backward_args& args_;
  const uwaga_backward_sums& sums_;
  const Mask& mask_;
  const Kernels& kernels_;
  const Scoring scoring_;
  const std::unique_ptr<const GradientProducts> products_;
  const int64_t block_rows_;
  const Unit unit_;
  const Sequence s_;
  const int64_t rows_;
  const int query_width_, value_width_;
  PackedRows packed_{};
};

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_BACKWARD_UNIT_H_
