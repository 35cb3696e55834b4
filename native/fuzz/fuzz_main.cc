// The fuzzer without libFuzzer: mutates inputs at random for some time, with any compiler.
//
//     fuzz_c_api SECONDS [SEED] [FILE OR FOLDER OF INPUTS...]
//
// Every input is mutated in numbers of eight, four and one byte, since that is what structs are made of. An input that ends
// the process (a sanitizer's finding) lies in fuzz_c_api.input, and can be given as the only file, with 0 seconds.
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
  if (found.empty()) found.push_back(Bytes(4096, 0));
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
    const int64_t ends[] = {0, 1, -1, 2, 63, 64, 65, 127, 128, 2047, 2049, 4096, 1 << 16, INT32_MAX, INT64_MAX, INT64_MIN, INT64_C(1) << 40, INT64_C(1) << 61};
    switch (below(6)) {
      case 0: return static_cast<int64_t>(static_cast<uint64_t>(x) + 1);
      case 1: return static_cast<int64_t>(static_cast<uint64_t>(x) - 1);
      case 2: return static_cast<int64_t>(static_cast<uint64_t>(x) * 2);
      case 3: return x / 2;
      case 4: return ends[below(sizeof ends / sizeof *ends)];
      default: return static_cast<int64_t>(below(200));
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
           static_cast<long long>(c.tried[n]), static_cast<long long>(c.served[n]), static_cast<long long>(c.skipped[n]));
    tried += c.tried[n];
  }
  printf("%lld inputs from %zu seeds in %.0f s (seed %llu), nothing found\n", static_cast<long long>(tried), seeds.size(), seconds,
         static_cast<unsigned long long>(seed));
  return 0;
}
