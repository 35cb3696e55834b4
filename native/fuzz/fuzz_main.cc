// A driver of the fuzz target for compilers without libFuzzer: mutates inputs at random for a given time.
//
//     fuzz_c_api SECONDS [SEED] [FILE OR FOLDER OF INPUTS...]
//
// Inputs are mutated in units of eight, four and one byte, the sizes of the structs' fields. An input that ends
// the process (an error of a sanitizer) is in the file fuzz_c_api.input; to repeat it, give it as the only file, with 0 seconds.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz/fuzz_c_api.h"
#include "uwaga/c_api.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define UWAGA_SANITIZED
#endif

namespace {

using Bytes = std::vector<uint8_t>;
namespace fs = std::filesystem;

const Bytes* g_running = nullptr;

[[maybe_unused]] void keep_input() {
  FILE* file = g_running ? fopen("fuzz_c_api.input", "wb") : nullptr;
  if (!file) return;
  fwrite(g_running->data(), 1, g_running->size(), file);
  fclose(file);
}

void run(const Bytes& bytes) {
  g_running = &bytes;
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  g_running = nullptr;
}

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

template <class T>
void append(Bytes& bytes, const T& x) {
  const auto* first = reinterpret_cast<const uint8_t*>(&x);
  bytes.insert(bytes.end(), first, first + sizeof x);
}

uwaga_tensor tensor(int64_t heads, int64_t rows, int64_t columns) {
  static float there;
  return {&there, heads * rows * columns * 4, heads * rows * columns, rows * columns, columns, 1, UWAGA_FLOAT32, 0};
}

// One sequence of more keys than the conformance suite has, by several threads: chunks and segments of keys, and distant keys
// that a bias makes negligible.
uwaga_problem many_keys(int64_t queries, int64_t keys, bool biased) {
  uwaga_problem p{};
  p.sequences = p.query_heads = p.key_heads = 1;
  p.queries = queries, p.keys = keys, p.query_width = p.value_width = 2;
  p.query = tensor(1, queries, 2), p.key = p.value = tensor(1, keys, 2);
  p.scale = 1.0f, p.normalize = 1, p.threads = 3;
  if (!biased) return p;
  p.relative = {static_cast<float*>(p.query.data), queries + keys};
  p.relative_head = queries + keys, p.relative_zero = keys;
  return p;
}

uwaga_floats sums(int64_t count) {
  static float there;
  return {&there, count};
}

uwaga_row_statistics row_statistics(int64_t queries) {
  const uwaga_tensor numbers = tensor(1, queries, 1);
  uwaga_row_statistics statistics{};
  statistics.softmax = {numbers, numbers}, statistics.entropy = statistics.squares = statistics.distance = numbers;
  statistics.top = 3, statistics.top_weights = statistics.top_positions = tensor(1, queries, 3);
  statistics.top_positions.bytes *= 2;
  return statistics;
}

// Parts of queries and keys, the first and later ones.
void add_parts(std::vector<Bytes>& found) {
  using namespace uwaga_fuzz;
  constexpr int64_t kQueries = 70, kKeys = 2100;
  const uwaga_problem p = many_keys(kQueries, kKeys, false);
  const uwaga_tensor query = tensor(1, kQueries, 2), key = tensor(1, kKeys, 2), numbers = tensor(1, kQueries, 1);
  const uwaga_softmax softmax{numbers, numbers};
  static double there;
  for (const int continues : {0, 1}) {
    Bytes forward = {kForwardPart, 0}, backward = {kBackwardPart, 0}, rows = {kRowsPart, 0};
    append(forward, p), append(forward, uwaga_forward_result{query, numbers});
    append(forward, uwaga_forward_sums{sums(kQueries * 18), continues, 0});
    append(rows, p), append(rows, uwaga_forward_result{query, {}});
    append(rows, row_statistics(kQueries)), append(rows, uwaga_row_sums{sums(kQueries * 27), continues, continues});
    append(backward, p);
    append(backward, uwaga_backward_args{query, query, numbers, numbers, query, key, key, {}, {}, {}});
    append(backward, uwaga_backward_sums{sums(96 * 16), sums(2112 * 16), sums(2112 * 16), continues, continues});
    Bytes received = {kReceivedPart, 0};
    append(received, p), append(received, softmax), append(received, uwaga_tensor{}),
        append(received, tensor(1, kKeys, 1));
    append(received, uwaga_weight_sums{&there, kKeys, continues, 0});
    Bytes mass = {kMassPart, 0};
    append(mass, p), append(mass, softmax), append(mass, numbers);
    append(mass, uwaga_weight_sums{&there, kQueries, continues, 0}), append(mass, uint8_t{0});
    found.insert(found.end(), {forward, backward, rows, received, mass});
  }
  static uint64_t word;
  Bytes diagonals = {kDiagonalSumsPart, 0}, cells = {kPoolPart, 0};
  append(diagonals, p), append(diagonals, softmax);
  append(diagonals, uwaga_exact_sums{&word, 3 * (kQueries + kKeys - 1), kQueries + kKeys - 1});
  static int64_t edge;
  append(cells, p), append(cells, softmax);
  append(cells, uwaga_pool_args{UWAGA_POOL_MASS, 0, {&edge, 3}, {&edge, 3}, 2, 2, {}, {}, 0});
  append(cells, uwaga_exact_sums{&word, 12, 4});
  for (const int64_t x : {int64_t{0}, int64_t{30}, kQueries, int64_t{5}, int64_t{1000}, kKeys}) append(cells, x);
  found.insert(found.end(), {diagonals, cells});
}

std::vector<Bytes> built_in() {
  using uwaga_fuzz::kMatmul;
  std::vector<Bytes> found;
  for (const bool biased : {false, true}) {
    for (const int64_t queries : {3, 70}) {
      const uwaga_problem p = many_keys(queries, 4500, biased);
      const uwaga_tensor numbers = tensor(1, queries, 1);
      Bytes forward = {0, 0};
      append(forward, p), append(forward, uwaga_forward_result{tensor(1, queries, 2), numbers});
      Bytes rows = {3, 0};
      append(rows, p), append(rows, uwaga_forward_result{}), append(rows, row_statistics(queries));
      found.insert(found.end(), {forward, rows});
    }
    const uwaga_problem p = many_keys(100, 1100, biased);
    const uwaga_tensor query = tensor(1, 100, 2), key = tensor(1, 1100, 2), numbers = tensor(1, 100, 1);
    Bytes backward = {1, 0};
    append(backward, p);
    append(backward, uwaga_backward_args{query, query, numbers, numbers, query, key, key, p.relative, {}, {}});
    found.push_back(backward);
  }
  add_parts(found);
  // Of every shape of call_matmul.
  for (int shape = 0; shape < 256; shape += 5) {
    uwaga_matmul_args p{};
    p.rows = 13, p.columns = 100, p.depth = shape % 2 ? 1300 : 20;
    p.a = tensor(1, p.rows, p.depth), p.b = tensor(1, p.columns, p.depth), p.bias = tensor(1, 1, p.columns);
    p.out = p.residual = p.preactivation = tensor(1, p.rows, p.columns);
    p.activation = shape % 5, p.threads = 2;
    Bytes matmul = {kMatmul, static_cast<uint8_t>(shape), static_cast<uint8_t>(shape)};
    append(matmul, p);
    found.push_back(matmul);
  }
  return found;
}

std::vector<Bytes> inputs(int count, char** names) {
  std::vector<Bytes> found;
  for (int n = 0; n < count; ++n) {
    if (!fs::is_directory(names[n])) {
      found.push_back(read(names[n]));
      continue;
    }
    std::vector<fs::path> paths(fs::directory_iterator(names[n]), fs::directory_iterator{});
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths) found.push_back(read(path));
  }
  const std::vector<Bytes> more = built_in();
  found.insert(found.end(), more.begin(), more.end());
  return found;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t n) { return random_() % n; }

  Bytes mutated(const std::vector<Bytes>& seeds) {
    Bytes bytes = seeds[below(seeds.size())];
    if (below(8) == 0) splice(bytes, seeds[below(seeds.size())]);
    for (uint64_t n = below(6); n > 0; --n) mutate(bytes);
    return bytes;
  }

 private:
  void splice(Bytes& bytes, const Bytes& other) {
    const size_t at = below(std::min(bytes.size(), other.size()) + 1);
    bytes.resize(at);
    bytes.insert(bytes.end(), other.begin() + at, other.end());
  }
  void mutate(Bytes& bytes) {
    if (bytes.size() < 16) return;
    switch (below(8)) {
      case 0:
        bytes[below(bytes.size())] = static_cast<uint8_t>(random_());
        return;
      case 1:
        bytes[0] = static_cast<uint8_t>(random_());  // another function
        return;
      case 2: {  // floats and types
        const uint32_t words[] = {0, 1, 2, 3, 0x7F800000u, 0x7FC00000u, 0x3F800000u, 0xFFFFFFFFu};
        write(bytes, 2 + below((bytes.size() - 2) / 4) * 4, words[below(8)]);
        return;
      }
      default: {
        const size_t at = 2 + below((bytes.size() - 10) / 8 + 1) * 8;
        int64_t x = 0;
        memcpy(&x, &bytes[at], sizeof x);
        write(bytes, at, number(x));
      }
    }
  }
  int64_t number(int64_t x) {
    const int64_t ends[] = {0,
                            1,
                            -1,
                            2,
                            63,
                            64,
                            65,
                            127,
                            128,
                            2047,
                            2049,
                            4096,
                            1 << 16,
                            INT32_MAX,
                            INT64_MAX,
                            INT64_MIN,
                            INT64_C(1) << 40,
                            INT64_C(1) << 61};
    switch (below(6)) {
      case 0:
        return static_cast<int64_t>(static_cast<uint64_t>(x) + 1);
      case 1:
        return static_cast<int64_t>(static_cast<uint64_t>(x) - 1);
      case 2:
        return static_cast<int64_t>(static_cast<uint64_t>(x) * 2);
      case 3:
        return x / 2;
      case 4:
        return ends[below(sizeof ends / sizeof *ends)];
      default:
        return static_cast<int64_t>(below(200));
    }
  }
  template <class T>
  static void write(Bytes& bytes, size_t at, T x) {
    if (at + sizeof x <= bytes.size()) memcpy(&bytes[at], &x, sizeof x);
  }
  std::mt19937_64 random_;
};

}  // namespace

int main(int count, char** arguments) {
  const double seconds = count > 1 ? atof(arguments[1]) : 10.0;
  const uint64_t seed = count > 2 ? strtoull(arguments[2], nullptr, 10) : 1;
  const std::vector<Bytes> seeds = inputs(count > 3 ? count - 3 : 0, arguments + 3);
#ifdef UWAGA_SANITIZED
  __sanitizer_set_death_callback(keep_input);
#endif
  for (const Bytes& bytes : seeds) run(bytes);
  Mutator mutator(seed);
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
    const Bytes bytes = mutator.mutated(seeds);
    run(bytes);
  }
  int64_t tried = 0;
  for (int n = 0; n < uwaga_fuzz::kFunctions; ++n) {
    const auto& c = uwaga_fuzz::counts();
    printf("%-16s %9lld tried, %9lld served, %9lld left out as too long\n", uwaga_fuzz::kNames[n],
           static_cast<long long>(c.tried[n]), static_cast<long long>(c.served[n]),
           static_cast<long long>(c.skipped[n]));
    tried += c.tried[n];
  }
  printf("%lld inputs from %zu seeds in %.0f s (seed %llu), nothing found\n", static_cast<long long>(tried),
         seeds.size(), seconds, static_cast<unsigned long long>(seed));
  return 0;
}
