// The forward tile compared with a softmax in double precision: masks, hidden values, dropout, elementary functions.
#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

// Runs the scene's tile and compares maxima, sums and outputs with a softmax in double.
void check_forward(Scene& scene, const ScoreRule& rule, int first_key, bool guard) {
  scene.reset();
  if (!rule.softmax) scene.maximum.fill(0.0f);
  scene.run(rule, first_key, guard);
  for (int r = 0; r < scene.rows; ++r) {
    std::vector<double> s(scene.count), bound(scene.count);
    double top = -INFINITY, most = 0.0;
    for (int n = 0; n < scene.count; ++n) {
      s[n] = scene.score(r, n, rule, &bound[n]);
      if (!scene.sees(r, n)) continue;
      top = std::max(top, s[n]);
      most = std::max(most, bound[n] + 8 * kEps * (fabs(s[n]) + 1.0));
    }
    if (top == -INFINITY) top = 0.0;
    if (rule.softmax) most += 8 * kEps * fabs(top);
    double sum = 0.0;
    std::vector<double> z(scene.e), size(scene.e);
    for (int n = 0; n < scene.count; ++n) {
      if (!scene.sees(r, n)) continue;
      double a = rule.softmax ? exp(s[n] - top) : s[n];
      double error = rule.softmax ? 2 * most * a : bound[n] + 2 * kEps * fabs(a);
      sum += a;
      if (rule.keep < 1.0f &&
          keep_hash(scene.row_keys[r], static_cast<uint32_t>(first_key + n)) < rule.drop_threshold) {
        continue;
      }
      if (scene.pairs) error += fabs(a) * 0x1p-8;
      error += (scene.count + 4) * kEps * fabs(a);
      for (int w = 0; w < scene.e; ++w) {
        z[w] += a * scene.values.at(n, w);
        size[w] += error * fabs(scene.values.at(n, w));
      }
    }
    for (int w = 0; w < scene.e; ++w) {
      expect_near(scene.output[r * padded(scene.e) + w], z[w], size[w] + 1e-37, "output", r * 1000 + w);
    }
    if (!rule.softmax) continue;
    bool any = false;
    for (int n = 0; n < scene.count; ++n) any |= scene.sees(r, n);
    if (any) expect_near(scene.maximum[r], top, most, "maximum", r);
    expect_near(scene.k.lane_sum(scene.sum.data() + r * kMaxLanes), sum, (2 * most + (scene.count + 4) * kEps) * sum,
                "sum", r);
  }
}

void test_forward_tile(const Kernels& k, bool pairs) {
  uint64_t seed = 6;
  const int widths[][2] = {{1, 1}, {3, 5}, {16, 16}, {17, 33}, {32, 64}, {64, 80}, {65, 129}};
  for (const auto& width : widths) {
    for (const int count : {1, 2, 15, 16, 33, 63, 64}) {
      for (const int rows : row_counts(k, pairs)) {
        Scene scene(k, pairs, rows, count, width[0], width[1], ++seed);
        Random random(seed);
        check_forward(scene, plain_rule(), 0, false);
        ScoreRule changed = plain_rule();
        changed.softcap = 1.5f, changed.biased = true, changed.keep = 0.7f;
        changed.drop_threshold = static_cast<uint32_t>(0.3 * 4294967296.0);
        ScoreRule none = plain_rule();
        none.softmax = false;
        check_forward(scene, changed, 1000, false);
        check_forward(scene, none, 0, false);
        for (int r = 0; r < rows; ++r) scene.bits[r] &= random.word() | (r == 0 ? 1 : 0);
        check_forward(scene, plain_rule(), 0, false);
        check_forward(scene, changed, 7, false);
        check_forward(scene, none, 0, false);
        const int low = static_cast<int>(random.below(count)), high = static_cast<int>(random.between(low, count - 1));
        for (int r = 0; r < rows; ++r) scene.bits[r] = (~uint64_t{0} >> (63 - high)) & (~uint64_t{0} << low);
        check_forward(scene, plain_rule(), 0, false);
        check_forward(scene, none, 0, true);
      }
    }
  }
}

// Rows read where they lie give the bits of the packed tile, in every type, and so do biases and dropout.
void test_in_place(const Kernels& k, bool pairs) {
  uint64_t seed = 600;
  for (const int dtype : {UWAGA_FLOAT32, UWAGA_BFLOAT16, UWAGA_FLOAT16}) {
    if (pairs && dtype != UWAGA_BFLOAT16) continue;
    for (const auto& width : {std::pair{32, 32}, {64, 96}, {96, 160}, {128, 288}}) {
      for (int rows = 1; rows <= kTileRows; ++rows) {
        Scene scene(k, pairs, rows, kBlockKeys, width.first, width.second, ++seed);
        scene.run(plain_rule());  // packs the queries
        // The next block follows; its keys are prefetched, not multiplied.
        const Matrix keys(dtype, 2 * kBlockKeys, width.first, kRowMajor, scene.random);
        const Matrix values(dtype, kBlockKeys, width.second, kRowMajor, scene.random);
        (pairs ? k.six_row_pairs->pack_keys : k.pack_columns)(scene.packed_keys.data(), keys.rows(), kBlockKeys,
                                                              width.first);
        (pairs ? k.six_row_pairs->pack_values : k.pack_rows)(scene.packed_values.data(), values.rows(), kBlockKeys,
                                                             kBlockKeys, width.second);
        const Block block{scene.packed_keys.data(),
                          scene.packed_values.data(),
                          k.strip,
                          kBlockKeys * k.strip,
                          128,
                          kBlockKeys,
                          pairs};
        ScoreRule bent = plain_rule();
        bent.softcap = 1.5f, bent.biased = true, bent.keep = 0.7f, bent.drop_threshold = 1288490188u;
        for (const ScoreRule& rule : {plain_rule(), bent}) {
          const ForwardTile tile{scene.packed_query.data(),
                                 scene.scores.data(),
                                 rule.biased ? scene.bias.data() : nullptr,
                                 scene.row_keys,
                                 rows,
                                 width.first,
                                 width.second,
                                 {nullptr, 0, kBlockKeys, false},
                                 {scene.output.data(), scene.maximum.data(), scene.sum.data()},
                                 nullptr};
          scene.reset();
          (pairs ? k.pairs->forward_tile : k.forward_tile)(tile, block, rule);
          const std::vector<float> packed(scene.output.data(), scene.output.data() + rows * padded(width.second));
          const float maximum = scene.maximum[rows - 1];
          for (const int readable : {0, kBlockKeys, 2 * kBlockKeys}) {
            scene.reset();
            (pairs ? k.pairs->forward_tile_in_place : k.forward_tile_in_place)(
                tile, {keys.rows(), values.rows(), 128, readable}, rule);
            expect(memcmp(packed.data(), scene.output.data(), packed.size() * sizeof(float)) == 0,
                   "%s, %d rows, widths %d and %d: other bits than of packed rows", type_name(dtype), rows, width.first,
                   width.second);
            expect(scene.maximum[rows - 1] == maximum, "maximum %g, not %g", scene.maximum[rows - 1], maximum);
          }
        }
      }
    }
  }
}

// The guarded variant must give the same bits as the other one, and not read hidden values.
void test_guard(const Kernels& k, bool pairs) {
  Random random(77);
  for (int trial = 0; trial < 200; ++trial) {
    const int count = static_cast<int>(random.between(1, 64)), e = static_cast<int>(random.between(1, 70));
    Scene scene(k, pairs, static_cast<int>(random.between(1, tile_size(k, pairs))), count, 8, e, random.word());
    uint64_t any = 0;
    for (int r = 0; r < scene.rows; ++r) scene.bits[r] &= random.word(), any |= scene.bits[r];
    if (!any) scene.bits[0] = any = 1;
    scene.reset();
    scene.run(plain_rule(), 0, false);
    std::vector<float> before(scene.output.data(), scene.output.data() + scene.rows * padded(e));
    scene.reset();
    scene.run(plain_rule(), 0, true);
    const auto same = [&](int r, int w) {
      return memcmp(&before[r * padded(e) + w], &scene.output[r * padded(e) + w], sizeof(float)) == 0;
    };
    for (int r = 0; r < scene.rows; ++r) {
      for (int w = 0; w < e; ++w) {
        expect(same(r, w), "[%d][%d] is %.9g guarded, %.9g not", r, w, scene.output[r * padded(e) + w],
               before[r * padded(e) + w]);
      }
    }
    const int poisoned = static_cast<int>(random.below(count));
    for (int w = 0; w < e; ++w) scene.values.set(poisoned, w, w % 2 ? kNan : kInfinity);
    scene.reset();
    scene.run(plain_rule(), 0, true);
    for (int r = 0; r < scene.rows; ++r) {
      for (int w = 0; w < e; ++w) {
        if (scene.sees(r, poisoned)) {
          expect(!std::isfinite(scene.output[r * padded(e) + w]), "a visible NaN vanished in row %d", r);
        } else {
          expect(same(r, w), "a hidden NaN leaked into row %d", r);
        }
      }
    }
  }
}

// The result of a row must not depend on the other rows of the tile, nor on a wider tile mask.
void test_rows_alone(const Kernels& k, bool pairs) {
  Random random(78);
  const int size = tile_size(k, pairs);
  for (int trial = 0; trial < 100; ++trial) {
    Scene scene(k, pairs, size, static_cast<int>(random.between(1, 64)), static_cast<int>(random.between(1, 40)),
                static_cast<int>(random.between(1, 70)), random.word());
    for (int r = 0; r < size; ++r) {
      scene.bits[r] &= random.word() & (~uint64_t{0} << random.below(scene.count));
      if (!scene.bits[r]) scene.bits[r] = uint64_t{1} << (scene.count - 1);
    }
    scene.reset();
    scene.run(plain_rule());
    for (int r = 0; r < size; ++r) {
      Scene alone(k, pairs, 1, scene.count, scene.d, scene.e, 1);
      for (int n = 0; n < scene.count; ++n) {
        for (int w = 0; w < scene.d; ++w) alone.keys.set(n, w, scene.keys.at(n, w));
        for (int w = 0; w < scene.e; ++w) alone.values.set(n, w, scene.values.at(n, w));
      }
      for (int w = 0; w < scene.d; ++w) alone.query.set(0, w, scene.query.at(r, w));
      alone.bits[0] = scene.bits[r];
      alone.run(plain_rule());
      for (int w = 0; w < scene.e; ++w) {
        expect(alone.output[w] == scene.output[r * padded(scene.e) + w], "row %d differs alone: %.9g, not %.9g", r,
               alone.output[w], scene.output[r * padded(scene.e) + w]);
      }
      expect(k.lane_sum(alone.sum.data()) == k.lane_sum(scene.sum.data() + r * kMaxLanes), "sum of row %d", r);
    }
  }
}

void test_dropout_hash(const Kernels& k) {
  ScoreRule rule{};
  rule.scale = 1.0f, rule.keep = 0.5f;
  Scene scene(k, false, 6, 64, 1, 1, 9);
  for (int r = 0; r < 6; ++r) scene.query.set(r, 0, 1.0);
  for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, 1.0);
  for (const uint32_t threshold : {0u, 1u, 0x7FFFFFFFu, 0x80000000u, 0x80000001u, 0xFFFFFFFFu}) {
    for (const int first_key : {0, 64, 2147483584}) {
      rule.drop_threshold = threshold;
      scene.reset(0.0f);
      scene.run(rule, first_key);
      for (int r = 0; r < 6; ++r) {
        for (int n = 0; n < 64; ++n) {
          const bool kept =
              keep_hash(scene.row_keys[r], static_cast<uint32_t>(first_key) + static_cast<uint32_t>(n)) >= threshold;
          expect(scene.scores[r * kBlockKeys + n] == (kept ? 1.0f : 0.0f), "threshold %x, key %d", threshold,
                 first_key + n);
        }
      }
    }
  }
}

// Distance in units of the last place of the float nearest to `want`.
double ulps(double got, double want) {
  const double size = std::max(fabs(want), 0x1p-126);
  int exponent;
  frexp(size, &exponent);
  return fabs(got - want) / ldexp(1.0, exponent - 24);
}

// Weights of a tile with given scores: D = 1, the query is 1, the keys are the scores.
void test_elementary(const Kernels& k) {
  double worst_exp = 0.0, worst_tanh = 0.0;
  Random random(10);
  for (int trial = 0; trial < 400; ++trial) {
    Scene scene(k, false, 1, 64, 1, 1, random.word());
    scene.query.set(0, 0, 1.0);
    for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, random.uniform(-87.0, 0.0) * (trial % 2 ? 1.0 : 0.05));
    scene.keys.set(0, 0, 0.0);
    ScoreRule rule = plain_rule();
    rule.scale = 1.0f;
    scene.reset(0.0f);
    scene.run(rule);
    for (int n = 0; n < 64; ++n) {
      // The argument is rounded once, to a float, before 2^t.
      const double x = scene.keys.at(n, 0), want = exp(x), got = scene.scores[n];
      if (want < 0x1p-126) continue;
      const double slack = ulps(want * (1 + 1.5 * kEps * fabs(x) * 1.4427), want);
      worst_exp = std::max(worst_exp, ulps(got, want) - slack);
    }
    expect(scene.scores[0] == 1.0f, "exp(0) is %.9g", scene.scores[0]);
    rule.softmax = false, rule.softcap = 1.0f;
    for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, random.uniform(-1.0, 1.0) * (trial % 2 ? 20.0 : 0.8));
    scene.reset(0.0f);
    scene.run(rule);
    for (int n = 0; n < 64; ++n) worst_tanh = std::max(worst_tanh, ulps(scene.scores[n], tanh(scene.keys.at(n, 0))));
  }
  expect(worst_exp <= 1.5, "exp is off by %.2f ulp beyond its argument's rounding", worst_exp);
  expect(worst_tanh <= 4.0, "tanh is off by %.2f ulp", worst_tanh);
}

void test_extremes(const Kernels& k) {
  Scene scene(k, false, 1, 64, 1, 1, 11);
  scene.query.set(0, 0, 1.0);
  ScoreRule rule = plain_rule();
  rule.scale = 1.0f;
  for (const double size : {1e2, 1e4, 1e6, 1e10, 1e20, 3e38}) {
    for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, n % 2 ? -size : size), scene.values.set(n, 0, n % 2 ? 5.0 : 1.0);
    scene.reset();
    scene.run(rule);
    const double z = scene.output[0] / k.lane_sum(scene.sum.data());
    expect(fabs(z - 1.0) < 70 * kEps, "scores of %g give %.9g, not 1", size, z);
  }
  // A later block with a far larger score reduces the weights of the earlier one to zero, not NaN.
  const auto block = [&](double score, double value) {
    for (int n = 0; n < 64; ++n) scene.keys.set(n, 0, score), scene.values.set(n, 0, value);
    scene.run(rule);
    return scene.output[0] / k.lane_sum(scene.sum.data());
  };
  scene.reset();
  const double first = block(-1000.0, 1.0), larger = block(1000.0, 2.0), smaller = block(-1000.0, 3.0);
  expect(fabs(first - 1.0) < 70 * kEps, "64 equal weights give %.9g", first);
  expect(fabs(larger - 2.0) < 140 * kEps, "after a larger block the output is %.9g", larger);
  expect(fabs(smaller - 2.0) < 140 * kEps, "after a smaller block the output is %.9g", smaller);
}

// A tile that is finished after another one was started has the bits of forward_tile.
void test_two_at_work(const Kernels& k) {
  uint64_t seed = 60;
  for (const auto& [d, e] : {std::pair{1, 1}, {32, 64}, {65, 129}}) {
    for (const int count : {15, 64}) {
      for (const bool masked : {false, true}) {
        Scene first(k, true, kMaxTileRows, count, d, e, ++seed), second(k, true, 5, count, d, e, ++seed);
        ScoreRule rule = plain_rule();
        rule.biased = masked;
        if (masked) first.bits[2] = 1, second.bits[0] &= 0x0f0f;
        std::vector<float> expected;
        const auto results = [&] {
          std::vector<float> all;
          for (Scene* scene : {&first, &second})
            for (Floats* part : {&scene->output, &scene->maximum, &scene->sum})
              all.insert(all.end(), part->data(), part->data() + part->size());
          return all;
        };
        for (Scene* scene : {&first, &second}) scene->run(rule);
        expected = results();
        for (Scene* scene : {&first, &second}) scene->reset();
        const auto [tile, block] = first.packed(rule);
        const auto [later, later_block] = second.packed(rule);
        k.pairs->start_tile(tile, block, rule);
        k.pairs->start_tile(later, later_block, rule);
        k.pairs->finish_tile(tile, block, rule);
        k.pairs->finish_tile(later, later_block, rule);
        const std::vector<float> found = results();
        expect(!memcmp(found.data(), expected.data(), sizeof(float) * expected.size()), "widths %d, %d, %d keys", d, e,
               count);
      }
    }
  }
}

}  // namespace

void test_forward_tiles(const Kernels& k) {
  const std::string level = std::string(k.name) + ": ";
  group(level + "forward_tile", [&] { test_forward_tile(k, false); });
  group(level + "forward_tile, hidden values", [&] { test_guard(k, false); });
  group(level + "forward_tile, rows alone", [&] { test_rows_alone(k, false); });
  group(level + "forward_tile_in_place", [&] { test_in_place(k, false); });
  if (k.pairs) {
    group(level + "forward_tile_pairs", [&] { test_forward_tile(k, true); });
    group(level + "forward_tile_pairs, hidden values", [&] { test_guard(k, true); });
    group(level + "forward_tile_pairs, rows alone", [&] { test_rows_alone(k, true); });
    if (k.pairs->start_tile) group(level + "tiles started and finished", [&] { test_two_at_work(k); });
    if (k.pairs->forward_tile_in_place) group(level + "forward_tile_in_place_pairs", [&] { test_in_place(k, true); });
  }
  group(level + "dropout's hash", [&] { test_dropout_hash(k); });
  group(level + "exp and tanh", [&] { test_elementary(k); });
  group(level + "extreme scores", [&] { test_extremes(k); });
}

}  // namespace uwaga_tests
