// The kernels: a table of functions for each instruction-set level, and the tiles and blocks that they work on.
//
// A kernel works on one tile: up to 6 rows of queries against one block of up to 64 keys, in float32 (or, where the
// processor has the instruction, on pairs of bfloat16; the level amx takes 16 rows of those). Tiles see packed operands only:
//
//   columns of a block   packed[(n / S) * (W * S) + w * S + n % S] = x[n][w]     n < 64 rows of x, w < W    (scores)
//   rows of a block      packed[(w / S) * (R * S) + n * S + w % S] = x[n][w]     n < R, w < W               (values)
//   rows of a tile       packed[w * 6 + r] = x[r][w]                             r < 6                      (queries)
//
// with S = `strip`, so that the innermost loop of every product reads one operand with unit stride and broadcasts
// the other. Entries past the block's edge are zero.
//
// The result of a row depends on that row and its keys alone: not on the other rows of its tile, nor on which blocks the mask
// let the driver skip. That ragged, padded and single calls give the same bits relies on this.
#ifndef UWAGA_KERNELS_KERNELS_H_
#define UWAGA_KERNELS_KERNELS_H_

#include <stdint.h>

namespace uwaga {

constexpr int kBlockKeys = 64;
constexpr int kTileRows = 6;
constexpr int kMaxTileRows = 16;  // of any level: tiles of pairs may have more rows, see PairKernels::rows
constexpr int kMaxLanes = 16;
constexpr int kMaxStrip = 64;

// A strided matrix as the caller stores it; strides in elements.
struct Rows {
  const void* data;
  int64_t row, column;
  int dtype;
};

// How a product q.k becomes a weight, apart from the mask.
struct ScoreRule {
  float scale;    // > 0, of products of bfloat16 pairs, whose packed queries have its sign; float queries have it all
  float softcap;  // 0: none
  bool biased;    // whether tiles have biases
  bool softmax;
  float keep;  // probability of keeping a weight; 1: no dropout
  uint32_t drop_threshold;
  bool plain() const { return softcap == 0.0f && !biased && softmax; }
};

// One block of packed keys and values.
struct Block {
  const float* keys;               // packed columns
  const float* values;             // packed rows, or float32 rows in place
  int64_t value_row, value_strip;  // strides of `values`: from row to row, and from a strip of columns to the next
  int first_key;                   // of the block in its sequence (for dropout's hash)
  int count;                       // keys in the block, <= 64
  bool value_pairs = false;        // values are packed as pairs of bfloat16
};

// A block of 64 keys and values that are read where they lie: rows of whole cache lines, of unit stride along their columns.
struct InPlaceBlock {
  Rows keys, values;
  int first_key;
  int readable_keys;  // from the first one on, of this block and the next: as far as keys may be prefetched
};

struct TileMask {
  const uint64_t* bits;  // one word per row, or null: every key of the block is visible
  int first, last;       // no row sees a key of the block outside [first, last)
  bool guard;  // masked values may be NaN or infinite: their products are left out rather than multiplied by zero
};

// The online softmax of a tile's rows (Milakov and Gimelshein, 2018): weights so far are exp(s - maximum).
struct TileState {
  float* output;   // [rows][padded width of values]
  float* maximum;  // [kMaxLanes], one per row and room for whole vectors
  float* sum;      // [rows][kMaxLanes], partial sums by lane
};

// Statistics of a tile's rows, summed while their weights p = exp(s - maximum) are computed. Those that are not computed are null.
struct TileStatistics {
  float* entropy;         // [rows][kMaxLanes] sum of p log2 p, by lane
  float* squares;         // [rows][kMaxLanes] sum of p^2
  float* distance;        // [rows][kMaxLanes] sum of p |j - position|
  const float* position;  // [rows]
  // The largest scores of each row so far, decreasing, of equal ones the first; -inf where there are fewer. Row r begins at
  // r * top_row(top) + kTopFirst, is padded to whole vectors, and has +inf before its first entry; the first kMaxLanes floats
  // are the last entry of each row's list. `top_keys` has the key of each at the same index, an int32 in the bits of a float.
  float *top_scores, *top_keys;
  int top;
};
constexpr int64_t kTopFirst = 2 * kMaxLanes;
constexpr int64_t top_row(int64_t top) { return (top + kMaxLanes - 1) / kMaxLanes * kMaxLanes + kTopFirst; }

struct ForwardTile {
  const float* query;        // packed rows of a tile
  float* scores;             // [rows][64] scratch, of all rows that a tile may have
  const float* bias;         // [rows][64], or null
  const uint32_t* row_keys;  // dropout's hash of each row
  int rows, query_width, value_width;
  TileMask mask;
  TileState state;
  const TileStatistics* statistics;  // or null
};

// Weights from a known softmax: exp(s - maximum) * factor, and `hidden` where masked.
struct WeightsTile {
  const float* query;    // packed rows of a tile
  const float* bias;     // [rows][64], or null
  const float* maximum;  // [rows]
  const float* factor;   // [rows]
  float hidden;
  float* weights;  // [rows][64] out, in the whole vectors around [mask.first, mask.last)
  int rows, query_width;
  TileMask mask;
};

// The softmax of a row over some of its keys, in natural units: weights are exp(s - maximum), and `sum` is their sum.
struct RowResult {
  float maximum, sum;
};

// One tile of the backward pass: P from lse, then dS. Both are left in [row][64] scratch for the products. Output
// gradients and values are float32, whatever the scores are made of, except in PairGradientKernels.
struct BackwardTile {
  const float* query;        // packed rows of a tile
  const float* grad_output;  // packed rows of a tile
  const float* bias;         // [rows][64], or null
  const float* lse;          // [rows]
  const float* delta;        // [rows] sum_e dO_e O_e - dlse
  const uint32_t* row_keys;
  float* weights;      // [rows][64] out: the weights, after dropout; room for all rows that a tile may have
  float* grad_scores;  // [rows][64] out: d loss / d (q.k); likewise
  float* grad_bias;    // [rows][64] out: d loss / d bias, or null
  int rows, query_width, value_width;
  TileMask mask;
};

struct DepthRange {
  int first, last;
};

// out[r][0:width] += sum over n in [first, last) of a[n * a_depth + r * a_row] * packed rows[n][0:width]
struct Product {
  const float* a;
  const float* b;  // packed rows, `b_depth` of them
  float* out;
  int64_t out_row;
  int rows, first, last, b_depth, width;
  const DepthRange* by_tile;  // [first, last) for each six rows of `out`, outside which their `a` is zero; or null
};

// Weights of a tile (P or dS) as words of two bfloat16, split: x = high + low to 2^-17 of x, where high is x rounded and low what is
// left over, rounded; low is zero where high is not finite.
struct SplitTile {
  const float* weights;  // [rows][64]
  int rows;              // of the tile's sixteen; the others become zeros
  float* by_row;         // [2][16][32] out, high and low: words of two keys of a row; or null
  float* by_column;      // [8][64] out, high: words of two rows of a key; or null
  int64_t low;           // floats from `by_column` to the same of the low parts
};

// out[16][width] += a b, for the sixteen rows of a tile and a block of keys.
struct RowsGradient {
  const float* a;  // SplitTile::by_row
  const float* b;  // keys, packed values of pairs
  float* out;
  int64_t out_row;
  int first, last;  // keys outside have weights of zero
  int rows, width;  // columns of `out` are rounded up to whole vectors
  // Or null. Where a row's bit is not set, its entry of b counts as zero: it may be NaN or infinite.
  const uint64_t* seen;
};

// Of the rows of one row block, 32 at a time: out[width][64] += sum over the rows of a[row][w] weights[row][n], the transposed
// gradient of a block of keys.
struct ColumnsGradient {
  static constexpr int kRows = 32;  // one tile of words
  const float* a;                   // PairGradientKernels::pack_transposed, for each 32 rows
  int64_t a_next;                   // from 32 rows to the next
  const float *high, *low;          // [16][64] for each 32 rows: SplitTile::by_column of two tiles
  float* out;
  const DepthRange* keys;  // of each 32 rows: outside it their weights are zero
  int groups;              // of 32 rows
  int width;               // rows of `out` are rounded up to whole vectors
  int count;               // keys
  const uint64_t* seen;    // of each row, or null, as above: their entries of a
};

// The rows of one tile of a product of matrices over part of its depth: to = from + a b, `strip` columns wide. Depth counts words: floats, or
// pairs of bfloat16.
struct MatmulTile {
  const void* a;
  int64_t a_row;   // bytes from row to row of words in the caller's memory; 0: packed rows of a tile
  const float* b;  // packed columns, one strip
  int64_t depth;
  int rows;
  const void* next_a;  // the rows of the following tile, a_row apart, to be prefetched; or null
  const float* from;   // or null: zero
  float* to;
  int64_t from_row, to_row;
};

// The same for few rows, where packing b would take longer than the product: b is read in place, and `width` columns of `to` get the
// sums. b.row: entries from column to column of the product; b.column: along the depth.
struct FewRows {
  const void* a;  // rows of words, `a_row` bytes apart; of wide tiles, what pack_few_rows made
  int64_t a_row;
  Rows b;
  int64_t entries;  // of the depth
  int rows, width;
  float* to;    // padded to whole strips
  float* sums;  // scratch for a row of `to`
  int64_t to_row;
  bool add;  // to the numbers in `to`
};

// What is done to the sums of a tile: out = residual + activation(sums + bias). Columns of the caller's matrices are adjacent.
struct MatmulEpilogue {
  const float* sums;  // padded to whole strips
  int64_t sums_row;
  int rows, width;
  const float* bias;  // padded to whole strips, or null
  int activation;     // UWAGA_GELU, ...
  int dtype;          // of the three matrices
  void* out;
  const void* residual;  // or null
  void* preactivation;   // out: sums + bias, or null
  int64_t out_row, residual_row, preactivation_row;
};

// Dropout of one row: whether column w is kept is a hash of (row_key, w). Factor 1: none.
struct RowDropout {
  uint32_t row_key, threshold;
  float factor;  // 1 / (1 - p)
};

// s = x + more + dropout(added), and its norm; columns are adjacent, and parameters are padded to whole vectors.
struct NormRow {
  const void *x, *more, *added;  // null: zero; `more` needs an x
  void* sum;                     // s, or null
  void* output;                  // the norm, or null
  const float *weight, *bias;    // null: ones, zeros
  float* floats;                 // [padded width] scratch
  int dtype;
  bool rms;
  int64_t width;
  float epsilon;
  RowDropout dropout;
};

struct NormGradientRow {
  const void *grad, *grad_sum;     // of the norm, and of the sum or null
  const void* x;                   // the sum
  const float* weight;             // or null
  void *grad_x, *grad_added;       // out, or null
  float *grad_weight, *grad_bias;  // added to, or null
  int dtype;
  bool rms;
  int64_t width;
  float epsilon;
  RowDropout dropout;
};

// out = x with the first 2 * pairs numbers of each head rotated: (a cos - b sin, b cos + a sin) of numbers `pairs` apart. Adjacent.
struct RotateRow {
  const void* x;
  void* out;
  const float *cos, *sin;  // [pairs]
  int64_t heads, width, pairs;
  int dtype;
};

// Rows of bfloat16 times a state that split_state made, times `factor`. Each row is adjacent, lies at a multiple of four bytes, and
// has an even width.
struct RowsTimesState {
  const void* const* rows;
  void* const* out;
  int64_t out_column;
  int out_dtype;
  float factor;
  const float *high, *low;
  int count, depth, width;
};

// The backward pass where queries, keys, values and output gradients are all bfloat16: its five products on pairs.
struct PairGradientKernels {
  // As PairKernels::backward_tile, of output gradients packed as queries and values packed as keys.
  void (*backward_tile)(const BackwardTile&, const Block&, const ScoreRule&);
  // Up to 32 rows by pointer: packed[w * 16 + r / 2], words of two rows; zeros where there are fewer, w up to whole vectors.
  void (*pack_transposed)(float* out, const void* const* rows, int count, int width, int64_t column);
  void (*split_weights)(const SplitTile&);
  void (*add_rows_gradient)(const RowsGradient&);
  void (*add_columns_gradient)(const ColumnsGradient&);
  // out[n * padded width + w] = sums[w * 64 + n]
  void (*transpose_gradient)(float* out, const float* sums, int width);
};

// The kernels on operands packed as pairs of bfloat16, each as that of Kernels with its name (pack_queries: pack_tile, pack_keys:
// pack_columns, pack_values: pack_rows). Null where they are a level's below, see Kernels::six_row_pairs.
struct PairKernels {
  // Rows of a tile. Where there are more than six, the packing functions lay operands out as the level's products read them and fill
  // depths up to multiples of 16 words; blocks are not read in place, a product of matrices has both operands packed (the left one
  // also in place, whole tiles of it), and every task of a driver is between begin_tiles and end_tiles.
  int rows;
  void (*pack_queries)(float* out, const void* const* rows, int count, int width, int64_t column, int dtype,
                       float factor);
  void (*pack_keys)(float* out, const Rows& x, int count, int width);
  void (*pack_values)(float* out, const Rows& x, int count, int depth, int width);
  // Of outputs: floats, packed[w * rows + r].
  void (*pack_gradients)(float* out, const void* const* rows, int count, int width, int64_t column, int dtype,
                         float factor);
  bool (*all_finite)(const float* packed, int64_t count);  // count in words
  void (*begin_tiles)();                                   // both null where tiles need no state of the processor
  void (*end_tiles)();
  void (*forward_tile)(const ForwardTile&, const Block&, const ScoreRule&);
  // The same in two: the products of queries and keys, left in the tile's scores, and all else. A driver starts the next tile before
  // it finishes one, since products and softmax use different units of the processor. Both null: forward_tile is one.
  void (*start_tile)(const ForwardTile&, const Block&, const ScoreRule&);
  void (*finish_tile)(const ForwardTile&, const Block&, const ScoreRule&);
  void (*forward_tile_in_place)(const ForwardTile&, const InPlaceBlock&, const ScoreRule&);
  void (*weights_tile)(const WeightsTile&, const Block&, const ScoreRule&);
  void (*backward_tile)(const BackwardTile&, const Block&, const ScoreRule&);
  const PairGradientKernels* gradients;  // null: the gradients' products are float32

  // The state stays float32; for the second product it is split into two bfloat16 parts, whose sum has an error of at most 2^-18 of
  // each entry.
  void (*split_state)(const float* state, float* high, float* low, int rows_width, int width);
  void (*add_outer_product)(float* state, const float* a, const float* b, int count, int depth, int rows_width,
                            int width);
  void (*add_tile_product)(float* out, int64_t out_row, const float* tile, const float* high, const float* low,
                           int rows, int depth, int width);
  // The same product alone, of rows where they lie, written to where it goes.
  void (*write_rows_times_state)(const RowsTimesState&);

  void (*matmul_tile)(const MatmulTile&);
  // Up to `rows` rows, packed[w * rows + r]. Null where `rows` is six.
  void (*pack_few_rows)(float* out, const void* const* rows, int count, int width, int64_t column, int dtype,
                        float factor);
  void (*few_rows)(const FewRows&);
  void (*pack_tiles_from_columns)(float* out, const Rows& x, int count, int width, int64_t tile_room);
};

// One per level, filled by name in level-inl.h.
struct Kernels {
  const char* name;
  int strip;
  // Where not null, bfloat16 operands stay bfloat16 when packed, two along the depth of a product per 32-bit word.
  const PairKernels* pairs;
  const PairKernels* six_row_pairs;  // of tiles of kTileRows rows: `pairs`, or those of a level below

  void (*pack_columns)(float* out, const Rows& x, int count, int width);
  void (*pack_rows)(float* out, const Rows& x, int count, int depth, int width);
  // Rows of a tile by pointer, times `factor`.
  void (*pack_tile)(float* out, const void* const* rows, int count, int width, int64_t column, int dtype, float factor);
  bool (*all_finite)(const float* packed, int64_t count);

  void (*forward_tile)(const ForwardTile&, const Block&, const ScoreRule&);
  // The same bits, of a block of which nothing is masked.
  void (*forward_tile_in_place)(const ForwardTile&, const InPlaceBlock&, const ScoreRule&);
  // Folds the lane sums of `rows` rows and merges them into the totals: total = exp(..) total + exp(..) part.
  void (*merge_rows)(float* total, RowResult* total_rows, const float* part, const RowResult* part_rows, int rows,
                     int width);
  float (*lane_sum)(const float* sum);
  void (*lane_sums)(const float* sums, float* out, int rows);  // of rows kMaxLanes apart
  // out[0:width] = row[0:width] * factor, in the caller's type.
  void (*write_row)(void* out, int64_t column, int dtype, const float* row, float factor, int width);
  // The same for `count` rows, `row_width` apart, each with its place and its factor.
  void (*write_rows)(void* const* out, int64_t column, int dtype, const float* rows, int64_t row_width,
                     const float* factors, int count, int width);
  float (*dot_rows)(const void* a, int64_t a_column, int a_dtype, const void* b, int64_t b_column, int b_dtype,
                    int width);

  void (*backward_tile)(const BackwardTile&, const Block&, const ScoreRule&);
  void (*product_rows)(const Product&);     // a[r][n]: a_row = 64, a_depth = 1
  void (*product_columns)(const Product&);  // a[n][r]: a_row = 1, a_depth = 64
  void (*add_to)(float* total, const float* part, int64_t count);
  // out[0:width] += a * row 0 of packed rows: for products without masked entries, which may be NaN.
  void (*add_scaled_row)(float* out, float a, const float* b, int b_depth, int width);

  // state[0:rows_width][0:width] += sum over n < count of a[n]^T b[n], a and b being packed rows of room for `depth`;
  // the state is itself packed rows, of room for `rows_width` rounded up to whole strips.
  void (*add_outer_product)(float* state, const float* a, const float* b, int count, int depth, int rows_width,
                            int width);
  // out[r][0:width] += a tile of `rows` packed rows, `depth` wide, times such a state.
  void (*add_tile_product)(float* out, int64_t out_row, const float* tile, const float* state, int rows, int depth,
                           int width);
  void (*weights_tile)(const WeightsTile&, const Block&, const ScoreRule&);
  // Over rows [first_row, last_row) of weights[rows][64], in the whole vectors around columns [first, last):
  // sums[64] += weights; best[64] = the largest so far, and at[64] = its row's number (an int32 in the bits of a float), where
  // the first row has `number`. A best that is NaN stays.
  void (*add_rows)(float* sums, const float* weights, int first_row, int last_row, int first, int last);
  void (*keep_largest)(float* best, float* at, const float* weights, int first_row, int last_row, int number, int first,
                       int last);
  // sums[rows][kMaxLanes] += the weights whose bit is set, by lane.
  void (*add_seen)(float* sums, const float* weights, const uint64_t* bits, int rows, int first, int last);

  void (*matmul_tile)(const MatmulTile&);
  // b.column = 1: any number of columns, and b.row = 1.
  void (*few_rows)(const FewRows&);
  // Packed rows of tiles, `tile_room` floats apart, from a matrix whose rows are adjacent in memory, x.row = 1.
  void (*pack_tiles_from_columns)(float* out, const Rows& x, int count, int width, int64_t tile_room);
  void (*finish_tile)(const MatmulEpilogue&);
  // out[n] = grad[n] f'(x[n]) for the activation f that `kind` names (UWAGA_GELU, UWAGA_GELU_TANH).
  void (*activation_gradient)(void* out, const void* x, const void* grad, int dtype, int kind, int64_t count);

  void (*norm_row)(const NormRow&);
  void (*norm_gradient_row)(const NormGradientRow&);
  void (*rotate_row)(const RotateRow&);

  double (*peak_flops)(int64_t iterations);  // runs `iterations` rounds of independent FMAs, returns flops done
};

// Memory, in floats, of a tile's packed rows and of a block's packed keys; where tiles have 16 rows, pairs of both fill whole
// tiles of 16 words.
constexpr int64_t packed_tile(int64_t width, int rows) {
  return rows * (rows > kTileRows && width < 16 ? 16 : width) + kMaxLanes;
}
constexpr int64_t packed_keys(int64_t width) { return int64_t{kBlockKeys} * (width + 1 < 16 ? 16 : width + 1); }

// The state of the processor that tiles need, for as long as this lives; on one thread.
class TileRegisters {
 public:
  explicit TileRegisters(const Kernels& kernels) : pairs_(kernels.pairs) {
    if (pairs_ && pairs_->begin_tiles) pairs_->begin_tiles();
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() {
    if (pairs_ && pairs_->end_tiles) pairs_->end_tiles();
  }

 private:
  const PairKernels* pairs_;
};

// Levels of this build by index, lowest first; null past the end. Supported: this processor has the instructions.
const Kernels* level_at(int index);
bool level_supported(int index);
const Kernels* active_level();
const Kernels* set_level(const char* name);  // null: the fastest one. Returns null where it is not supported

}  // namespace uwaga
#endif  // UWAGA_KERNELS_KERNELS_H_
