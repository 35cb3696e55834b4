// One unit of the backward pass: a sequence and a key head, with all query rows that attend to it.
#ifndef UWAGA_DRIVERS_BACKWARD_UNIT_H_
#define UWAGA_DRIVERS_BACKWARD_UNIT_H_

#include <stdint.h>

#include "base/scratch.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {

constexpr int64_t kSegmentKeys = 512;
constexpr int kBlockRows = 48;  // rows whose weights are kept for the products over rows: 12 KB each of P and dS
static_assert(kBlockRows % kTileRows == 0 && kBlockRows % kMaxTileRows == 0, "row blocks of whole tiles");

struct Unit {
  int64_t sequence, key_head;
};

// Queries and output gradients of one unit, as tiles (for scores) and as rows (for products over rows).
struct PackedRows {
  float *query_tiles, *grad_tiles, *query_rows, *grad_rows, *lse, *delta;
  int64_t query_tile, grad_tile, query_block, grad_block;  // strides between them, in floats
  int64_t blocks;

  // `size`: rows of a tile.
  static int64_t lay_out(const uwaga_problem& p, int64_t rows, int size, float* base, PackedRows* packed) {
    ScratchLayout layout(base);
    packed->blocks = (rows + kBlockRows - 1) / kBlockRows;
    packed->query_tile = rounded_up(packed_tile(p.query_width, size), 16);
    packed->grad_tile = rounded_up(packed_tile(p.value_width, size), 16);
    packed->query_block = kBlockRows * rounded_up(p.query_width, kMaxStrip);
    packed->grad_block = kBlockRows * rounded_up(p.value_width, kMaxStrip);
    packed->query_tiles = layout.take(packed->blocks * (kBlockRows / size) * packed->query_tile);
    packed->grad_tiles = layout.take(packed->blocks * (kBlockRows / size) * packed->grad_tile);
    packed->query_rows = layout.take(packed->blocks * packed->query_block);
    packed->grad_rows = layout.take(packed->blocks * packed->grad_block);
    packed->lse = layout.take(packed->blocks * kBlockRows);
    packed->delta = layout.take(packed->blocks * kBlockRows);
    return layout.used();
  }
};

struct KeyBlockScratch;  // one packed block of keys and its gradients

class UnitPass {
 public:
  UnitPass(const uwaga_problem& p, const uwaga_backward_args& args, const Mask& mask, const Kernels& kernels,
           Unit unit);
  int64_t rows() const { return rows_; }
  int64_t segments() const { return (s_.keys + kSegmentKeys - 1) / kSegmentKeys; }
  int64_t packed_size();
  int64_t grad_query_size() const { return rows_ * padded_width(query_width_); }

  void set_memory(float* packed);
  int64_t row_blocks() const { return packed_.blocks; }

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
  void pack_rows_of_tile(int64_t block, int tile, int count, const void* const* queries, const void* const* grads);
  bool rows_are_finite(int64_t n) const;  // queries and output gradients of row block `n`
  void run_block(const KeyBlockScratch& w, int64_t j0, int count, float* grad_query, float* grad_relative) const;

  // One row block and one block of keys. *keys_are_finite caches whether all of these are; -1: not computed yet.
  void run_row_block(const KeyBlockScratch& w, int64_t n, int64_t j0, int count, int* keys_are_finite,
                     float* grad_query, float* grad_relative) const;

  // The products of `run_row_block` without masked pairs, in the same order: masked queries, keys and values may be NaN or
  // infinite, and 0 times that is NaN.
  void guarded_grad_query(const KeyBlockScratch& w, const float* grad_scores, const uint64_t* bits, int rows, int count,
                          float* grad_query) const;

  // dK or dV: out[n] += sum over rows of weights[r][n] * packed rows[r].
  void guarded_grad_keys(const float* weights, const uint64_t* bits, int first, int last, int count, const float* rows,
                         int width, float* out) const;
  void add_grad_relative(const TileRows& rows, int64_t j0, int count, const float* grad, float* grad_relative) const;
  void write_grad_bias(const TileRows& rows, int64_t j0, int count, const float* grad) const;
  void write_keys(const KeyBlockScratch& w, int64_t j0, int count) const;

  const uwaga_problem& p_;
  const uwaga_backward_args& args_;
  const Mask& mask_;
  const Kernels& kernels_;
  const Scoring scoring_;
  const Unit unit_;
  const Sequence s_;
  const int64_t rows_;
  const int query_width_, value_width_;
  PackedRows packed_{};
};

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_BACKWARD_UNIT_H_
