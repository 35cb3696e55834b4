// Weights from given normalizers, statistics of tiles of weights, and the row statistics of the forward tile.
#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

constexpr int kTop = 3;

ScoreRule softcap_rule() {
  ScoreRule rule = plain_rule();
  rule.scale = 1.0f, rule.softcap = 1.5f, rule.biased = true;
  return rule;
}

void test_weights_tile(const Kernels& k, bool pairs) {
  uint64_t seed = 30;
  for (const int count : {1, 2, 15, 17, 33, 63, 64}) {
    for (const int rows : row_counts(k, pairs)) {
      for (const bool masked : {false, true}) {
        for (ScoreRule rule : {plain_rule(), softcap_rule()}) {
          Scene scene(k, pairs, rows, count, 17, 1, ++seed);
          Random random(seed);
          for (int r = 0; masked && r < rows; ++r) scene.bits[r] &= random.word() | (r == 0 ? 1 : 0);
          scene.run(rule);  // packs
          uint64_t any = 0, every = ~uint64_t{0};
          for (int r = 0; r < rows; ++r) any |= scene.bits[r], every &= scene.bits[r];
          const TileMask mask{every == ~uint64_t{0} ? nullptr : scene.bits, __builtin_ctzll(any),
                              64 - __builtin_clzll(any), false};
          float maximum[kMaxTileRows], factor[kMaxTileRows];
          for (int r = 0; r < kMaxTileRows; ++r) maximum[r] = 0.5f * r, factor[r] = 0.3f - 0.1f * r;
          Floats weights(kMaxTileRows * kBlockKeys);
          const auto weights_tile = pairs ? k.pairs->weights_tile : k.weights_tile;
          weights_tile({scene.packed_query.data(), rule.biased ? scene.bias.data() : nullptr, maximum, factor, -1.0f,
                        weights.data(), rows, scene.d, mask},
                       {scene.packed_keys.data(), nullptr, 0, 0, 0, count}, rule);
          for (int r = 0; r < rows; ++r) {
            for (int n = mask.first; n < mask.last; ++n) {
              double bound;
              const double s = scene.score(r, n, rule, &bound), a = exp(s - maximum[r]) * factor[r];
              const double want = scene.sees(r, n) ? a : -1.0;
              const double slack = scene.sees(r, n) ? fabs(a) * (bound + 4 * kEps * (fabs(s) + 4.0)) : 0.0;
              expect_near(weights[r * kBlockKeys + n], want, slack, "weight", r * 100 + n);
            }
          }
        }
      }
    }
  }
}

void test_gathering(const Kernels& k) {
  Random random(31);
  for (int trial = 0; trial < 200; ++trial) {
    Floats weights(kTileRows * kBlockKeys), sums(kBlockKeys), best(kBlockKeys), at(kBlockKeys),
        seen(kTileRows * kMaxLanes);
    // Few different numbers, so that there are ties.
    for (int n = 0; n < kTileRows * kBlockKeys; ++n) weights[n] = static_cast<float>(random.between(-1, 6)) / 4;
    uint64_t bits[kTileRows];
    const int r0 = static_cast<int>(random.below(kTileRows)), r1 = static_cast<int>(random.between(r0 + 1, kTileRows));
    const int first = static_cast<int>(random.below(64)), last = static_cast<int>(random.between(first + 1, 64));
    // Lanes of whole vectors outside the columns are not masked by themselves.
    for (uint64_t& word : bits) word = random.word() & (~uint64_t{0} >> (64 - last)) & (~uint64_t{0} << first);
    const int nan = trial % 3 ? -1 : static_cast<int>(random.between(first, last - 1));
    sums.fill(2.0f), best.fill(0.25f), seen.fill(0.5f);
    if (nan >= 0) best[nan] = kNan;
    const double before = k.lane_sum(seen.data());
    k.add_rows(sums.data(), weights.data(), r0, r1, first, last);
    k.keep_largest(best.data(), at.data(), weights.data(), r0, r1, 1000, first, last);
    k.add_seen(seen.data(), weights.data(), bits, kTileRows, first, last);
    for (int n = first; n < last; ++n) {
      double sum = 2.0, most = 0.25;
      int where = -1;
      for (int r = r0; r < r1; ++r) {
        const double w = weights[r * kBlockKeys + n];
        sum += w;
        if (w > most) most = w, where = 1000 + r - r0;
      }
      expect(sums[n] == sum, "the sum of column %d is %g, not %g", n, sums[n], sum);
      if (n == nan) {
        expect(isnan(best[n]), "a NaN gave way");
        continue;
      }
      int number;
      memcpy(&number, &at[n], sizeof number);
      expect(best[n] == most && (where < 0 || number == where), "the largest of column %d is %g of row %d", n, best[n],
             number);
    }
    for (int r = 0; r < kTileRows; ++r) {
      double sum = before;
      for (int n = first; n < last; ++n) {
        if (bits[r] >> n & 1) sum += weights[r * kBlockKeys + n];
      }
      expect(k.lane_sum(seen.data() + r * kMaxLanes) == sum, "the sum of row %d is wrong", r);
    }
  }
}

// Empty lists of the largest scores, one for each row.
struct TopLists {
  Floats scores{kMaxTileRows * uwaga::top_row(kTop)}, keys{kMaxTileRows * uwaga::top_row(kTop)};
  TopLists() {
    scores.fill(-kInfinity);
    for (int r = 0; r < kMaxTileRows; ++r) scores[at(r, -1)] = kInfinity;
  }
  static int64_t at(int r, int n) { return r * uwaga::top_row(kTop) + uwaga::kTopFirst + n; }
  float score(int r, int n) { return scores[at(r, n)]; }
  int key(int r, int n) {
    int number;
    memcpy(&number, &keys[at(r, n)], sizeof number);
    return number;
  }
};

// The sums beside the softmax, over several blocks with rising and falling maxima, some of them hidden from some rows.
void test_tile_statistics(const Kernels& k, bool pairs) {
  for (uint64_t seed = 50; seed < 58; ++seed) {
    const int count = seed % 2 ? 64 : 37, size = tile_size(k, pairs), rows = seed % 3 ? size : size - 2, blocks = 5;
    const ScoreRule rule = seed % 4 == 3 ? softcap_rule() : plain_rule();
    Scene scene(k, pairs, rows, count, 9, 3, seed);
    Random random(seed);
    Floats entropy(kMaxTileRows * kMaxLanes), squares(kMaxTileRows * kMaxLanes), distance(kMaxTileRows * kMaxLanes);
    Floats position(kMaxLanes);
    TopLists top;
    entropy.fill(0.0f), squares.fill(0.0f), distance.fill(0.0f);
    for (int r = 0; r < rows; ++r) position[r] = static_cast<float>(40 * r - 20);
    const uwaga::TileStatistics statistics{
        entropy.data(), squares.data(), distance.data(), position.data(), top.scores.data(), top.keys.data(), kTop};
    scene.statistics = &statistics;
    struct VisibleScore {
      double score, error;
      int key;
    };
    std::vector<std::vector<VisibleScore>> seen(rows);
    for (int block = 0; block < blocks; ++block) {
      for (int n = 0; n < count; ++n) {
        for (int w = 0; w < scene.d; ++w) scene.keys.set(n, w, random.normal() * (1 + block % 3));
      }
      for (int r = 0; r < rows; ++r) {
        scene.bits[r] = ~uint64_t{0} >> (kBlockKeys - count);
        if (r % 2) scene.bits[r] &= block == 0 ? 0 : random.word();
      }
      scene.bits[0] |= 1;
      scene.run(rule, 100 * block);
      for (int r = 0; r < rows; ++r) {
        for (int n = 0; n < count; ++n) {
          VisibleScore one{0.0, 0.0, 100 * block + n};
          one.score = scene.score(r, n, rule, &one.error);
          if (scene.sees(r, n)) seen[r].push_back(one);
        }
      }
    }
    for (int r = 0; r < rows; ++r) {
      double most = -INFINITY, error = 0.0, e = 0.0, q = 0.0, d = 0.0, size = 0.0;
      for (const VisibleScore& one : seen[r]) most = std::max(most, one.score), error = std::max(error, one.error);
      error = 2 * error + (seen[r].size() + 40) * kEps * (1.0 + fabs(most));
      for (const VisibleScore& one : seen[r]) {
        const double x = one.score - most, p = exp(x);
        e += p * x / 0.693147180559945309, q += p * p, d += p * fabs(one.key - position[r]),
            size += p * (2.0 + fabs(x));
      }
      expect_near(k.lane_sum(entropy.data() + r * kMaxLanes), e, 4 * error * size, "entropy", r);
      expect_near(k.lane_sum(squares.data() + r * kMaxLanes), q, 4 * error * size, "squares", r);
      expect_near(k.lane_sum(distance.data() + r * kMaxLanes), d, 2 * error * d, "distance", r);
      std::sort(seen[r].begin(), seen[r].end(),
                [](const VisibleScore& a, const VisibleScore& b) { return a.score > b.score; });
      for (int n = 0; n < kTop; ++n) {
        expect_near(top.score(r, n), seen[r][n].score, error, "largest", n);
        const int key = top.key(r, n);
        const auto found =
            std::find_if(seen[r].begin(), seen[r].end(), [&](const VisibleScore& one) { return one.key == key; });
        if (expect(found != seen[r].end(), "number %d of the largest is key %d, which is hidden", n, key)) {
          expect_near(found->score, seen[r][n].score, error, "score of the largest key", n);
        }
      }
    }
  }
}

// Of equal scores, the first keys are kept, in order.
void test_equal_scores(const Kernels& k) {
  Scene scene(k, false, 6, 64, 4, 1, 70);
  for (int n = 0; n < 64; ++n) {
    for (int w = 0; w < 4; ++w) scene.keys.set(n, w, n == 50 ? 1.0 : 0.0);
  }
  for (int r = 0; r < 6; ++r) {
    for (int w = 0; w < 4; ++w) scene.query.set(r, w, 1.0);
  }
  TopLists top;
  const uwaga::TileStatistics statistics{nullptr, nullptr, nullptr, nullptr, top.scores.data(), top.keys.data(), kTop};
  scene.statistics = &statistics;
  scene.run(plain_rule(), 0);
  scene.run(plain_rule(), 64);
  for (int r = 0; r < 6; ++r) {
    const int a = top.key(r, 0), b = top.key(r, 1), c = top.key(r, 2);
    expect(a == 50 && b == 114 && c == 0, "the largest are %d, %d, %d", a, b, c);
  }
}

}  // namespace

void test_weights_tiles(const Kernels& k) {
  const std::string level = std::string(k.name) + ": ";
  group(level + "weights_tile", [&] { test_weights_tile(k, false); });
  if (k.pairs) group(level + "weights_tile_pairs", [&] { test_weights_tile(k, true); });
  group(level + "add_rows, keep_largest, add_seen", [&] { test_gathering(k); });
  group(level + "forward_tile, with statistics", [&] { test_tile_statistics(k, false); });
  if (k.pairs) group(level + "forward_tile_pairs, with statistics", [&] { test_tile_statistics(k, true); });
  group(level + "forward_tile, equal scores", [&] { test_equal_scores(k); });
}

}  // namespace uwaga_tests
