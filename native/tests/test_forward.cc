// The forward driver compared with the oracle, at every level, and the arguments that it refuses.
#include <string.h>

#include <string>

#include "tests/oracle.h"

namespace uwaga_tests {
namespace {

bool in_pairs(const uwaga::Kernels& k, const Call& call) {
  return k.pairs && call.options.dtype == UWAGA_BFLOAT16 && call.value.array().dtype() == UWAGA_BFLOAT16;
}

void run(const uwaga::Kernels& k, Call& call) {
  expect(call.forward() == UWAGA_OK, "forward refused: %s", uwaga_last_error());
  call.check_forward(in_pairs(k, call));
}

void test_shapes(const uwaga::Kernels& k) {
  uint64_t seed = 200;
  const int64_t shapes[][7] = {{1, 1, 1, 1, 1, 1, 1},     {2, 3, 3, 7, 5, 4, 9},       {1, 4, 2, 33, 65, 17, 16},
                               {2, 6, 1, 20, 64, 32, 32}, {1, 2, 2, 100, 200, 64, 80}, {1, 1, 1, 13, 129, 96, 128},
                               {3, 2, 1, 1, 70, 20, 3},   {1, 1, 1, 200, 3, 8, 8},     {0, 2, 2, 4, 4, 8, 8},
                               {2, 2, 1, 0, 9, 8, 8},     {2, 2, 2, 5, 0, 8, 8},       {1, 2, 2, 9, 70, 200, 257}};
  for (const auto& s : shapes) {
    for (const int dtype : {UWAGA_FLOAT32, UWAGA_BFLOAT16, UWAGA_FLOAT16}) {
      Options options;
      options.dtype = dtype, options.seed = ++seed, options.layout = static_cast<int>(seed % 4);
      Call call(dense_shape(s[0], s[1], s[2], s[3], s[4], s[5], s[6]), options);
      if (s[0] * s[3] * s[4] == 0) expect(true, "an empty problem");
      run(k, call);
    }
  }
  Options mixed;
  mixed.dtype = UWAGA_BFLOAT16, mixed.value_dtype = UWAGA_FLOAT32;
  Call call(dense_shape(1, 2, 2, 9, 40, 24, 24), mixed);
  run(k, call);
}

void test_ragged(const uwaga::Kernels& k) {
  uint64_t seed = 300;
  for (const int dtype : {UWAGA_FLOAT32, UWAGA_BFLOAT16}) {
    for (int layout = 0; layout < 4; ++layout) {
      Options options;
      options.dtype = dtype, options.seed = ++seed, options.layout = layout, options.threads = layout + 1;
      Call call(ragged_shape(4, 2, {3, 0, 70, 1, 12}, {5, 9, 130, 1, 0}, 20, 33), options);
      if (layout % 2) call.mask.band(-UWAGA_UNBOUNDED, 0);
      run(k, call);
    }
  }
  Call empty(ragged_shape(2, 2, {}, {}, 8, 8), Options{});
  run(k, empty);
}

void test_masked(const uwaga::Kernels& k) {
  Random random(400);
  for (int trial = 0; trial < 40; ++trial) {
    Options options;
    options.seed = random.word(), options.layout = static_cast<int>(random.below(4));
    options.dtype = trial % 4 == 3 ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
    const int64_t q = random.between(1, 80), more = random.between(0, 150);
    Call call(random.chance(0.5) ? dense_shape(2, 2, 1, q, q + more, 9, 10)
                                 : ragged_shape(2, 1, {q, 0, 4}, {q + more, 7, 4}, 9, 10),
              options);
    call.mask.randomize(random, static_cast<int>(random.between(1, 5)));
    run(k, call);
  }
}

void test_options(const uwaga::Kernels& k) {
  Random random(500);
  for (int trial = 0; trial < 64; ++trial) {
    Options options;
    options.seed = random.word();
    options.softcap = trial & 1 ? 2.0 : 0.0;
    options.relative = trial & 2, options.bias = trial & 4, options.sinks = trial & 8;
    options.dropout = trial & 16 ? 0.25 : 0.0;
    options.softmax = !(trial & 32);
    options.sinks &= options.softmax;
    options.scale = trial % 5 == 0 ? -0.4 : 0.3;
    options.dtype = trial % 3 == 2 ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
    options.threads = 1 + trial % 3;
    Call call(dense_shape(2, 4, 2, 21, 90, 12, 18), options);
    if (random.chance(0.5)) call.mask.band(-UWAGA_UNBOUNDED, 0);
    run(k, call);
  }
}

void test_long(const uwaga::Kernels& k) {
  for (const int dtype : {UWAGA_FLOAT32, UWAGA_BFLOAT16}) {
    Options options;
    options.dtype = dtype, options.spread = 2.0, options.sinks = true;
    Call few(dense_shape(1, 2, 1, 2, 4500, 16, 16), options);
    run(k, few);
    Call causal(dense_shape(1, 1, 1, 60, 2200, 8, 8), options);
    causal.mask.band(-UWAGA_UNBOUNDED, 0);
    run(k, causal);
    Call window(dense_shape(1, 1, 1, 40, 2500, 8, 8), options);
    window.mask.band(-30, 10, UWAGA_START_VALUE, 2080);
    run(k, window);
  }
}

// Without softmax, by associativity, compared with the same oracle.
void test_linear(const uwaga::Kernels&) {
  Random random(600);
  for (int trial = 0; trial < 24; ++trial) {
    Options options;
    options.softmax = false, options.seed = random.word(), options.layout = trial % 4, options.threads = 1 + trial % 3;
    options.dtype = trial % 3 == 2 ? UWAGA_BFLOAT16 : UWAGA_FLOAT32;
    const int64_t q = random.between(1, 150), k = random.between(1, 200);
    Call call(trial % 2 ? dense_shape(2, 4, 2, q, k, random.between(1, 40), random.between(1, 40))
                        : ragged_shape(2, 1, {q, 0, 3, 65}, {k, 4, 0, 66}, 20, 12),
              options);
    if (trial % 4 >= 2) call.mask.band(-UWAGA_UNBOUNDED, random.between(-2, 2));
    if (trial % 3 == 1) {
      std::vector<int64_t> lengths;
      for (const int64_t length : call.shape.keys) lengths.push_back(random.between(0, length));
      call.mask.lengths(lengths);
      if (trial % 4 >= 2) call.mask.join(UWAGA_MASK_AND);
    }
    const uwaga_problem p = call.problem();
    const uwaga_forward_result result{call.output.tensor(), call.lse.tensor()};
    expect(uwaga_linear_forward(&p, &result) == UWAGA_OK, "linear refused: %s", uwaga_last_error());
    call.check_linear();
  }
}

void invalid_argument(const char* rule, const std::function<void(uwaga_problem&)>& spoil, bool linear = false) {
  Options options;
  options.softmax = !linear;
  Call call(linear ? dense_shape(2, 2, 1, 3, 4, 8, 8) : ragged_shape(2, 1, {3, 1}, {4, 2}, 8, 8), options);
  call.output.array().set(0, 7.0);
  uwaga_problem p = call.problem();
  spoil(p);
  const uwaga_forward_result result{call.output.tensor(), call.lse.tensor()};
  const int status = linear ? uwaga_linear_forward(&p, &result) : uwaga_forward(&p, &result);
  expect(status == UWAGA_BAD_ARGUMENT, "%s: status %d", rule, status);
  expect(strlen(uwaga_last_error()) > 10, "%s: no sentence", rule);
  expect(call.output.array().get(0) == 7.0, "%s: something was written", rule);
}

void test_refusals() {
  const std::vector<int64_t> falling = {0, 3, 2}, negative = {-1, 3, 4}, too_long = {0, 5, 6}, early = {0, 1, 2};
  const std::vector<int64_t> far = {0, 3, 2004}, few = {0, 4};
  static uwaga_mask_operation ops[40];
  const auto program = [](std::vector<int> operations) {
    for (size_t n = 0; n < operations.size(); ++n) ops[n] = uwaga_mask_operation{}, ops[n].operation = operations[n];
    return static_cast<int64_t>(operations.size());
  };
  invalid_argument("negative size", [](uwaga_problem& p) { p.queries = -1; });
  invalid_argument("heads", [](uwaga_problem& p) { p.query_heads = 3, p.key_heads = 2; });
  invalid_argument("no heads", [](uwaga_problem& p) { p.key_heads = 0; });
  invalid_argument("width", [](uwaga_problem& p) { p.query_width = 0; });
  invalid_argument("huge width", [](uwaga_problem& p) { p.value_width = 1 << 20; });
  invalid_argument("type", [](uwaga_problem& p) { p.key.dtype = 9; });
  invalid_argument("dropout of one", [](uwaga_problem& p) { p.dropout = 1.0f; });
  invalid_argument("dropout of NaN", [](uwaga_problem& p) { p.dropout = kNan; });
  invalid_argument("threads", [](uwaga_problem& p) { p.threads = 0; });
  invalid_argument("falling offsets", [&](uwaga_problem& p) { p.query_offsets = integers(falling); });
  invalid_argument("negative offsets", [&](uwaga_problem& p) { p.key_offsets = integers(negative); });
  invalid_argument("longer than announced", [&](uwaga_problem& p) { p.key_offsets = integers(too_long); });
  invalid_argument("offsets that end early", [&](uwaga_problem& p) { p.key_offsets = integers(early); });
  invalid_argument("offsets beyond the packed rows",
                   [&](uwaga_problem& p) { p.key_offsets = integers(far), p.keys = 3000; });
  invalid_argument("too few offsets", [&](uwaga_problem& p) { p.key_offsets = integers(few); });
  invalid_argument("packed rows beyond the memory", [&](uwaga_problem& p) { p.query.bytes -= 4; });
  invalid_argument("a stride beyond the memory", [&](uwaga_problem& p) { p.key.row *= 2; });
  invalid_argument("a negative stride", [&](uwaga_problem& p) { p.value.row = -p.value.row; });
  invalid_argument("strides that overflow", [&](uwaga_problem& p) { p.value.row = INT64_MAX; });
  invalid_argument("no query", [&](uwaga_problem& p) { p.query.data = nullptr; });
  const std::vector<std::vector<int>> programs = {{UWAGA_MASK_AND},
                                                  {UWAGA_MASK_BAND, UWAGA_MASK_OR},
                                                  {UWAGA_MASK_BAND, UWAGA_MASK_BAND},
                                                  {5},
                                                  {UWAGA_MASK_LENGTHS},
                                                  {UWAGA_MASK_DOCUMENTS},
                                                  {UWAGA_MASK_DENSE}};
  for (const auto& operations : programs) {
    invalid_argument("mask program", [&](uwaga_problem& p) { p.mask_operations = program(operations), p.mask = ops; });
  }
  invalid_argument("long program", [&](uwaga_problem& p) {
    p.mask_operations = program(std::vector<int>(40, UWAGA_MASK_BAND)), p.mask = ops;
  });
  invalid_argument("start mode", [&](uwaga_problem& p) {
    p.mask_operations = program({UWAGA_MASK_BAND}), ops[0].start.mode = 7, p.mask = ops;
  });
  invalid_argument("no starts", [&](uwaga_problem& p) {
    p.mask_operations = program({UWAGA_MASK_BAND}), ops[0].start.mode = UWAGA_START_PER_ROW, p.mask = ops;
  });
  static float one = 1.0f;
  invalid_argument("linear with softmax", [](uwaga_problem& p) { p.normalize = 1; }, true);
  invalid_argument("linear with softcap", [](uwaga_problem& p) { p.softcap = 1.0f; }, true);
  invalid_argument("linear with dropout", [](uwaga_problem& p) { p.dropout = 0.5f; }, true);
  invalid_argument("linear with relative", [](uwaga_problem& p) { p.relative = {&one, 1}; }, true);
  invalid_argument(
      "linear with a window",
      [&](uwaga_problem& p) {
        p.mask_operations = program({UWAGA_MASK_BAND}), ops[0].low = -4, ops[0].high = 4, p.mask = ops;
      },
      true);
  expect(uwaga_set_level("no such level") == UWAGA_BAD_ARGUMENT, "an unknown level was taken");
  expect(uwaga_abi_version() == UWAGA_ABI_VERSION && uwaga_struct_layout("uwaga_problem")[0] == sizeof(uwaga_problem),
         "versions");
  expect(!uwaga_struct_layout("no such struct"), "the layout of a struct that is not there");
  expect(uwaga_level_name(100) == nullptr && uwaga_level_supported(100) == 0, "levels past the end");
}

}  // namespace

void test_forward() {
  for_levels([](const uwaga::Kernels& k) {
    expect(uwaga_set_level(k.name) == UWAGA_OK && !strcmp(uwaga_level(), k.name), "%s cannot be set", k.name);
    const std::string level = std::string(k.name) + ": forward, ";
    group(level + "shapes, types, layouts", [&] { test_shapes(k); });
    group(level + "ragged", [&] { test_ragged(k); });
    group(level + "random masks", [&] { test_masked(k); });
    group(level + "options", [&] { test_options(k); });
    group(level + "many keys", [&] { test_long(k); });
    group(level + "by associativity", [&] { test_linear(k); });
  });
  group("bad arguments are refused", test_refusals);
}

}  // namespace uwaga_tests
