// Linear attention, without softmax, by associativity in O(N D E): z_i = q_i S_i with the state S_i = sum of k_j v_j^T over the
// keys that query i sees. Under a causal mask S runs along the sequence (Katharopoulos et al., "Transformers are RNNs",
// 2020).
//
// Queries are computed in blocks of 64. Without a causal mask all keys contribute through the state. With one, the keys that all
// queries of a block see do, up to a multiple of 64, and the one or two blocks of keys at the diagonal through their scores. States are stored at every 4,096 keys: first each
// segment's own sum (in parallel), then prefix sums of these (in order); from there on the state is updated block by block.
// So a state depends on its position alone, and neither threads nor batch change a bit.
//
// Where the level multiplies pairs of bfloat16, operands of that type stay so. States are float32 all the same: the product with
// the queries takes them as the sum of two bfloat16 parts, and the weights of the diagonal blocks are not rounded.
#include "drivers/drivers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "base/scratch.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {
namespace {

constexpr int64_t kSegmentKeys = 4096;
constexpr int64_t kBlockQueries = 64;

// A query sees the keys below a limit, which is the same for all queries or increases by one per query.
struct KeyLimit {
  bool causal = false;
  uwaga_start start{};
  int64_t high = 0;
  const int64_t* lengths = nullptr;

  static bool parse(const uwaga_problem& p, KeyLimit* limit) {
    int bands = 0, lengths = 0, conjunctions = 0;
    for (int64_t n = 0; n < p.mask_operations; ++n) {
      const uwaga_mask_operation& op = p.mask[n];
      if (op.operation == UWAGA_MASK_BAND && op.low <= -UWAGA_UNBOUNDED && op.high < UWAGA_UNBOUNDED) {
        ++bands;
        limit->causal = true;
        limit->start = op.start;
        limit->high = op.high;
      } else if (op.operation == UWAGA_MASK_LENGTHS) {
        ++lengths;
        limit->lengths = op.ids.data;
      } else if (op.operation == UWAGA_MASK_AND) {
        ++conjunctions;
      } else {
        return false;
      }
    }
    return bands <= 1 && lengths <= 1 && conjunctions == std::max(0, bands + lengths - 1);
  }

  int64_t keys(const Sequence& s) const {
    return lengths ? std::min(s.keys, std::max<int64_t>(0, lengths[s.index])) : s.keys;
  }
  // Query i sees keys [0, visible_keys(i)).
  int64_t visible_keys(const Sequence& s, int64_t i) const {
    const int64_t all = keys(s);
    if (!causal) return all;
    return std::min(all, std::max<int64_t>(0, i + start_of(start, s) + high + 1));
  }
};

struct Workspace {
  float *keys, *key_rows, *values, *scores, *state, *query, *output, *maximum, *sum;

  static int64_t lay_out(const uwaga_problem& p, float* base, Workspace* w) {
    ScratchLayout layout(base);
    w->keys = layout.take(kBlockKeys * p.query_width);
    w->key_rows = layout.take(kBlockKeys * rounded_up(p.query_width, kMaxStrip));
    w->values = layout.take(kBlockKeys * rounded_up(p.value_width, kMaxStrip));
    w->scores = layout.take(kTileRows * kBlockKeys);
    w->state = layout.take(rounded_up(p.query_width, kMaxStrip) * rounded_up(p.value_width, kMaxStrip));
    w->query = layout.take(p.query_width * kTileRows + kMaxLanes);
    w->output = layout.take(kTileRows * padded_width(p.value_width));
    w->maximum = layout.take(kMaxLanes);
    w->sum = layout.take(kTileRows * kMaxLanes);
    return layout.used();
  }
};

class Linear {
 public:
  Linear(const uwaga_problem& p, const uwaga_forward_result& result)
      : p_(p),
        result_(result),
        mask_(p),
        kernels_(*active_level()),
        scoring_(scoring_of(p, kernels_, kernels_.six_row_pairs)) {
    pairs_ = scoring_.pairs && p.value.dtype == UWAGA_BFLOAT16;
    if (!pairs_) scoring_ = float_scoring_of(p, kernels_);
    // Pairs are not scaled when they are packed, but the output is when it is written.
    if (pairs_) output_scale_ = scoring_.rule.scale, scoring_.rule.scale = 1.0f;
    KeyLimit::parse(p, &limit_);
    state_size_ = rounded_up(p.query_width, kMaxStrip) * rounded_up(p.value_width, kMaxStrip);
  }

  void run() {
    // The key segments of all sequences and key heads in one list; `states_` has the state before each of them.
    std::vector<Segment> segments, queries;
    for (int64_t b = 0; b < p_.sequences; ++b) {
      const Sequence s = sequence_of(p_, b);
      for (int64_t g = 0; g < p_.key_heads; ++g) {
        const int64_t first = static_cast<int64_t>(segments.size());
        for (int64_t j = 0; j <= limit_.keys(s); j += kSegmentKeys) segments.push_back({b, g, j, first});
        for (int64_t i = 0; i < s.queries; i += kSegmentKeys) queries.push_back({b, g, i, first});
      }
    }
    const int64_t count = static_cast<int64_t>(segments.size());
    float* states = states_.reserve(count * state_size_);
    parallel_for(p_.threads, count, [&](int64_t n, int) {
      const Segment& at = segments[n];
      const Sequence s = sequence_of(p_, at.sequence);
      float* state = states + n * state_size_;
      std::fill(state, state + state_size_, 0.0f);
      add_keys(s, at.key_head, at.first, std::min(limit_.keys(s), at.first + kSegmentKeys), state);
    });
    parallel_for(p_.threads, p_.sequences * p_.key_heads, [&](int64_t n, int) { run_sums(segments, n, states); });
    parallel_for(p_.threads, static_cast<int64_t>(queries.size()),
                 [&](int64_t n, int) { run_queries(queries[n], states); });
  }

 private:
  struct Segment {
    int64_t sequence, key_head, first;
    int64_t first_segment;  // of its sequence and head
  };

  Workspace workspace() const {
    thread_local Scratch scratch;
    Workspace w;
    Workspace::lay_out(p_, scratch.reserve(Workspace::lay_out(p_, nullptr, &w)), &w);
    return w;
  }

  Rows rows_at(const uwaga_tensor& t, const Sequence& s, int64_t g, int64_t j) const {
    return {key_address(p_, t, s, g, j), t.row, t.column, t.dtype};
  }

  // state += k_j v_j^T over keys [first, last), first being a multiple of 64.
  void add_keys(const Sequence& s, int64_t g, int64_t first, int64_t last, float* state) const {
    const Workspace w = workspace();
    for (int64_t j = first; j < last; j += kBlockKeys) {
      const int count = static_cast<int>(std::min<int64_t>(kBlockKeys, last - j));
      const auto pack = pairs_ ? kernels_.six_row_pairs->pack_values : kernels_.pack_rows;
      pack(w.key_rows, rows_at(p_.key, s, g, j), count, kBlockKeys, width(p_.query_width));
      pack(w.values, rows_at(p_.value, s, g, j), count, kBlockKeys, width(p_.value_width));
      const auto add = pairs_ ? kernels_.six_row_pairs->add_outer_product : kernels_.add_outer_product;
      add(state, w.key_rows, w.values, count, kBlockKeys, width(p_.query_width), width(p_.value_width));
    }
  }

  // Replaces each segment's own sum by the sum of all segments before it (an exclusive prefix sum).
  void run_sums(const std::vector<Segment>& segments, int64_t unit, float* states) const {
    const auto mine = [&](const Segment& at) { return at.sequence * p_.key_heads + at.key_head == unit; };
    std::vector<float> sum(state_size_, 0.0f), own(state_size_);
    auto at = std::find_if(segments.begin(), segments.end(), mine);
    for (; at != segments.end() && mine(*at); ++at) {
      float* state = states + (at - segments.begin()) * state_size_;
      std::copy(state, state + state_size_, own.begin());
      std::copy(sum.begin(), sum.end(), state);
      kernels_.add_to(sum.data(), own.data(), state_size_);
      const bool is_last = at + 1 == segments.end() || !mine(at[1]);
      if (is_last && !limit_.causal) {
        // All queries use one state, the one after the last key.
        const Sequence s = sequence_of(p_, at->sequence);
        add_keys(s, at->key_head, at->first, limit_.keys(s), state);
      }
    }
  }

  // The state before key block `block` (of 64): the stored one before its segment, updated block by block.
  void load_state(const Segment& at, const Sequence& s, int64_t block, const float* states, float* state,
                  int64_t* loaded) const {
    const int64_t per_segment = kSegmentKeys / kBlockKeys;
    if (*loaded < 0 || *loaded / per_segment != block / per_segment) {
      const float* kept = states + (at.first_segment + block / per_segment) * state_size_;
      std::copy(kept, kept + state_size_, state);
      *loaded = limit_.causal ? block / per_segment * per_segment : block;
    }
    if (*loaded < block) add_keys(s, at.key_head, *loaded * kBlockKeys, block * kBlockKeys, state);
    *loaded = block;
  }

  void run_queries(const Segment& at, const float* states) const {
    const Sequence s = sequence_of(p_, at.sequence);
    // The state, and where it is split its two parts.
    std::vector<float> state(pairs_ ? 2 * state_size_ : state_size_);
    int64_t loaded = -1, split = -1;
    const int64_t last = std::min(s.queries, at.first + kSegmentKeys);
    for (int64_t i = at.first; i < last; i += kBlockQueries) {
      const int64_t end = std::min(last, i + kBlockQueries);
      // How many whole blocks of keys all these queries see.
      int64_t whole_blocks = limit_.visible_keys(s, i) / kBlockKeys;
      load_state(at, s, whole_blocks, states, state.data(), &loaded);
      if (pairs_ && split != whole_blocks) {
        float* parts = state.data() + state_size_;
        kernels_.six_row_pairs->split_state(state.data(), parts, parts + state_size_ / 2, width(p_.query_width),
                                            width(p_.value_width));
        split = whole_blocks;
      }
      const int64_t through_state = limit_.causal ? whole_blocks * kBlockKeys : limit_.keys(s);
      run_block(at, s, i, end, through_state, limit_.visible_keys(s, end - 1), state.data());
    }
  }

  // Whether each query is a row of adjacent words.
  bool reads_queries_in_place(const Sequence& s) const {
    const uwaga_tensor& q = p_.query;
    const auto first = reinterpret_cast<uintptr_t>(query_address(p_, q, s, 0, 0));
    return q.column == 1 && p_.query_width % 2 == 0 && first % 4 == 0 && q.row % 2 == 0 && q.head % 2 == 0;
  }

  // The outputs of a tile whose queries see no key but through the state.
  void write_past(const TileRows& rows, const Sequence& s, const float* parts) const {
    const void* queries[kTileRows];
    void* outputs[kTileRows];
    for (int r = 0; r < rows.count; ++r) {
      queries[r] = query_address(p_, p_.query, s, rows.rows[r].head, rows.rows[r].query);
      outputs[r] = query_address(p_, result_.output, s, rows.rows[r].head, rows.rows[r].query);
    }
    kernels_.six_row_pairs->write_rows_times_state(
        {queries, outputs, result_.output.column, result_.output.dtype, output_scale_ * scoring_.query_factor, parts,
         parts + state_size_ / 2, rows.count, width(p_.query_width), width(p_.value_width)});
  }

  // Queries [i0, i1): keys before j0 through the state, keys [j0, j1) through their scores.
  void run_block(const Segment& at, const Sequence& s, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
                 const float* state) const {
    const int64_t group = p_.query_heads / p_.key_heads;
    const int64_t tiles = ((i1 - i0) * group + kTileRows - 1) / kTileRows;
    if (j0 > 0 && j0 >= j1 && pairs_ && reads_queries_in_place(s)) {
      for (int64_t t = 0; t < tiles; ++t) write_past(tile_at(at, s, i0, i1, t), s, state + state_size_);
      return;
    }
    const int64_t query_tile = rounded_up(p_.query_width * kTileRows + kMaxLanes, 16);
    const int64_t output_tile = kTileRows * padded_width(p_.value_width);
    thread_local Scratch scratch;
    float* queries = scratch.reserve(tiles * (query_tile + output_tile));
    float* outputs = queries + tiles * query_tile;
    std::fill(outputs, outputs + tiles * output_tile, 0.0f);
    for (int64_t t = 0; t < tiles; ++t) {
      const TileRows rows = tile_at(at, s, i0, i1, t);
      const void* addresses[kTileRows];
      for (int r = 0; r < rows.count; ++r) {
        addresses[r] = query_address(p_, p_.query, s, rows.rows[r].head, rows.rows[r].query);
      }
      scoring_.pack_queries(queries + t * query_tile, addresses, rows.count, width(p_.query_width), p_.query.column,
                            p_.query.dtype, scoring_.query_factor);
      if (j0 > 0 && pairs_) {
        const float* parts = state + state_size_;
        kernels_.six_row_pairs->add_tile_product(outputs + t * output_tile, padded_width(p_.value_width),
                                                 queries + t * query_tile, parts, parts + state_size_ / 2, rows.count,
                                                 width(p_.query_width), width(p_.value_width));
      } else if (j0 > 0) {
        kernels_.add_tile_product(outputs + t * output_tile, padded_width(p_.value_width), queries + t * query_tile,
                                  state, rows.count, width(p_.query_width), width(p_.value_width));
      }
    }
    for (int64_t j = j0; j < j1; j += kBlockKeys) {
      add_scores(at, s, i0, i1, j, static_cast<int>(std::min<int64_t>(kBlockKeys, s.keys - j)), queries, outputs);
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const TileRows rows = tile_at(at, s, i0, i1, t);
      for (int r = 0; r < rows.count; ++r) {
        kernels_.write_row(query_address(p_, result_.output, s, rows.rows[r].head, rows.rows[r].query),
                           result_.output.column, result_.output.dtype,
                           outputs + t * output_tile + r * padded_width(p_.value_width), output_scale_,
                           width(p_.value_width));
      }
    }
  }

  void add_scores(const Segment& at, const Sequence& s, int64_t i0, int64_t i1, int64_t j, int count,
                  const float* queries, float* outputs) const {
    const int64_t tiles = ((i1 - i0) * (p_.query_heads / p_.key_heads) + kTileRows - 1) / kTileRows;
    const int64_t query_tile = rounded_up(p_.query_width * kTileRows + kMaxLanes, 16);
    const int64_t output_tile = kTileRows * padded_width(p_.value_width);
    const Workspace w = workspace();
    scoring_.pack_keys(w.keys, rows_at(p_.key, s, at.key_head, j), count, width(p_.query_width));
    kernels_.pack_rows(w.values, rows_at(p_.value, s, at.key_head, j), count, kBlockKeys, width(p_.value_width));
    const bool finite = packed_rows_are_finite(kernels_, w.values, count, kBlockKeys, width(p_.value_width));
    const Block block{w.keys, w.values, kernels_.strip, kBlockKeys * kernels_.strip, static_cast<int>(j), count};
    for (int64_t t = 0; t < tiles; ++t) {
      const TileRows rows = tile_at(at, s, i0, i1, t);
      TileVisibility view;
      evaluate_tile_mask(p_, mask_, s, rows, Visibility::kPartial, j, count, nullptr, &view);
      if (view.empty) continue;
      view.mask.guard = view.hides && !finite;
      const TileState state{outputs + t * output_tile, w.maximum, w.sum};
      scoring_.forward_tile({queries + t * query_tile, w.scores, nullptr, rows.row_keys, rows.count,
                             width(p_.query_width), width(p_.value_width), view.mask, state, nullptr},
                            block, scoring_.rule);
    }
  }

  TileRows tile_at(const Segment& at, const Sequence& s, int64_t i0, int64_t i1, int64_t t) const {
    const int64_t group = p_.query_heads / p_.key_heads;
    return {p_, s, at.key_head, i0 * group + t * kTileRows, i1 * group, kTileRows};
  }

  static int width(int64_t w) { return static_cast<int>(w); }

  const uwaga_problem& p_;
  const uwaga_forward_result& result_;
  const Mask mask_;
  const Kernels& kernels_;
  Scoring scoring_;
  bool pairs_ = false;
  float output_scale_ = 1.0f;
  KeyLimit limit_;
  int64_t state_size_;
  Scratch states_;
};

}  // namespace

const char* reason_to_refuse_linear(const uwaga_problem& p) {
  KeyLimit limit;
  if (p.normalize) return "the linear form needs normalize = 0: a softmax is not associative";
  if (p.rows.data) return "the linear form does not take selected rows";
  if (p.softcap != 0.0f || p.dropout > 0.0f || p.relative.data || p.bias.data) {
    return "the linear form has no softcap, dropout or bias, which act on each score";
  }
  return KeyLimit::parse(p, &limit) ? nullptr : "the linear form supports as a mask one causal band, lengths, or both";
}

void linear_forward(const uwaga_problem& problem, const uwaga_forward_result& result) { Linear(problem, result).run(); }

}  // namespace uwaga
