// The backward tile compared with its formulas in double precision.
#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

// `all_pairs`: output gradients and values too.
void test_backward_tile(const Kernels& k, bool pairs, bool all_pairs) {
  uint64_t seed = 12;
  const int widths[][2] = {{1, 1}, {5, 3}, {16, 16}, {33, 65}, {64, 80}};
  for (const auto& width : widths) {
    for (const int count : {1, 17, 63, 64}) {
      for (const int rows : row_counts(k, pairs)) {
        for (int variant = 0; variant < 5; ++variant) {
          Scene scene(k, pairs, rows, count, width[0], width[1], ++seed);
          ScoreRule rule = plain_rule();
          if (variant == 1) rule.softmax = false;
          if (variant >= 2) rule.softcap = 1.5f, rule.biased = true;
          if (variant >= 3) rule.keep = 0.7f, rule.drop_threshold = static_cast<uint32_t>(0.3 * 4294967296.0);
          if (variant == 4 || variant == 1) {
            for (int r = 0; r < rows; ++r) scene.bits[r] &= scene.random.word() | (r == 0);
          }
          const int grad_type = all_pairs ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
          Matrix grad(grad_type, rows, scene.e, kRowMajor, scene.random);
          Floats packed_grad(uwaga::packed_tile(scene.e, kMaxTileRows)), values(uwaga::packed_keys(scene.e));
          Floats weights(kMaxTileRows * kBlockKeys), grads(kMaxTileRows * kBlockKeys);
          Floats grad_bias(kMaxTileRows * kBlockKeys), lse(kMaxTileRows), delta(kMaxTileRows);
          const void* output_grads[kMaxTileRows] = {};
          for (int r = 0; r < rows; ++r) {
            output_grads[r] = grad.row(r);
            lse[r] = static_cast<float>(3.0 + scene.random.normal()),
            delta[r] = static_cast<float>(scene.random.normal());
          }
          scene.run(rule);  // packs queries and keys
          const auto pack_gradients = all_pairs ? k.pairs->pack_queries : pairs ? k.pairs->pack_gradients : k.pack_tile;
          pack_gradients(packed_grad.data(), output_grads, rows, scene.e, 1, grad_type, 1.0f);
          (all_pairs ? k.pairs->pack_keys : k.pack_columns)(values.data(), scene.values.rows(), count, scene.e);
          uint64_t any = 0, every = ~uint64_t{0};
          for (int r = 0; r < rows; ++r) any |= scene.bits[r], every &= scene.bits[r];
          const TileMask mask{every == ~uint64_t{0} ? nullptr : scene.bits, __builtin_ctzll(any),
                              64 - __builtin_clzll(any), false};
          const auto backward_tile = all_pairs ? k.pairs->gradients->backward_tile
                                     : pairs   ? k.pairs->backward_tile
                                               : k.backward_tile;
          backward_tile({scene.packed_query.data(), packed_grad.data(), rule.biased ? scene.bias.data() : nullptr,
                         lse.data(), delta.data(), scene.row_keys, weights.data(), grads.data(), grad_bias.data(), rows,
                         scene.d, scene.e, mask},
                        {scene.packed_keys.data(), values.data(), 0, 0, 128, count}, rule);
          for (int r = 0; r < rows; ++r) {
            for (int n = 0; n < kBlockKeys; ++n) {
              const int at = r * kBlockKeys + n;
              if (n >= count || !scene.sees(r, n)) {
                expect(weights[at] == 0.0f && grads[at] == 0.0f && grad_bias[at] == 0.0f, "hidden entry %d,%d is not 0",
                       r, n);
                continue;
              }
              double bound, dp = 0.0, dp_size = 0.0;
              const double s = scene.score(r, n, rule, &bound);
              for (int w = 0; w < scene.e; ++w) {
                dp += grad.at(r, w) * scene.values.at(n, w);
                dp_size += fabs(grad.at(r, w) * scene.values.at(n, w));
              }
              const bool kept = rule.keep == 1.0f ||
                                keep_hash(scene.row_keys[r], 128 + static_cast<uint32_t>(n)) >= rule.drop_threshold;
              const double p = rule.softmax ? exp(s - lse[r]) : s;
              const double p_error =
                  rule.softmax ? p * 2 * (bound + 8 * kEps * (fabs(s) + fabs(lse[r]) + 1)) : bound + 2 * kEps * fabs(s);
              const double growth = kept ? 1.0 / rule.keep : 0.0;
              const double dp_error = growth * (scene.e + 6) * kEps * dp_size;
              const double ds = rule.softmax ? p * (dp * growth - delta[r]) : dp * growth;
              const double ds_error = rule.softmax ? p * dp_error + (p_error + 4 * kEps * p) *
                                                                        (fabs(dp * growth) + fabs(delta[r]) + dp_error)
                                                   : dp_error + kEps * fabs(ds);
              expect_near(weights[at], kept ? p : 0.0, p_error, "weight", at);
              expect_near(grad_bias[at], ds, ds_error, "grad of bias", at);
              double softcap_grad = 1.0, softcap_error = 0.0;
              if (rule.softcap != 0.0f) {
                double unused;
                ScoreRule unbiased = rule;
                unbiased.biased = false;
                const double t = scene.score(r, n, unbiased, &unused) / rule.softcap;
                softcap_grad = 1.0 - t * t, softcap_error = 4 * (unused / rule.softcap + 8 * kEps);
              }
              expect_near(grads[at], ds * softcap_grad, ds_error + fabs(ds) * (softcap_error + kEps), "grad of score",
                          at);
            }
          }
        }
      }
    }
  }
}

}  // namespace

void test_backward_tiles(const Kernels& k) {
  group(std::string(k.name) + ": backward_tile", [&] { test_backward_tile(k, false, false); });
  if (k.pairs) group(std::string(k.name) + ": backward_tile_pairs", [&] { test_backward_tile(k, true, false); });
  if (k.pairs && k.pairs->gradients)
    group(std::string(k.name) + ": backward_tile of pairs alone", [&] { test_backward_tile(k, true, true); });
}

}  // namespace uwaga_tests
