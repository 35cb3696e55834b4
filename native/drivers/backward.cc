// The backward pass: five products per pair of blocks, in one sweep.
//
// One unit of work is a sequence and a key head, with all query rows that read it. Its queries and output gradients are
// packed once; then each block of 64 keys is packed, meets every row block that sees it, and its dK and dV are
// finished. dQ grows in float32 beside it. Keys are grouped into segments of 512: each segment's dQ starts from zero
// and segments are added up in order. So dQ associates the same way whether one thread ran all segments (many units)
// or several threads one each (few units).
#include "drivers/backward.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "base/parallel.h"
#include "base/scratch.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {
namespace {

constexpr int64_t kSegmentKeys = 512;
constexpr int kBlockRows = 48;  // rows whose weights are kept for the products over rows: 12 KB each of P and dS
constexpr int kTilesPerBlock = kBlockRows / kTileRows;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// Queries and output gradients of one unit, as tiles (for scores) and as rows (for products over rows).
struct PackedRows {
  float *query_tiles, *grad_tiles, *query_rows, *grad_rows, *lse, *delta;
  int64_t query_tile, grad_tile, query_block, grad_block;  // distances from one to the next
  int64_t blocks;

  static int64_t lay_out(const uwaga_problem& p, int64_t rows, float* base, PackedRows* packed) {
    Layout layout(base);
    packed->blocks = (rows + kBlockRows - 1) / kBlockRows;
    packed->query_tile = rounded_up(p.query_width * kTileRows + kMaxLanes, 16);
    packed->grad_tile = rounded_up(p.value_width * kTileRows + kMaxLanes, 16);
    packed->query_block = kBlockRows * rounded_up(p.query_width, kMaxStrip);
    packed->grad_block = kBlockRows * rounded_up(p.value_width, kMaxStrip);
    packed->query_tiles = layout.take(packed->blocks * kTilesPerBlock * packed->query_tile);
    packed->grad_tiles = layout.take(packed->blocks * kTilesPerBlock * packed->grad_tile);
    packed->query_rows = layout.take(packed->blocks * packed->query_block);
    packed->grad_rows = layout.take(packed->blocks * packed->grad_block);
    packed->lse = layout.take(packed->blocks * kBlockRows);
    packed->delta = layout.take(packed->blocks * kBlockRows);
    return layout.used();
  }
};

// One block of keys and what grows with it, and the weights of one row block.
struct Workspace {
  float *key_columns, *key_rows, *value_columns, *grad_key, *grad_value;
  float *weights, *grad_scores, *grad_bias, *bias;

  static int64_t lay_out(const uwaga_problem& p, float* base, Workspace* w) {
    Layout layout(base);
    w->key_columns = layout.take(kBlockKeys * p.query_width);
    w->key_rows = layout.take(kBlockKeys * rounded_up(p.query_width, kMaxStrip));
    w->value_columns = layout.take(kBlockKeys * p.value_width);
    w->grad_key = layout.take(kBlockKeys * padded_width(p.query_width));
    w->grad_value = layout.take(kBlockKeys * padded_width(p.value_width));
    w->weights = layout.take(kBlockRows * kBlockKeys);
    w->grad_scores = layout.take(kBlockRows * kBlockKeys);
    w->grad_bias = layout.take(kTileRows * kBlockKeys);
    w->bias = layout.take(kTileRows * kBlockKeys);
    return layout.used();
  }
};

struct Unit {
  int64_t sequence, key_head;
};

class UnitPass {
 public:
  UnitPass(const uwaga_problem& p, const uwaga_backward_args& args, const Mask& mask, const Kernels& kernels, Unit unit)
      : p_(p),
        args_(args),
        mask_(mask),
        kernels_(kernels),
        rule_(rule_of(p)),
        unit_(unit),
        s_(sequence_of(p, unit.sequence)),
        rows_(s_.queries * (p.query_heads / p.key_heads)),
        query_width_(static_cast<int>(p.query_width)),
        value_width_(static_cast<int>(p.value_width)) {}

  int64_t rows() const { return rows_; }
  int64_t segments() const { return (s_.keys + kSegmentKeys - 1) / kSegmentKeys; }
  int64_t packed_size() {
    PackedRows sizes;
    return PackedRows::lay_out(p_, rows_, nullptr, &sizes);
  }
  int64_t grad_query_size() const { return rows_ * padded_width(query_width_); }

  void use_memory(float* packed) {
    PackedRows::lay_out(p_, rows_, packed, &rows_packed_);
    finite_.assign(rows_packed_.blocks, 1);
  }

  int64_t row_blocks() const { return rows_packed_.blocks; }

  // Packs row block `n`.
  void pack(int64_t n) {
    const int64_t first = n * kBlockRows;
    const int count = static_cast<int>(std::min<int64_t>(kBlockRows, rows_ - first));
    const float sign = p_.scale < 0.0f ? -1.0f : 1.0f;
    for (int t = 0; t * kTileRows < count; ++t) {
      const TileRows tile = tile_rows(p_, s_, unit_.key_head, first + t * kTileRows, first + count);
      const void *queries[kTileRows], *grads[kTileRows];
      for (int r = 0; r < tile.count; ++r) {
        queries[r] = query_address(p_, p_.query, s_, tile.rows[r].head, tile.rows[r].query);
        grads[r] = query_address(p_, args_.grad_output, s_, tile.rows[r].head, tile.rows[r].query);
        set_row_statistics(first + t * kTileRows + r, tile.rows[r], grads[r]);
        pack_row(n, t * kTileRows + r, queries[r], grads[r]);
      }
      const int64_t at = n * kTilesPerBlock + t;
      kernels_.pack_tile(rows_packed_.query_tiles + at * rows_packed_.query_tile, queries, tile.count, query_width_,
                         p_.query.column, p_.query.dtype, sign);
      kernels_.pack_tile(rows_packed_.grad_tiles + at * rows_packed_.grad_tile, grads, tile.count, value_width_,
                         args_.grad_output.column, args_.grad_output.dtype, 1.0f);
    }
    finite_[n] = rows_are_finite(rows_packed_.query_rows + n * rows_packed_.query_block, count, query_width_) &&
                 rows_are_finite(rows_packed_.grad_rows + n * rows_packed_.grad_block, count, value_width_);
  }

  // dK and dV of segment `n`, and its share of dQ, which starts at zero here. `grad_relative` may be null.
  void run_segment(int64_t n, float* grad_query, float* grad_relative) const {
    thread_local Scratch scratch;
    Workspace w;
    Workspace::lay_out(p_, scratch.reserve(Workspace::lay_out(p_, nullptr, &w)), &w);
    std::fill(grad_query, grad_query + grad_query_size(), 0.0f);
    const int64_t last = std::min(s_.keys, (n + 1) * kSegmentKeys);
    for (int64_t j0 = n * kSegmentKeys; j0 < last; j0 += kBlockKeys) {
      run_block(w, j0, static_cast<int>(std::min<int64_t>(kBlockKeys, last - j0)), grad_query, grad_relative);
    }
  }

  void write_grad_query(const float* grad_query, int64_t first, int64_t last) const {
    for (int64_t r = first; r < last; ++r) {
      const RowOfWork at = row_of_work(p_, unit_.key_head, r);
      kernels_.write_row(query_address(p_, args_.grad_query, s_, at.head, at.query), args_.grad_query.column,
                         args_.grad_query.dtype, grad_query + r * padded_width(query_width_), p_.scale, query_width_);
    }
  }

  // sum over rows of -exp(sink - lse) * delta, into args.grad_sinks.
  void add_grad_sinks() const {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t head = row_of_work(p_, unit_.key_head, r).head;
      const float lse = rows_packed_.lse[r];
      if (lse == kHidden) continue;
      args_.grad_sinks[head] -= std::exp(p_.sinks[head] - lse) * rows_packed_.delta[r];
    }
  }

 private:
  void set_row_statistics(int64_t r, RowOfWork at, const void* grad) {
    float lse = 0.0f, delta = 0.0f;
    if (p_.normalize) {
      lse = *reinterpret_cast<const float*>(query_address(p_, args_.lse, s_, at.head, at.query));
      delta = kernels_.dot_rows(grad, args_.grad_output.column, args_.grad_output.dtype,
                                query_address(p_, args_.output, s_, at.head, at.query), args_.output.column,
                                args_.output.dtype, value_width_);
      if (args_.grad_lse.data) {
        delta -= *reinterpret_cast<const float*>(query_address(p_, args_.grad_lse, s_, at.head, at.query));
      }
    }
    rows_packed_.lse[r] = lse;
    rows_packed_.delta[r] = delta;
  }

  void pack_row(int64_t block, int row, const void* query, const void* grad) {
    float* query_rows = rows_packed_.query_rows + block * rows_packed_.query_block + row * kernels_.strip;
    float* grad_rows = rows_packed_.grad_rows + block * rows_packed_.grad_block + row * kernels_.strip;
    kernels_.pack_rows(query_rows, {query, 0, p_.query.column, p_.query.dtype}, 1, kBlockRows, query_width_);
    kernels_.pack_rows(grad_rows, {grad, 0, args_.grad_output.column, args_.grad_output.dtype}, 1, kBlockRows,
                       value_width_);
  }

  bool rows_are_finite(const float* packed, int count, int width) const {
    return packed_rows_are_finite(kernels_, packed, count, kBlockRows, width);
  }

  void run_block(const Workspace& w, int64_t j0, int count, float* grad_query, float* grad_relative) const {
    const Rows keys{key_address(p_, p_.key, s_, unit_.key_head, j0), p_.key.row, p_.key.column, p_.key.dtype};
    const Rows values{key_address(p_, p_.value, s_, unit_.key_head, j0), p_.value.row, p_.value.column, p_.value.dtype};
    kernels_.pack_columns(w.key_columns, keys, count, query_width_);
    kernels_.pack_rows(w.key_rows, keys, count, kBlockKeys, query_width_);
    kernels_.pack_columns(w.value_columns, values, count, value_width_);
    std::fill(w.grad_key, w.grad_key + kBlockKeys * padded_width(query_width_), 0.0f);
    std::fill(w.grad_value, w.grad_value + kBlockKeys * padded_width(value_width_), 0.0f);
    const bool keys_finite = packed_rows_are_finite(kernels_, w.key_rows, count, kBlockKeys, query_width_);
    for (int64_t n = 0; n < rows_packed_.blocks; ++n) {
      meet(w, n, j0, count, keys_finite && finite_[n], grad_query, grad_relative);
    }
    write_keys(w, j0, count);
  }

  // One row block against one block of keys.
  void meet(const Workspace& w, int64_t n, int64_t j0, int count, bool finite, float* grad_query,
            float* grad_relative) const {
    const int64_t first_row = n * kBlockRows, last_row = std::min(rows_, first_row + kBlockRows);
    const int64_t i0 = row_of_work(p_, unit_.key_head, first_row).query;
    const int64_t i1 = row_of_work(p_, unit_.key_head, last_row - 1).query + 1;
    const Visibility seen = mask_.block(s_, i0, i1, j0, j0 + count);
    if (seen == Visibility::kEmpty) return;
    const Block block{w.key_columns, w.value_columns, 0, 0, static_cast<int>(j0), count};  // columns both
    uint64_t bits[kBlockRows] = {};
    int first_seen = kBlockRows, last_seen = 0;  // rows of the tiles that see something
    bool masked = false;
    for (int64_t r0 = first_row; r0 < last_row; r0 += kTileRows) {
      const TileRows rows = tile_rows(p_, s_, unit_.key_head, r0, last_row);
      TileView view;
      look_at_tile(p_, mask_, s_, rows, seen, j0, count, w.bias, &view);
      const int at = static_cast<int>(r0 - first_row);
      float* weights = w.weights + at * kBlockKeys;
      float* grad_scores = w.grad_scores + at * kBlockKeys;
      if (view.empty) {
        std::fill(weights, weights + rows.count * kBlockKeys, 0.0f);
        std::fill(grad_scores, grad_scores + rows.count * kBlockKeys, 0.0f);
        masked = true;
        continue;
      }
      std::copy(view.bits, view.bits + rows.count, bits + at);
      masked |= view.masked;
      first_seen = std::min(first_seen, at);
      last_seen = at + rows.count;
      const int64_t tile_index = r0 / kTileRows;
      const bool wants_bias = grad_relative || args_.grad_bias.data;
      kernels_.backward_tile({rows_packed_.query_tiles + tile_index * rows_packed_.query_tile,
                              rows_packed_.grad_tiles + tile_index * rows_packed_.grad_tile,
                              rule_.biased ? w.bias : nullptr, rows_packed_.lse + r0, rows_packed_.delta + r0,
                              rows.row_keys, weights, grad_scores, wants_bias ? w.grad_bias : nullptr, rows.count,
                              query_width_, value_width_, view.mask},
                             block, rule_);
      if (grad_relative) add_grad_relative(rows, j0, count, w.grad_bias, grad_relative);
      if (args_.grad_bias.data) write_grad_bias(rows, j0, count, w.grad_bias);
      if (finite || !view.masked) {
        kernels_.product_rows({grad_scores, w.key_rows, grad_query + r0 * padded_width(query_width_),
                               padded_width(query_width_), rows.count, view.mask.first, view.mask.last, kBlockKeys,
                               query_width_});
      } else {
        guarded_grad_query(w, grad_scores, view.bits, rows.count, count, grad_query + r0 * padded_width(query_width_));
      }
    }
    if (first_seen >= last_seen) return;
    const float* query_rows = rows_packed_.query_rows + n * rows_packed_.query_block;
    const float* grad_rows = rows_packed_.grad_rows + n * rows_packed_.grad_block;
    if (!finite && masked) {
      guarded_product(w.weights, bits, first_seen, last_seen, count, grad_rows, value_width_, w.grad_value);
      guarded_product(w.grad_scores, bits, first_seen, last_seen, count, query_rows, query_width_, w.grad_key);
      return;
    }
    kernels_.product_columns({w.weights, grad_rows, w.grad_value, padded_width(value_width_), count, first_seen,
                              last_seen, kBlockRows, value_width_});
    kernels_.product_columns({w.grad_scores, query_rows, w.grad_key, padded_width(query_width_), count, first_seen,
                              last_seen, kBlockRows, query_width_});
  }

  // The same sums in the same order, leaving out pairs that do not see each other: what a hidden query, key or value
  // holds may be infinite or NaN, and 0 times that is NaN.
  void guarded_grad_query(const Workspace& w, const float* grad_scores, const uint64_t* bits, int rows, int count,
                          float* grad_query) const {
    std::vector<float> sum(padded_width(query_width_));
    for (int r = 0; r < rows; ++r) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int n = 0; n < count; ++n) {
        if (!(bits[r] >> n & 1)) continue;
        kernels_.add_scaled_row(sum.data(), grad_scores[r * kBlockKeys + n], w.key_rows + n * kernels_.strip,
                                kBlockKeys, query_width_);
      }
      kernels_.add_to(grad_query + r * padded_width(query_width_), sum.data(), padded_width(query_width_));
    }
  }

  // dK or dV: out[n] += sum over rows of weights[r][n] * packed rows[r].
  void guarded_product(const float* weights, const uint64_t* bits, int first, int last, int count, const float* rows,
                       int width, float* out) const {
    std::vector<float> sum(padded_width(width));
    for (int n = 0; n < count; ++n) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int r = first; r < last; ++r) {
        if (!(bits[r] >> n & 1)) continue;
        kernels_.add_scaled_row(sum.data(), weights[r * kBlockKeys + n], rows + r * kernels_.strip, kBlockRows, width);
      }
      kernels_.add_to(out + n * padded_width(width), sum.data(), padded_width(width));
    }
  }

  void add_grad_relative(const TileRows& rows, int64_t j0, int count, const float* grad, float* grad_relative) const {
    const int64_t start = start_of(p_.relative_start, s_);
    for (int r = 0; r < rows.count; ++r) {
      const RowOfWork at = rows.rows[r];
      float* to = grad_relative + at.head * p_.relative_head + (j0 - at.query - start) + p_.relative_zero;
      for (int n = 0; n < count; ++n) to[n] += grad[r * kBlockKeys + n];
    }
  }

  void write_grad_bias(const TileRows& rows, int64_t j0, int count, const float* grad) const {
    const int64_t column = args_.grad_bias.column;
    for (int r = 0; r < rows.count; ++r) {
      char* row = row_address(args_.grad_bias, s_.index, rows.rows[r].head, rows.rows[r].query);
      float* to = reinterpret_cast<float*>(row) + j0 * column;
      for (int n = 0; n < count; ++n) to[n * column] = grad[r * kBlockKeys + n];
    }
  }

  void write_keys(const Workspace& w, int64_t j0, int count) const {
    const float growth = 1.0f / rule_.keep;
    for (int n = 0; n < count; ++n) {
      if (args_.grad_key.data) {
        kernels_.write_row(key_address(p_, args_.grad_key, s_, unit_.key_head, j0 + n), args_.grad_key.column,
                           args_.grad_key.dtype, w.grad_key + n * padded_width(query_width_), p_.scale, query_width_);
      }
      if (args_.grad_value.data) {
        kernels_.write_row(key_address(p_, args_.grad_value, s_, unit_.key_head, j0 + n), args_.grad_value.column,
                           args_.grad_value.dtype, w.grad_value + n * padded_width(value_width_), growth, value_width_);
      }
    }
  }

  const uwaga_problem& p_;
  const uwaga_backward_args& args_;
  const Mask& mask_;
  const Kernels& kernels_;
  const ScoreRule rule_;
  const Unit unit_;
  const Sequence s_;
  const int64_t rows_;
  const int query_width_, value_width_;
  PackedRows rows_packed_{};
  std::vector<char> finite_;  // per row block: are its queries and output gradients finite?
};

class Backward {
 public:
  Backward(const uwaga_problem& p, const uwaga_backward_args& args)
      : p_(p), args_(args), mask_(p), kernels_(*active_level()) {
    for (int64_t b = 0; b < p.sequences; ++b) {
      for (int64_t g = 0; g < p.key_heads; ++g) units_.push_back({b, g});
    }
    if (p.query_offsets || p.key_offsets) {  // longest first, so that no long piece comes last
      std::stable_sort(units_.begin(), units_.end(), [&](Unit a, Unit b) {
        const Sequence x = sequence_of(p, a.sequence), y = sequence_of(p, b.sequence);
        return x.queries * x.keys > y.queries * y.keys;
      });
    }
  }

  void run() {
    // Sums over sequences must keep one order: those units go one at a time, each on all threads.
    const bool shared_sums = args_.grad_relative || args_.grad_sinks;
    const int64_t units = static_cast<int64_t>(units_.size());
    const bool whole_units = units >= 4 * p_.threads || units % p_.threads == 0 || p_.keys <= kSegmentKeys;
    if (!shared_sums && whole_units) {
      for_pieces(p_.threads, units, [&](int64_t n, int) { guarded([&] { run_unit(units_[n]); }); });
      return raise();
    }
    for (const Unit& unit : units_) run_split(unit);
  }

 private:
  template <class Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const std::bad_alloc&) {
      out_of_memory_.store(true);
    }
  }
  void raise() const {
    if (out_of_memory_.load()) throw std::bad_alloc();
  }

  // One unit on one thread.
  void run_unit(const Unit& unit) {
    UnitPass pass(p_, args_, mask_, kernels_, unit);
    const int64_t packed = pass.packed_size(), grads = rounded_up(pass.grad_query_size(), 16);
    thread_local Scratch scratch;
    float* base = scratch.reserve(packed + 2 * grads);
    float *part = base + packed, *total = part + grads;
    pass.use_memory(base);
    for (int64_t n = 0; n < pass.row_blocks(); ++n) pass.pack(n);
    std::fill(total, total + grads, 0.0f);
    for (int64_t n = 0; n < pass.segments(); ++n) {
      pass.run_segment(n, part, nullptr);
      kernels_.add_to(total, part, pass.grad_query_size());
    }
    if (args_.grad_query.data) pass.write_grad_query(total, 0, pass.rows());
  }

  // One unit on all threads: as many segments at a time as there are threads, added up in order.
  void run_split(const Unit& unit) {
    UnitPass pass(p_, args_, mask_, kernels_, unit);
    const int64_t packed = pass.packed_size(), grads = rounded_up(pass.grad_query_size(), 16);
    const int64_t width = std::min<int64_t>(p_.threads, pass.segments());
    const int64_t group = p_.query_heads / p_.key_heads;
    const int64_t relative = args_.grad_relative ? rounded_up(p_.query_heads * p_.relative_head, 16) : 0;
    Scratch scratch;
    float* base = scratch.reserve(packed + grads + width * (grads + relative) + 1);
    float *total = base + packed, *parts = total + grads, *relatives = parts + width * grads;
    pass.use_memory(base);
    for_pieces(p_.threads, pass.row_blocks(), [&](int64_t n, int) { guarded([&] { pass.pack(n); }); });
    if (args_.grad_sinks) pass.add_grad_sinks();
    std::fill(total, total + grads, 0.0f);
    const int64_t first_head = unit.key_head * group, heads = group * p_.relative_head;
    for (int64_t n = 0; n < pass.segments(); n += width) {
      const int64_t wave = std::min(width, pass.segments() - n);
      for_pieces(p_.threads, wave, [&](int64_t k, int) {
        guarded([&] {
          float* own = relative ? relatives + k * relative : nullptr;
          if (own) std::fill(own, own + relative, 0.0f);
          pass.run_segment(n + k, parts + k * grads, own);
        });
      });
      for (int64_t k = 0; k < wave; ++k) {
        kernels_.add_to(total, parts + k * grads, pass.grad_query_size());
        if (!relative) continue;
        const float* own = relatives + k * relative + first_head * p_.relative_head;
        float* sum = args_.grad_relative + first_head * p_.relative_head;
        for (int64_t m = 0; m < heads; ++m) sum[m] += own[m];
      }
    }
    raise();
    if (!args_.grad_query.data) return;
    for_pieces(p_.threads, pass.row_blocks(), [&](int64_t n, int) {
      pass.write_grad_query(total, n * kBlockRows, std::min(pass.rows(), (n + 1) * kBlockRows));
    });
  }

  const uwaga_problem& p_;
  const uwaga_backward_args& args_;
  const Mask mask_;
  const Kernels& kernels_;
  std::vector<Unit> units_;
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace

void backward(const uwaga_problem& problem, const uwaga_backward_args& args) { Backward(problem, args).run(); }

}  // namespace uwaga
