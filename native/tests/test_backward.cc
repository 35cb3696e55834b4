// The backward driver compared with the formulas, at every level.
#include <string>

#include "tests/oracle.h"

namespace uwaga_tests {
namespace {

void run(Call& call) {
  expect(call.forward() == UWAGA_OK, "forward refused: %s", uwaga_last_error());
  call.randomize_grad_output();
  expect(call.backward() == UWAGA_OK, "backward refused: %s", uwaga_last_error());
  call.check_backward();
}

void test_shapes() {
  uint64_t seed = 700;
  const int64_t shapes[][7] = {{1, 1, 1, 1, 1, 1, 1},     {2, 3, 3, 7, 5, 4, 9},      {1, 4, 2, 33, 65, 17, 16},
                               {1, 2, 1, 60, 90, 32, 20}, {1, 1, 1, 13, 129, 64, 80}, {1, 1, 1, 100, 3, 8, 8},
                               {0, 2, 2, 4, 4, 8, 8},     {2, 2, 1, 0, 9, 8, 8},      {2, 2, 2, 5, 0, 8, 8}};
  for (const auto& s : shapes) {
    for (const int dtype : {UWAGA_FLOAT32, UWAGA_BFLOAT16, UWAGA_FLOAT16}) {
      Options options;
      options.dtype = dtype, options.seed = ++seed, options.layout = static_cast<int>(seed % 4);
      Call call(dense_shape(s[0], s[1], s[2], s[3], s[4], s[5], s[6]), options);
      run(call);
    }
  }
  for (const int threads : {1, 3}) {
    Options options;
    options.threads = threads, options.seed = ++seed, options.layout = 1;
    Call call(ragged_shape(4, 2, {3, 0, 50, 1, 12}, {5, 9, 70, 1, 0}, 10, 13), options);
    call.mask.band(-UWAGA_UNBOUNDED, 0);
    run(call);
  }
}

void test_masked() {
  Random random(800);
  for (int trial = 0; trial < 48; ++trial) {
    Options options;
    options.seed = random.word(), options.layout = static_cast<int>(random.below(4));
    options.threads = 1 + trial % 3, options.dtype = trial < 24 ? UWAGA_FLOAT32 : UWAGA_BFLOAT16;
    const int64_t q = random.between(1, 60), more = random.between(0, 90);
    Call call(random.chance(0.5) ? dense_shape(2, 2, 1, q, q + more, 9, 10)
                                 : ragged_shape(2, 1, {q, 0, 4}, {q + more, 7, 4}, 9, 10),
              options);
    call.mask.randomize(random, static_cast<int>(random.between(1, 5)));
    run(call);
  }
}

void test_options() {
  for (int trial = 0; trial < 128; ++trial) {
    Options options;
    options.dtype = trial < 64 ? UWAGA_FLOAT32 : UWAGA_BFLOAT16;
    options.seed = 900 + static_cast<uint64_t>(trial);
    options.softcap = trial & 1 ? 2.0 : 0.0;
    options.relative = trial & 2, options.bias = trial & 4, options.sinks = trial & 8;
    options.dropout = trial & 16 ? 0.25 : 0.0;
    options.softmax = !(trial & 32);
    options.sinks &= options.softmax;
    options.scale = trial % 5 == 0 ? -0.4 : 0.3;
    options.threads = 1 + trial % 3;
    Call call(dense_shape(2, 4, 2, 19, 70, 7, 10), options);
    if (trial % 2) call.mask.band(-UWAGA_UNBOUNDED, 0);
    run(call);
  }
}

void test_long() {
  for (const int variant : {0, 1, 2, 3}) {
    Options options;
    options.threads = variant % 2 ? 3 : 1, options.relative = true;
    options.dtype = variant < 2 ? UWAGA_FLOAT32 : UWAGA_BFLOAT16;
    Call call(dense_shape(1, 1, 1, 30, 1200, 6, 6), options);
    call.mask.band(-UWAGA_UNBOUNDED, 0);
    run(call);
  }
}

}  // namespace

void test_backward() {
  for_levels([](const uwaga::Kernels& k) {
    expect(uwaga_set_level(k.name) == UWAGA_OK, "%s cannot be set", k.name);
    const std::string level = std::string(k.name) + ": backward, ";
    group(level + "shapes, types, layouts", test_shapes);
    group(level + "random masks", test_masked);
    group(level + "options", test_options);
    group(level + "many keys", test_long);
  });
}

}  // namespace uwaga_tests
