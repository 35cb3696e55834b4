// Rotary positions beside the same products and sums one after another, and what the C interface refuses.
#include <string.h>

#include "tests/kernels/fixture.h"

namespace uwaga_tests {
namespace {

constexpr int kTokens = 60, kPositions = 20, kHeads = 3;  // three sequences of twenty tokens

struct RotaryProblem {
  RotaryProblem(int dtype, int width, int pairs)
      : random(51),
        x(dtype, int64_t{kTokens} * kHeads * width),
        out(dtype, int64_t{kTokens} * kHeads * width),
        table(UWAGA_FLOAT32, 2 * kPositions * pairs) {
    x.fill_normal(random), table.fill_normal(random);
    const int64_t numbers = int64_t{kHeads} * width;
    args = {};
    args.rows = kTokens, args.heads = kHeads, args.width = width, args.pairs = pairs, args.positions = kPositions;
    args.threads = 2;
    args.x = {x.data(), x.bytes(), 0, 0, numbers, 1, dtype, 0};
    args.out = {out.data(), out.bytes(), 0, 0, numbers, 1, dtype, 0};
    // Cosines and sines stand side by side in one table.
    args.cos = {table.data(), table.bytes(), 0, 0, 2 * pairs, 1, UWAGA_FLOAT32, 0};
    args.sin = {table.at(pairs), table.bytes() - 4 * pairs, 0, 0, 2 * pairs, 1, UWAGA_FLOAT32, 0};
  }

  Random random;
  Array x, out, table;
  uwaga_rotate_args args;
};

void test_rotation(const Kernels& k) {
  uwaga_set_level(k.name);
  for (const int dtype : kTypes) {
    for (const int width : kWidths) {
      for (const int pairs : {1, width / 4, width / 2}) {
        if (pairs < 1 || 2 * pairs > width) continue;
        RotaryProblem p(dtype, width, pairs);
        expect(uwaga_rotate(&p.args) == UWAGA_OK, "%s", uwaga_last_error());
        Array one(dtype, 1);
        for (int64_t head = 0; head < kTokens * kHeads; ++head) {
          const int64_t position = head / kHeads % kPositions;
          for (int w = 0; w < width; ++w) {
            const int pair = w % pairs;
            const float a = static_cast<float>(p.x.get(head * width + pair));
            const float b = static_cast<float>(p.x.get(head * width + pairs + pair));
            const float cos = static_cast<float>(p.table.get(2 * position * pairs + pair));
            const float sin = static_cast<float>(p.table.get((2 * position + 1) * pairs + pair));
            // volatile: a product that the compiler fuses with the sum has other bits
            const volatile float ac = a * cos, bs = b * sin, bc = b * cos, as = a * sin;
            one.set(0, w < pairs ? ac - bs : w < 2 * pairs ? bc + as : p.x.get(head * width + w));
            expect(p.out.get(head * width + w) == one.get(0), "%s, width %d, %d pairs, number %d: %.9g, not %.9g",
                   type_name(dtype), width, pairs, w, p.out.get(head * width + w), one.get(0));
          }
        }
      }
    }
  }
  uwaga_set_level(nullptr);
}

void test_refusals() {
  RotaryProblem p(UWAGA_BFLOAT16, 8, 4);
  const auto refuses = [&](const char* message, const auto& change) {
    uwaga_rotate_args args = p.args;
    change(args);
    expect(uwaga_rotate(&args) == UWAGA_BAD_ARGUMENT && !strcmp(uwaga_last_error(), message), "%s", uwaga_last_error());
  };
  using A = uwaga_rotate_args;
  refuses("number of pairs: 5 must lie between 1 and 4", [](A& a) { a.pairs = 5; });
  refuses("number of pairs: 0 must lie between 1 and 4", [](A& a) { a.pairs = 0; });
  refuses("number of heads: 0 must lie between 1 and 16777216", [](A& a) { a.heads = 0; });
  refuses("width: 0 must lie between 1 and 16777216", [](A& a) { a.width = 0; });
  refuses("number of positions: 0 must lie between 1 and 1099511627776", [](A& a) { a.positions = 0; });
  refuses("number of threads: 0 must lie between 1 and 4096", [](A& a) { a.threads = 0; });
  refuses("x needs 2880 bytes of memory, and has 2879", [](A& a) { a.x.bytes = 2879; });
  refuses("output: its rows overlap", [](A& a) { a.out.row = 23; });
  refuses("output must have the dtype of the input", [](A& a) { a.out.dtype = UWAGA_FLOAT16; });
  refuses("cosines must be float32", [](A& a) { a.cos.dtype = UWAGA_BFLOAT16; });
  refuses("sines must be float32", [](A& a) { a.sin.dtype = UWAGA_BFLOAT16; });
  refuses("cosines has a stride that is negative or too large", [](A& a) { a.cos.row = -8; });
  refuses("sines: missing", [](A& a) { a.sin.data = nullptr; });
}

}  // namespace

void test_rotary() {
  for_levels([](const Kernels& k) { group(std::string(k.name) + ": rotation", [&] { test_rotation(k); }); });
  group("refusals of rotations", [] { test_refusals(); });
}

}  // namespace uwaga_tests
