// Products of matrices after Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", 2008): a block of b is
// packed once and stays in the second-level cache while all rows of a pass by, a tile at a time.
//
// Nothing that was packed outlives a call, so no copy of a weight can be stale. A sum is made of the sums of kDepthWords words of its
// depth, added in order: its bits depend neither on the other rows and columns nor on the number of threads.
#include <string.h>

#include <algorithm>

#include "base/half.h"
#include "base/parallel.h"
#include "base/scratch.h"
#include "drivers/drivers.h"
#include "drivers/problem.h"
#include "kernels/kernels.h"

namespace uwaga {
namespace {

constexpr int64_t kDepthWords = 512;     // of one packed block
constexpr int64_t kUnitColumns = 64;     // that are packed at once
constexpr int64_t kBlockColumns = 192;   // of one packed block: with kDepthWords 384 KiB, for a second-level cache
constexpr int64_t kFewColumns = 1024;    // of few rows, at once: their sums fit into a first-level cache
constexpr int64_t kPackedTiles = 8;      // of a, at once: whole lines of a transposed matrix
constexpr int64_t kMaxChunkRows = 2046;  // of one task: bounds its partial sums
constexpr int64_t kSmallWork = 1 << 19;  // multiply-adds that are not worth another thread

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How rows and columns are divided into tasks.
struct Division {
  int64_t row_chunk, column_chunk;

  Division(const uwaga_matmul_args& p, int64_t threads, int64_t tile_rows)
      : row_chunk(p.rows), column_chunk(p.columns) {
    const int64_t units = divide_up(p.columns, kUnitColumns);
    // Each task packs its columns of b for itself: rows are divided where there are many for each column, or few columns.
    const bool by_columns = units % threads == 0 || units >= 4 * threads || p.rows < 96 * threads;
    if (threads > 1 && by_columns) {
      column_chunk = divide_up(units, units >= 8 * threads ? 2 * threads : threads) * kUnitColumns;
    } else if (threads > 1) {
      row_chunk = divide_up(divide_up(p.rows, threads), tile_rows) * tile_rows;
    }
    row_chunk = std::min(row_chunk, kMaxChunkRows);
  }
};

class Matmul {
 public:
  explicit Matmul(const uwaga_matmul_args& args)
      : p_(args),
        kernels_(*active_level()),
        pairs_(kernels_.pairs && args.a.dtype == UWAGA_BFLOAT16),
        tile_rows_(pairs_ ? kernels_.pairs->rows : kTileRows),
        wide_(tile_rows_ > kTileRows),
        entries_per_word_(pairs_ ? 2 : 1),
        words_(divide_up(args.depth, entries_per_word_)),
        blocks_(std::max<int64_t>(divide_up(words_, kDepthWords), 1)),
        in_place_(args.a.column == 1 && (pairs_ ? args.depth % 2 == 0 : args.a.dtype == UWAGA_FLOAT32)),
        plain_(args.out.dtype == UWAGA_FLOAT32 && !args.bias.data && !args.residual.data && !args.preactivation.data &&
               args.activation == UWAGA_IDENTITY),
        few_rows_(args.rows <= tile_rows_ && (args.b.column == 1 || (args.b.row == 1 && !wide_))) {}

  void run() const {
    const double work = static_cast<double>(p_.rows) * static_cast<double>(p_.columns) * static_cast<double>(p_.depth);
    const int64_t useful = 1 + static_cast<int64_t>(std::min(work / kSmallWork, 4096.0));
    const int64_t threads = std::min<int64_t>(p_.threads, useful);
    const Division division(p_, threads, tile_rows_);
    const int64_t row_chunks = divide_up(p_.rows, division.row_chunk);
    const int64_t column_chunks = divide_up(p_.columns, division.column_chunk);
    parallel_for(static_cast<int>(threads), row_chunks * column_chunks, [&](int64_t task, int) {
      const int64_t m = task / column_chunks * division.row_chunk, n = task % column_chunks * division.column_chunk;
      run_task(m, std::min(p_.rows, m + division.row_chunk), n, std::min(p_.columns, n + division.column_chunk));
    });
  }

 private:
  struct Buffers {
    float *b, *a, *tile, *bias, *partial;
  };

  Buffers buffers(int64_t rows) const {
    thread_local Scratch scratch;
    const int64_t depth = std::min(words_, kDepthWords);
    const auto lay_out = [&](float* base, Buffers* out) {
      ScratchLayout layout(base);
      out->b = layout.take(depth_room(depth) * kBlockColumns);
      out->a = layout.take(in_place_ && p_.a.row && !wide_ ? 0 : kPackedTiles * tile_room(depth));
      out->tile = layout.take(tile_rows_ * kMaxStrip);
      out->bias = layout.take(kBlockColumns);
      out->partial = layout.take(needs_partial() ? rows * kBlockColumns : 0);
      return layout.used();
    };
    Buffers found;
    lay_out(scratch.reserve(lay_out(nullptr, &found)), &found);
    return found;
  }

  // Whether sums of several blocks cannot wait in `out`.
  bool needs_partial() const { return blocks_ > 1 && !plain_; }

  void run_task(int64_t m0, int64_t m1, int64_t n0, int64_t n1) const {
    const TileRegisters registers(kernels_);
    if (few_rows_) return run_few_rows(n0, n1);
    const Buffers buffer = buffers(m1 - m0);
    for (int64_t n = n0; n < n1; n += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, n1 - n);
      widen_bias(n, columns, kBlockColumns, buffer.bias);
      for (int64_t block = 0; block < blocks_; ++block) {
        const int64_t first = block * kDepthWords;
        const int64_t depth = std::min(words_ - first, kDepthWords);
        pack_columns(n, columns, first, depth, buffer.b);
        for (int64_t m = m0; m < m1; m += kPackedTiles * tile_rows_) {
          const int64_t rows = std::min(kPackedTiles * tile_rows_, m1 - m);
          MatmulTile tile{};
          tile.depth = depth_room(depth);
          place_rows(m, static_cast<int>(rows), first, depth, buffer.a, &tile);
          for (int64_t r = 0; r < rows; r += tile_rows_) {
            MatmulTile one = tile;
            one.rows = static_cast<int>(std::min<int64_t>(tile_rows_, rows - r));
            one.a = static_cast<const char*>(tile.a) +
                    (tile.a_row ? r * tile.a_row : r / tile_rows_ * tile_room(depth) * 4);
            if (tile.a_row && m + r + tile_rows_ < m1)
              one.next_a = static_cast<const char*>(one.a) + tile_rows_ * tile.a_row;
            multiply(m + r, m + r - m0, n, columns, block, buffer, &one);
          }
        }
      }
    }
  }

  // Words of a packed depth, and floats from one packed tile of a to the next.
  int64_t depth_room(int64_t depth) const { return wide_ ? rounded_up(depth, 16) : depth; }
  int64_t tile_room(int64_t depth) const { return depth_room(depth) * tile_rows_ + kMaxLanes; }

  const char* entry(const uwaga_tensor& t, int64_t row, int64_t column) const {
    return static_cast<const char*>(t.data) + (row * t.row + column * t.column) * element_size(t.dtype);
  }
  int entries(int64_t first, int64_t depth) const {
    return static_cast<int>(std::min(depth * entries_per_word_, p_.depth - first * entries_per_word_));
  }

  // A packed tile as rows of words: few_rows is compiled for these alone.
  void put_in_order(const float* packed, int rows, float* in_order, MatmulTile* tile) const {
    for (int r = 0; r < rows; ++r) {
      for (int64_t w = 0; w < words_; ++w) in_order[r * words_ + w] = packed[w * kTileRows + r];
    }
    tile->a = in_order;
    tile->a_row = words_ * static_cast<int64_t>(sizeof(float));
  }

  // All rows are one tile, and b is read once: it is read in place.
  void run_few_rows(int64_t n0, int64_t n1) const {
    thread_local Scratch scratch;
    float *packed, *in_order, *total, *sums, *bias;
    const bool packs = wide_ || !in_place_ || !p_.a.row;
    const auto lay_out = [&](float* base) {
      ScratchLayout layout(base);
      packed = layout.take(packs ? tile_room(words_) : 0);
      in_order = layout.take(packs && !wide_ ? p_.rows * words_ : 0);
      total = layout.take(p_.rows * kFewColumns);
      sums = layout.take(kFewColumns);
      bias = layout.take(kFewColumns);
      return layout.used();
    };
    lay_out(scratch.reserve(lay_out(nullptr)));
    const int rows = static_cast<int>(p_.rows);
    MatmulTile tile{};
    if (wide_) {
      const void* starts[kMaxTileRows];
      for (int r = 0; r < rows; ++r) starts[r] = entry(p_.a, r, 0);
      kernels_.pairs->pack_few_rows(packed, starts, rows, entries(0, words_), p_.a.column, p_.a.dtype, 1.0f);
      tile.a = packed;
    } else {
      place_rows(0, rows, 0, words_, packed, &tile);
      if (!tile.a_row) put_in_order(packed, rows, in_order, &tile);
    }
    const int64_t word_bytes = tile.a_row ? 4 : 4 * tile_rows_;
    for (int64_t n = n0; n < n1; n += kFewColumns) {
      const int64_t columns = std::min(kFewColumns, n1 - n);
      for (int64_t block = 0; block < blocks_; ++block) {
        const int64_t first = block * kDepthWords, depth = std::min(words_ - first, kDepthWords);
        FewRows few{};
        few.a = static_cast<const char*>(tile.a) + first * word_bytes, few.a_row = tile.a_row;
        few.b = {entry(p_.b, n, first * entries_per_word_), p_.b.row, p_.b.column, p_.b.dtype};
        few.entries = entries(first, depth);
        few.rows = rows, few.width = static_cast<int>(columns);
        few.to = total, few.sums = sums, few.to_row = kFewColumns, few.add = block > 0;
        (pairs_ ? kernels_.pairs->few_rows : kernels_.few_rows)(few);
      }
      if (plain_) {
        copy_rows(static_cast<float*>(p_.out.data) + n, p_.out.row, total, kFewColumns, rows, columns);
      } else {
        widen_bias(n, columns, kFewColumns, bias);
        finish(0, n, static_cast<int>(columns), {.sums = total, .row = kFewColumns, .bias = bias}, rows);
      }
    }
  }

  // Columns [n, n + columns) of b^T at words [first, first + depth), a strip after the other.
  void pack_columns(int64_t n, int64_t columns, int64_t first, int64_t depth, float* out) const {
    const int width = entries(first, depth);
    if (width <= 0) return;
    for (int64_t u = 0; u < columns; u += kUnitColumns) {
      const int count = static_cast<int>(std::min(kUnitColumns, columns - u));
      const Rows rows{entry(p_.b, n + u, first * entries_per_word_), p_.b.row, p_.b.column, p_.b.dtype};
      float* unit = out + u * depth_room(depth);
      if (p_.b.row == 1 && p_.b.column != 1) {  // adjacent along the columns: rows of b^T
        const Rows turned{rows.data, rows.column, rows.row, rows.dtype};
        const int room = wide_ ? static_cast<int>(2 * depth_room(depth)) : width;
        (pairs_ ? kernels_.pairs->pack_values : kernels_.pack_rows)(unit, turned, width, room, count);
      } else {
        (pairs_ ? kernels_.pairs->pack_keys : kernels_.pack_columns)(unit, rows, count, width);
      }
    }
  }

  // Sets the left operand of tiles: rows of a in place where the kernel can read them, else packed tile by tile.
  void place_rows(int64_t m, int rows, int64_t first, int64_t depth, float* packed, MatmulTile* tile) const {
    const int64_t column = first * entries_per_word_;
    const int width = entries(first, depth);
    tile->a = packed;
    if (width <= 0) return;
    const bool whole_tiles = rows % tile_rows_ == 0 && depth == depth_room(depth);
    if (in_place_ && (wide_ ? whole_tiles && p_.a.row : rows == 1 || p_.a.row)) {
      tile->a = entry(p_.a, m, column);
      // A single row has no stride that must be right, and 0 stands for packed rows.
      tile->a_row = rows > 1 ? p_.a.row * element_size(p_.a.dtype) : 4;
      return;
    }
    if (p_.a.row == 1 && !wide_) {
      const Rows x{entry(p_.a, m, column), 1, p_.a.column, p_.a.dtype};
      (pairs_ ? kernels_.pairs->pack_tiles_from_columns : kernels_.pack_tiles_from_columns)(packed, x, rows, width,
                                                                                            tile_room(depth));
      return;
    }
    for (int r0 = 0; r0 < rows; r0 += tile_rows_, packed += tile_room(depth)) {
      const void* starts[kMaxTileRows];
      const int count = std::min(tile_rows_, rows - r0);
      for (int r = 0; r < count; ++r) starts[r] = entry(p_.a, m + r0 + r, column);
      (pairs_ ? kernels_.pairs->pack_queries : kernels_.pack_tile)(packed, starts, count, width, p_.a.column,
                                                                   p_.a.dtype, 1.0f);
    }
  }

  void multiply(int64_t m, int64_t chunk_row, int64_t n, int64_t columns, int64_t block, const Buffers& buffer,
                MatmulTile* tile) const {
    const int64_t strip = kernels_.strip;
    const bool last = block == blocks_ - 1;
    float* partial = needs_partial() ? buffer.partial + chunk_row * kBlockColumns : nullptr;
    for (int64_t s = 0; s < columns; s += strip) {
      const int64_t width = std::min(strip, columns - s);
      float* out = plain_ ? static_cast<float*>(p_.out.data) + m * p_.out.row + n + s : nullptr;
      tile->b = buffer.b + s * tile->depth;  // strips of a unit, `depth` words each
      tile->to = buffer.tile, tile->to_row = strip;
      tile->from = nullptr;
      if (partial) {
        if (block) tile->from = partial + s, tile->from_row = kBlockColumns;
        if (!last) tile->to = partial + s, tile->to_row = kBlockColumns;
      } else if (plain_ && width == strip) {
        if (block) tile->from = out, tile->from_row = p_.out.row;
        tile->to = out, tile->to_row = p_.out.row;
      } else if (block) {  // the last strip of `out`, which is no whole one
        tile->from = tile->to, tile->from_row = strip;
        copy_rows(buffer.tile, strip, out, p_.out.row, tile->rows, width);
      }
      (pairs_ ? kernels_.pairs->matmul_tile : kernels_.matmul_tile)(*tile);
      tile->next_a = nullptr;  // prefetched once
      if (tile->to != buffer.tile) continue;
      if (plain_) {
        copy_rows(out, p_.out.row, buffer.tile, strip, tile->rows, width);
      } else {
        finish(m, n + s, static_cast<int>(width), {.sums = buffer.tile, .row = strip, .bias = buffer.bias + s},
               tile->rows);
      }
    }
  }

  static void copy_rows(float* to, int64_t to_row, const float* from, int64_t from_row, int rows, int64_t width) {
    for (int r = 0; r < rows; ++r)
      memcpy(to + r * to_row, from + r * from_row, sizeof(float) * static_cast<size_t>(width));
  }

  struct Sums {
    const float* sums;
    int64_t row;
    const float* bias;
  };
  void finish(int64_t m, int64_t n, int width, const Sums& found, int rows) const {
    const auto place = [&](const uwaga_tensor& t) { return t.data ? const_cast<char*>(entry(t, m, n)) : nullptr; };
    MatmulEpilogue e{};
    e.sums = found.sums, e.sums_row = found.row;
    e.rows = rows, e.width = width;
    e.bias = p_.bias.data ? found.bias : nullptr;
    e.activation = p_.activation, e.dtype = p_.out.dtype;
    e.out = place(p_.out), e.residual = place(p_.residual), e.preactivation = place(p_.preactivation);
    e.out_row = p_.out.row, e.residual_row = p_.residual.row, e.preactivation_row = p_.preactivation.row;
    kernels_.finish_tile(e);
  }

  void widen_bias(int64_t n, int64_t columns, int64_t room, float* out) const {
    if (!p_.bias.data) return;
    memset(out, 0, sizeof(float) * static_cast<size_t>(room));
    for (int64_t c = 0; c < columns; ++c) {
      const void* at = entry(p_.bias, 0, n + c);
      out[c] = p_.bias.dtype == UWAGA_FLOAT32    ? *static_cast<const float*>(at)
               : p_.bias.dtype == UWAGA_BFLOAT16 ? widen(*static_cast<const bfloat16*>(at))
                                                 : widen(*static_cast<const float16*>(at));
    }
  }

  const uwaga_matmul_args& p_;
  const Kernels& kernels_;
  const bool pairs_;
  const int tile_rows_;
  const bool wide_;  // more rows than six, of whole depths
  const int64_t entries_per_word_, words_, blocks_;
  const bool in_place_, plain_, few_rows_;
};

}  // namespace

void matmul(const uwaga_matmul_args& args) {
  if (args.rows && args.columns) Matmul(args).run();
}

}  // namespace uwaga
