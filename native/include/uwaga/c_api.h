// The C interface of the native library, all of it.
//
// Plain C, no Python and no PyTorch: the caller passes pointers, strides and sizes, and gets a status back.
// Every stride is in elements, may be zero (broadcast) but not negative, and is honoured in place.
//
// Memory safety: every pointer comes with the size of the memory behind it, and a call whose sizes, strides, offsets or
// positions reach further is refused before anything is read or written. So the caller must tell the truth about its memory
// alone: all other fields may hold any value. Arrays of int64 that addresses depend on are copied before they are checked, so
// that another thread that writes to them during a call cannot cause an access out of bounds.
//
// Letters: B sequences, H query heads, G key/value heads (H % G == 0), Q queries, K keys, D query/key width,
// E value width, all per sequence. Query i of a sequence stands at position i + start among its keys.
#ifndef UWAGA_C_API_H_
#define UWAGA_C_API_H_

#include <stdint.h>

#if defined(_WIN32)
#define UWAGA_EXPORT __declspec(dllexport)
#else
#define UWAGA_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Raised by one whenever a struct or a function below changes; the loader refuses a library whose number differs from its own.
#define UWAGA_ABI_VERSION 8

// Element types of query, key, value, outputs and dense biases.
enum { UWAGA_FLOAT32 = 0, UWAGA_BFLOAT16 = 1, UWAGA_FLOAT16 = 2 };

enum {
  UWAGA_OK = 0,
  UWAGA_BAD_ARGUMENT = 1,  // an invalid or unsupported size, dtype, position or mask program
  UWAGA_OUT_OF_MEMORY = 2,
};

// An array of `count` elements.
typedef struct {
  const int64_t* data;  // null: no array
  int64_t count;
} uwaga_integers;
typedef struct {
  float* data;
  int64_t count;
} uwaga_floats;

// One (B, H, rows, columns) operand. Ragged operands have one `batch` and token offsets in uwaga_problem.
typedef struct {
  void* data;                        // null: no operand
  int64_t bytes;                     // size of the memory from `data` on
  int64_t batch, head, row, column;  // strides, in elements
  int32_t dtype;
  int32_t reserved;
} uwaga_tensor;

// A mask is a program in postfix notation: operands BAND to DENSE, operators AND and OR. It is evaluated to {empty, partial,
// full} for blocks and to 64 bits for a query and 64 keys. Without operations every key is visible.
enum {
  UWAGA_MASK_BAND = 0,       // low <= j - (i + start) <= high
  UWAGA_MASK_LENGTHS = 1,    // j < ids[b]
  UWAGA_MASK_DOCUMENTS = 2,  // ids[j] == query_ids[i]
  UWAGA_MASK_DENSE = 3,      // bits[b, h, i, j] != 0
  UWAGA_MASK_AND = 10,
  UWAGA_MASK_OR = 11,
};
#define UWAGA_MASK_MAX_OPERATIONS 32
#define UWAGA_UNBOUNDED (INT64_C(1) << 62)  // as low (negated) or high of a band

// The position of query 0 among the keys.
enum {
  UWAGA_START_LAST = 0,     // the last query has the position of the last key: start = K - Q of the sequence
  UWAGA_START_VALUE = 1,    // start = value
  UWAGA_START_PER_ROW = 2,  // start = starts[b]
};
typedef struct {
  int32_t mode;
  int32_t reserved;
  int64_t value;
  uwaga_integers starts;  // one per sequence
} uwaga_start;

typedef struct {
  int32_t operation;
  int32_t reserved;
  uwaga_start start;         // BAND
  int64_t low, high;         // BAND
  uwaga_integers ids;        // LENGTHS: one per sequence. DOCUMENTS: per key, at b*id_batch + key_offset[b] + j
  uwaga_integers query_ids;  // DOCUMENTS: per query, likewise with query_offset; null: ids at i + K - Q
  int64_t id_batch, query_id_batch;
  const uint8_t* bits;               // DENSE
  int64_t bytes;                     // DENSE: size of the memory from `bits` on
  int64_t batch, head, row, column;  // DENSE: strides in bytes
} uwaga_mask_operation;

// Keys in pages, as a cache of many sequences stores them (Kwon et al., "PagedAttention", 2023): row j of sequence b is row j % rows of
// page table[b * row_of_table + j / rows]. The key's `batch` is the stride of pages, and key offsets only count the rows. Entries of the
// table beyond the rows of a sequence are not read. Functions that read values refuse it.
typedef struct {
  uwaga_integers table;  // data null: keys lie in rows
  int64_t row_of_table;  // from the entries of one sequence to those of the next
  int64_t rows, count;   // rows of a page, and how many pages the memory of the key has
} uwaga_pages;

// One call of attention: the operands, the mask, and how scores become weights.
typedef struct {
  int64_t sequences, query_heads, key_heads;  // B, H, G
  int64_t queries, keys;                      // Q, K of a dense batch; upper bounds of them in a ragged one
  int64_t query_width, value_width;           // D, E
  int64_t query_tokens, key_tokens;           // rows of the packed query, and of the packed key and value
  uwaga_integers query_offsets;  // (B+1,) from 0 to query_tokens, not decreasing; or null: dense, Q rows each
  uwaga_integers key_offsets;    // (B+1,) from 0 to key_tokens, or null
  uwaga_tensor query, key, value;
  const uwaga_mask_operation* mask;
  int64_t mask_operations;
  // scores: s = softcap(q.k * scale) + relative + bias, then the mask; a bias of -inf masks too
  float scale;
  float softcap;                         // 0: none
  uwaga_floats relative;                 // at h * relative_head + (j - i - start) + relative_zero, or null
  int64_t relative_head, relative_zero;  // relative_head: the number of distances per head
  uwaga_start relative_start;
  uwaga_tensor bias;   // dense float bias, broadcast by zero strides
  uwaga_floats sinks;  // (H,) logits in the denominator, or null
  int32_t normalize;   // 1: softmax. 0: a_ij = s_ij
  int32_t threads;
  float dropout;  // probability of dropping a weight; kept ones grow by 1 / (1 - dropout)
  uint32_t reserved;
  uint64_t seed;
  uwaga_integers rows;  // the selected queries, strictly increasing, or null: all. Dense problems, forward only
  // Positions of query 0 and key 0, of a part in the whole: for dropout, and for the positions of the largest weights.
  int64_t dropout_query, dropout_key;
  uwaga_pages key_pages;
} uwaga_problem;

typedef struct {
  uwaga_tensor output;  // (B, H, Q, E), dtype of query
  uwaga_tensor lse;     // (B, H, Q), float32 (column stride unused), or data null: not computed
} uwaga_forward_result;

// The softmax of each row: a_ij = exp(s_ij - maximum_i) / sum_i, sinks included. A row with neither a visible key nor a sink
// has sum 0, and weights 0.
typedef struct {
  uwaga_tensor maximum, sum;  // (B, H, Q) float32
} uwaga_softmax;

// What the weights of a row come to. All float32; data null: not computed.
typedef struct {
  uwaga_softmax softmax;
  uwaga_tensor entropy;   // (B, H, Q): -sum_j a_ij log a_ij over the keys, in nats
  uwaga_tensor squares;   // (B, H, Q): sum_j a_ij^2
  uwaga_tensor distance;  // (B, H, Q): sum_j a_ij |j - (i + distance_start)|
  uwaga_start distance_start;
  int64_t top;               // how many of the largest weights, falling; of equal ones the first key comes first
  uwaga_tensor top_weights;  // (B, H, Q, top)
  uwaga_tensor
      top_positions;  // (B, H, Q, top) int64 (its dtype is not read); weight 0 and -1 where fewer keys are seen
} uwaga_row_statistics;

// Rows of some heads of a dense problem.
typedef struct {
  uwaga_integers sequences, heads;
  uwaga_integers queries;  // rising
} uwaga_selection;

enum { UWAGA_POOL_MASS = 0, UWAGA_POOL_MAX = 1 };

// Pooled weights: cell (n, m) has queries [query_edges[b][n], query_edges[b][n + 1]) and keys [key_edges[b][m],
// key_edges[b][m + 1]).
typedef struct {
  int32_t how;
  int32_t reserved;
  uwaga_integers query_edges;  // (B, rows + 1), not decreasing
  uwaga_integers key_edges;    // (B, columns + 1), not decreasing
  int64_t rows, columns;
  uwaga_floats cells;  // (B, H, rows, columns). MASS: sum over keys, mean over queries. MAX: the largest weight
  int64_t*
      positions;  // (B, H, rows, columns, 2): MAX's query and key, -1 where no pair of the cell is visible; or null
  int64_t position_count;  // elements of `positions`
} uwaga_pool_args;

typedef struct {
  uwaga_tensor output, grad_output;               // (B, H, Q, E)
  uwaga_tensor lse;                               // (B, H, Q) float32, as the forward pass gave it
  uwaga_tensor grad_lse;                          // (B, H, Q) float32, or data null: zero
  uwaga_tensor grad_query, grad_key, grad_value;  // dtypes of query, key, value; data null: not computed
  uwaga_floats grad_relative;                     // like relative, zeroed by the caller and added to, or null
  uwaga_floats grad_sinks;                        // (H,), zeroed by the caller and added to, or null
  uwaga_tensor grad_bias;                         // (B, H, Q, K) float32, or data null: not computed
} uwaga_backward_args;

// Attention whose queries and keys come in parts, one call for each: the sums so far, which a call reads, continues and leaves to the next
// one. Their order within a row or a block of keys is the library's own and differs between instruction-set levels. Dense problems only.
//
// The sums of a row associate as in one call with all keys if the parts come in the order of the keys and each but the last has a
// multiple of UWAGA_PART_KEYS; those of a key if the parts come in the order of the queries and each but the last has a multiple of
// UWAGA_PART_QUERIES. Then the results have the bits of one call.
#define UWAGA_PART_KEYS 2048
#define UWAGA_PART_QUERIES 192
// A width, or a number of rows or keys, as it counts in the sizes of sums.
#define UWAGA_PADDED(n, step) (((n) + (step) - 1) / (step) * (step))

typedef struct {
  uwaga_floats sums;  // output, maximum and sum of each row: B * H * Q * (UWAGA_PADDED(E, 16) + 2)
  int32_t continues;  // 0: the first part, sums are not read
  int32_t reserved;
} uwaga_forward_sums;

// Data null: not computed, unless the gradient itself is.
typedef struct {
  uwaga_floats grad_query;            // B * G * UWAGA_PADDED(Q * H / G, 48) * UWAGA_PADDED(D, 16)
  uwaga_floats grad_key, grad_value;  // B * G * UWAGA_PADDED(K, 64) * UWAGA_PADDED(D, 16), and with E
  int32_t continues_queries;          // 0: the first part of the keys, grad_query is not read
  int32_t continues_keys;             // 0: the first part of the queries, grad_key and grad_value are not read
} uwaga_backward_sums;

// Activations of uwaga_matmul: x P(X <= x) for a standard normal X, its tanh form, max(x, 0), x sigmoid(x).
enum { UWAGA_IDENTITY = 0, UWAGA_GELU = 1, UWAGA_GELU_TANH = 2, UWAGA_RELU = 3, UWAGA_SILU = 4 };

// A product of matrices: out = residual + activation(a b^T + bias). Of the tensors only rows and columns are read; sums are
// float32, rounded once at the end. A row of the result has the same bits whatever the other rows and the number of threads.
typedef struct {
  int64_t rows, columns, depth;  // M, N, K
  uwaga_tensor a, b;             // (M, K) and (N, K), of one dtype
  uwaga_tensor bias;             // (1, N), or data null
  // (M, N), of one dtype, whose column stride is 1. Out: `out`, and where it has data `preactivation` = a b^T + bias.
  uwaga_tensor residual, preactivation, out;
  int32_t activation, threads;
} uwaga_matmul_args;

// All return a status; where it is not UWAGA_OK, uwaga_last_error() is the message (one per thread).
UWAGA_EXPORT int uwaga_forward(const uwaga_problem* problem, const uwaga_forward_result* result);
UWAGA_EXPORT int uwaga_backward(const uwaga_problem* problem, const uwaga_backward_args* args);
// The same of one part of the keys. result->output.data null: the sums alone, and no lse; otherwise the result over all parts so far.
UWAGA_EXPORT int uwaga_forward_part(const uwaga_problem* problem, const uwaga_forward_result* result,
                                    const uwaga_forward_sums* sums);
// The same of one part of the queries and one of the keys. Of the gradients of query, key and value those with data in `args` are written,
// over all parts so far; grad_relative is added to, and so is grad_sinks, which belongs into one call for each part of the queries.
UWAGA_EXPORT int uwaga_backward_part(const uwaga_problem* problem, const uwaga_backward_args* args,
                                     const uwaga_backward_sums* sums);
// normalize = 0 by associativity: no bias, softcap, dropout; a mask of at most one causal band and lengths.
UWAGA_EXPORT int uwaga_linear_forward(const uwaga_problem* problem, const uwaga_forward_result* result);
UWAGA_EXPORT int uwaga_matmul(const uwaga_matmul_args* args);
UWAGA_EXPORT const char* uwaga_last_error(void);

// Functions of the attention weights (softmax, without dropout), which are never stored. Values are read only by a call that
// computes the output.
//
// Statistics of the rows, and the output too where result->output has data. `selection` not null: of the selected rows only;
// other rows are not written.
UWAGA_EXPORT int uwaga_rows(const uwaga_problem* problem, const uwaga_forward_result* result,
                            const uwaga_row_statistics* statistics, const uwaga_selection* selection);
// out[s, h, i, j]: the weights of the selected rows on `keys`, which are strictly increasing; masked entries are not written.
UWAGA_EXPORT int uwaga_weights(const uwaga_problem* problem, const uwaga_softmax* softmax,
                               const uwaga_selection* selection, const uwaga_integers* keys, const uwaga_tensor* out);
// out (B, H, Q) float32: the sum of each row's weights on the keys that `other`, a second mask, lets it see too.
UWAGA_EXPORT int uwaga_mass(const uwaga_problem* problem, const uwaga_softmax* softmax,
                            const uwaga_mask_operation* other, int64_t other_operations, const uwaga_tensor* out);
// out (B, H, K) float32: sum_i w_i a_ij, with w (B, H, Q) float32, or data null: ones. Rows with w_i = 0 are skipped.
UWAGA_EXPORT int uwaga_received(const uwaga_problem* problem, const uwaga_softmax* softmax,
                                const uwaga_tensor* row_weights, const uwaga_tensor* out);
// out (B, H, Q + K - 1) float32 (its column stride is not read): entry n is the sum of all weights with j - i = n - (Q - 1), 0 without
// any. Dense problems only.
UWAGA_EXPORT int uwaga_diagonal_sums(const uwaga_problem* problem, const uwaga_softmax* softmax,
                                     const uwaga_tensor* out);
UWAGA_EXPORT int uwaga_pool(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_pool_args* args);

// The same in parts, whose results have the bits of one call.
//
// uwaga_rows of one part of the keys, as uwaga_forward_part. All calls have the same `result` and `statistics`, which are written by the
// last one; problem->dropout_key is the position of the part's first key.
typedef struct {
  uwaga_floats
      sums;  // as uwaga_forward_sums has them, E = 0 without an output, then of the statistics: B * H * Q * (3 + 2 * top)
  int32_t continues;  // 0: the first part, sums are not read
  int32_t is_last;
} uwaga_row_sums;
UWAGA_EXPORT int uwaga_rows_part(const uwaga_problem* problem, const uwaga_forward_result* result,
                                 const uwaga_row_statistics* statistics, const uwaga_row_sums* sums);
// The sums so far in float64. continues = 0: the first part, they are not read. Where out->data is null there are more parts.
typedef struct {
  double* data;
  int64_t count;
  int32_t continues, reserved;
} uwaga_weight_sums;
// uwaga_mass of one part of the keys: B * H * Q sums.
UWAGA_EXPORT int uwaga_mass_part(const uwaga_problem* problem, const uwaga_softmax* softmax,
                                 const uwaga_mask_operation* other, int64_t other_operations, const uwaga_tensor* out,
                                 const uwaga_weight_sums* sums);
// uwaga_received of one part of the queries, as uwaga_backward_part: B * H * K sums.
UWAGA_EXPORT int uwaga_received_part(const uwaga_problem* problem, const uwaga_softmax* softmax,
                                     const uwaga_tensor* row_weights, const uwaga_tensor* out,
                                     const uwaga_weight_sums* sums);
// Exact sums, which are added to and may be added up in any order: three words each, from the lowest on, whose unit is 2^-149; 2^191 and
// more stand for NaN, which the sum is where a weight is NaN, below 0, or 2^30 and more. Row blocks are of 96 queries, and blocks of 64 keys: parts begin at multiples of these.
typedef struct {
  uint64_t* data;
  int64_t count;  // words
  int64_t head;   // sums from those of one head to those of the next
} uwaga_exact_sums;
// uwaga_diagonal_sums of some queries and keys: B * H * (Q + K - 1) sums.
UWAGA_EXPORT int uwaga_diagonal_sums_part(const uwaga_problem* problem, const uwaga_softmax* softmax,
                                          const uwaga_exact_sums* sums);
// uwaga_pool with UWAGA_POOL_MASS of some queries and keys: of each cell the sum over keys and queries, B * H * rows * columns sums. The cells
// and positions of `args` are not written.
UWAGA_EXPORT int uwaga_pool_part(const uwaga_problem* problem, const uwaga_softmax* softmax,
                                 const uwaga_pool_args* args, const uwaga_exact_sums* sums);

// Below, an operand of N rows of M numbers is a uwaga_tensor whose `row` is the stride from row to row; `column` must be 1,
// and `batch` and `head` are not read.

// grad_input = grad_output * f'(input), all (N, M) of one dtype; grad_input may be the memory of one of the others.
typedef struct {
  int64_t rows, width;  // N, M
  int32_t activation;   // UWAGA_GELU or UWAGA_GELU_TANH
  int32_t threads;
  uwaga_tensor input, grad_output, grad_input;
} uwaga_activation_backward_args;
UWAGA_EXPORT int uwaga_activation_backward(const uwaga_activation_backward_args* args);

enum { UWAGA_NO_NORM = 0, UWAGA_LAYER_NORM = 1, UWAGA_RMS_NORM = 2 };

// sum = x + dropout(added) and output = norm(sum), row by row: layer norm (Ba et al. 2016) (s - mean(s)) / sqrt(var(s) + epsilon) weight
// + bias, or RMS norm (Zhang and Sennrich 2019) s / sqrt(mean(s^2) + epsilon) weight. Whether dropout keeps entry w of row n is the hash
// of attention's dropout: with row_key = splitmix(splitmix(seed) + n) in place of a query's and w in place of a key.
typedef struct {
  int64_t rows, width;        // N, M
  uwaga_tensor x, added;      // (N, M), either may have data null: zero
  uwaga_tensor weight, bias;  // (1, M), or data null: ones, zeros
  int32_t dtype;              // of all tensors
  int32_t kind;
  float epsilon;
  float dropout;  // probability in [0, 1)
  uint64_t seed;
  int32_t threads;
  int32_t reserved;
} uwaga_norm_args;

typedef struct {
  uwaga_tensor output;  // (N, M), or data null with UWAGA_NO_NORM
  uwaga_tensor sum;  // (N, M), or data null: not stored. The norm is that of the sum before it is rounded to the dtype
} uwaga_norm_result;

typedef struct {
  uwaga_tensor grad_output;             // (N, M)
  uwaga_tensor grad_sum;                // (N, M): the gradient of the sum beside that through the norm, or data null
  uwaga_tensor grad_x, grad_added;      // (N, M); data null: not computed
  uwaga_floats grad_weight, grad_bias;  // (M,), summed in an order that depends on N alone; null: not computed
} uwaga_norm_backward_args;

// output = norm(tokens + types + positions): a layer norm of the sum of one row from each table.
typedef struct {
  uwaga_tensor table;  // (table_rows, M), or data null: no such table
  int64_t table_rows;
  uwaga_integers indices;  // (N,), or null: row 0 for all
} uwaga_lookup;

typedef struct {
  int64_t rows, width;  // N, M
  uwaga_lookup tokens, types, positions;
  uwaga_tensor weight, bias;  // (1, M), or data null: ones, zeros
  uwaga_tensor output;        // (N, M); the tables, weight and bias have its dtype
  float epsilon;
  int32_t threads;
} uwaga_embed_args;

UWAGA_EXPORT int uwaga_norm_forward(const uwaga_norm_args* args, const uwaga_norm_result* result);
// `args` as in the forward pass, but x is the sum and added is not read.
UWAGA_EXPORT int uwaga_norm_backward(const uwaga_norm_args* args, const uwaga_norm_backward_args* backward);
UWAGA_EXPORT int uwaga_embed(const uwaga_embed_args* args);

// Rotary positions (Su et al. 2021): of each head's width, numbers i and i + pairs are rotated by the angle of the token's position, and
// those from 2 * pairs on are copied. Every product and sum is rounded to float32, and the result to the dtype of x.
typedef struct {
  int64_t rows, heads, width, pairs;  // N tokens, H, D, and at most D / 2
  int64_t positions;                  // token n has row n % positions of cosines and sines
  uwaga_tensor x, out;                // (N, H * D)
  uwaga_tensor cos, sin;              // (positions, pairs) float32
  int32_t threads;
  int32_t reserved;
} uwaga_rotate_args;
UWAGA_EXPORT int uwaga_rotate(const uwaga_rotate_args* args);

// The mask of block [i0, i1) x [j0, j1) of sequence b, head h: 0 empty, 1 partial, 2 full; negative: invalid arguments.
UWAGA_EXPORT int uwaga_mask_block(const uwaga_problem* problem, int64_t b, int64_t h, int64_t i0, int64_t i1,
                                  int64_t j0, int64_t j1);
// Bit n of the result: whether query i sees key j0 + n (n < 64, j0 + n < K).
UWAGA_EXPORT uint64_t uwaga_mask_bits(const uwaga_problem* problem, int64_t b, int64_t h, int64_t i, int64_t j0);

UWAGA_EXPORT int uwaga_abi_version(void);
// The layout of a struct of this file by name: its size, then the offset of each field, in bytes, then -1; null for an unknown
// name. For callers that lay the structs out themselves.
UWAGA_EXPORT const int64_t* uwaga_struct_layout(const char* name);
// Instruction-set levels, lowest first: "scalar", "avx2", ...; null past the end. `supported` asks the processor.
UWAGA_EXPORT const char* uwaga_level_name(int index);
UWAGA_EXPORT int uwaga_level_supported(int index);
UWAGA_EXPORT const char* uwaga_level(void);          // the one in use
UWAGA_EXPORT int uwaga_set_level(const char* name);  // by name, or null: the best supported

// Runs the work on the OpenMP thread pool of this GOMP_parallel; without one, each call starts threads of its own.
typedef void (*uwaga_gomp_parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
UWAGA_EXPORT void uwaga_set_gomp_parallel(uwaga_gomp_parallel function);
// Measured peak of fused multiply-adds in float32, in GFLOP/s, on `threads` threads (benchmarks only).
UWAGA_EXPORT double uwaga_measure_peak(int threads, double seconds);

#ifdef __cplusplus
}
#endif
#endif  // UWAGA_C_API_H_
