// Groups of checks, random numbers, and typed memory of exactly the requested size (so
// that AddressSanitizer finds an access one entry past the end).
#ifndef UWAGA_TESTS_CHECK_H_
#define UWAGA_TESTS_CHECK_H_

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <new>
#include <string>

#include "base/half.h"
#include "kernels/kernels.h"
#include "uwaga/c_api.h"

namespace uwaga_tests {

constexpr double kEps = 5.9604644775390625e-8;  // half an ulp of a float at 1
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Half an ulp at 1 of a stored type.
inline double rounding_of(int dtype) {
  return dtype == UWAGA_FLOAT32 ? kEps : (dtype == UWAGA_BFLOAT16 ? 0x1p-8 : 0x1p-11);
}
inline const char* type_name(int dtype) {
  return dtype == UWAGA_FLOAT32 ? "float32" : (dtype == UWAGA_BFLOAT16 ? "bfloat16" : "float16");
}
inline int size_of_type(int dtype) { return dtype == UWAGA_FLOAT32 ? 4 : 2; }

// A group of checks: runs `body` if --filter (test_native.cc) selects it, prints one line, and counts it as passed if every
// `expect` in it held. All checks are in groups, so that a filter skips the rest.
void group(const std::string& name, const std::function<void()>& body);
// The first failures of a group are printed in full.
bool expect(bool holds, const char* format, ...) __attribute__((format(printf, 2, 3)));
inline bool expect_near(double got, double want, double bound, const char* what, int64_t at) {
  return expect(fabs(got - want) <= bound, "%s[%lld] is %.9g, not %.9g within %.3g", what, static_cast<long long>(at),
                got, want, bound);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t word() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t x = state_;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
  }
  int64_t below(int64_t end) { return static_cast<int64_t>(word() % static_cast<uint64_t>(end)); }
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool chance(double probability) { return uniform(0.0, 1.0) < probability; }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(word() >> 11) * 0x1p-53; }
  double normal() {  // a sum of uniform numbers is close enough
    double sum = 0.0;
    for (int n = 0; n < 6; ++n) sum += uniform(-1.0, 1.0);
    return sum * 0.7071;
  }

 private:
  uint64_t state_;
};

// Memory of `count` entries of a stored type.
class Array {
 public:
  Array(int dtype, int64_t count)
      : dtype_(dtype), count_(count), data_(malloc(static_cast<size_t>(count) * size_of_type(dtype))) {
    for (int64_t n = 0; n < count; ++n) set(n, 0.0);
  }
  Array(const Array& other) : Array(other.dtype_, other.count_) { copy(other); }
  Array& operator=(const Array&) = delete;
  ~Array() { free(data_); }

  int dtype() const { return dtype_; }
  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * size_of_type(dtype_); }
  void* data() const { return data_; }
  void* at(int64_t n) const { return static_cast<char*>(data_) + n * size_of_type(dtype_); }
  double get(int64_t n) const {
    if (dtype_ == UWAGA_FLOAT32) return static_cast<float*>(data_)[n];
    if (dtype_ == UWAGA_BFLOAT16) return uwaga::widen(static_cast<uwaga::bfloat16*>(data_)[n]);
    return uwaga::widen(static_cast<uwaga::float16*>(data_)[n]);
  }
  void set(int64_t n, double x) {
    if (dtype_ == UWAGA_FLOAT32) static_cast<float*>(data_)[n] = static_cast<float>(x);
    if (dtype_ == UWAGA_BFLOAT16)
      static_cast<uwaga::bfloat16*>(data_)[n] = uwaga::narrow_bfloat16(static_cast<float>(x));
    if (dtype_ == UWAGA_FLOAT16) static_cast<uwaga::float16*>(data_)[n] = uwaga::narrow_float16(static_cast<float>(x));
  }
  void copy(const Array& other) {
    for (int64_t n = 0; n < count_; ++n) set(n, other.get(n));
  }
  void fill_normal(Random& random, double size = 1.0) {
    for (int64_t n = 0; n < count_; ++n) set(n, size * random.normal());
  }

 private:
  int dtype_;
  int64_t count_;
  void* data_;
};

// Floats for packed operands and scratch memory: aligned as in the drivers, initialised with NaN so that no kernel relies on zeros.
class Floats {
 public:
  explicit Floats(int64_t count) : count_(count) {
    // operator new: Windows has no aligned_alloc
    data_ = static_cast<float*>(::operator new(static_cast<size_t>((count + 15) / 16 * 64), kAlignment));
    fill(kNan);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { ::operator delete(data_, kAlignment); }
  void fill(float x) {
    for (int64_t n = 0; n < count_; ++n) data_[n] = x;
  }
  float* data() { return data_; }
  int64_t size() const { return count_; }
  float& operator[](int64_t n) { return data_[n]; }

 private:
  static constexpr std::align_val_t kAlignment{64};

  int64_t count_;
  float* data_;
};

// Calls f(kernels) for every level that this processor (or its emulation) can run.
template <class Function>
void for_levels(const Function& f) {
  for (int n = 0; uwaga::level_at(n); ++n) {
    if (uwaga::level_supported(n)) f(*uwaga::level_at(n));
  }
}

void test_kernels();
void test_masks();
void test_forward();
void test_backward();
void test_bits();
void test_matmul();
void test_pages();
void test_weights();
void test_norms();
void test_rotary();

}  // namespace uwaga_tests
#endif  // UWAGA_TESTS_CHECK_H_
