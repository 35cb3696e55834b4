// Masks: blocks, bits and ranges, compared with the program evaluated key by key.
#include <algorithm>

#include "drivers/mask.h"
#include "tests/oracle.h"

namespace uwaga_tests {
namespace {

Shape random_shape(Random& random) {
  const int64_t sequences = random.between(1, 3);
  if (random.chance(0.5)) {
    return dense_shape(sequences, random.between(1, 2), 1, random.between(1, 100), random.between(1, 300), 1, 1);
  }
  std::vector<int64_t> queries, keys;
  for (int64_t b = 0; b < sequences; ++b) queries.push_back(random.below(100)), keys.push_back(random.below(300));
  return ragged_shape(2, 1, queries, keys, 1, 1);
}

void check_block(const Call& call, const uwaga_problem& p, Random& random, int64_t b) {
  const int64_t q = call.shape.queries[b], k = call.shape.keys[b];
  const int64_t i0 = random.below(q), i1 = random.between(i0 + 1, std::min(q, i0 + 20));
  const int64_t j0 = random.below(k), j1 = random.between(j0 + 1, std::min(k, j0 + 64));
  const uwaga::Sequence s = uwaga::sequence_of(p, b);
  const uwaga::Mask mask(p);
  const int seen = uwaga_mask_block(&p, b, 0, i0, i1, j0, j1);
  const uwaga::KeyRange key_range = mask.key_range(s, i0, i1);
  for (int64_t h = 0; h < call.shape.query_heads; ++h) {
    for (int64_t i = i0; i < i1; ++i) {
      const uint64_t bits = uwaga_mask_bits(&p, b, h, i, j0);
      for (int64_t j = j0; j < std::min(k, j0 + 64); ++j) {
        const bool want = call.mask.sees(b, h, i, j), got = bits >> (j - j0) & 1;
        expect(want == got, "bit of query %d, key %d is %d", static_cast<int>(i), static_cast<int>(j), got);
        if (j >= j1) continue;
        expect(!(seen == 0 && want), "a block called empty shows key %d to query %d", static_cast<int>(j),
               static_cast<int>(i));
        expect(!(seen == 2 && !want), "a block called full hides key %d from query %d", static_cast<int>(j),
               static_cast<int>(i));
        expect(!want || (key_range.first <= j && j < key_range.last), "key %d lies outside the range",
               static_cast<int>(j));
      }
      for (int64_t j = k; j < j0 + 64; ++j) expect(!(bits >> (j - j0) & 1), "a bit past the last key");
    }
  }
}

void test_random_programs() {
  Random random(100);
  for (int trial = 0; trial < 400; ++trial) {
    Call call(random_shape(random), Options{});
    call.mask.randomize(random, static_cast<int>(random.between(1, 6)));
    const uwaga_problem p = call.problem();
    for (int64_t b = 0; b < call.shape.sequences; ++b) {
      if (call.shape.queries[b] == 0 || call.shape.keys[b] == 0) continue;
      for (int n = 0; n < 4; ++n) check_block(call, p, random, b);
    }
  }
}

// Blocks of structured masks must be classified as empty or full, not only computed correctly.
void test_sharpness() {
  Call call(dense_shape(1, 1, 1, 256, 256, 1, 1), Options{});
  call.mask.band(-UWAGA_UNBOUNDED, 0);
  const uwaga_problem p = call.problem();
  expect(uwaga_mask_block(&p, 0, 0, 0, 64, 64, 128) == 0, "above the diagonal");
  expect(uwaga_mask_block(&p, 0, 0, 64, 128, 64, 128) == 1, "on the diagonal");
  expect(uwaga_mask_block(&p, 0, 0, 64, 128, 0, 64) == 2, "below the diagonal");
  Call padded(dense_shape(2, 1, 1, 8, 256, 1, 1), Options{});
  padded.mask.lengths({100, 0});
  const uwaga_problem lengths = padded.problem();
  expect(uwaga_mask_block(&lengths, 0, 0, 0, 8, 0, 64) == 2, "before the length");
  expect(uwaga_mask_block(&lengths, 0, 0, 0, 8, 64, 128) == 1, "at the length");
  expect(uwaga_mask_block(&lengths, 0, 0, 0, 8, 128, 192) == 0, "after the length");
  expect(uwaga_mask_block(&lengths, 1, 0, 0, 8, 0, 64) == 0, "nothing to see");
}

}  // namespace

void test_masks() {
  group("masks: blocks, ranges and bits of random programs", test_random_programs);
  group("masks: blocks are classified", test_sharpness);
}

}  // namespace uwaga_tests
