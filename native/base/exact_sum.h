// Sums of float32 numbers that are at least 0 without any rounding, so that their order and where they are cut do not matter (Kulisch,
// "Computer Arithmetic and Validity", 2008, chapter 8: a fixed-point number that is wide enough for every term).
#ifndef UWAGA_BASE_EXACT_SUM_H_
#define UWAGA_BASE_EXACT_SUM_H_

#include <stdint.h>
#include <string.h>

#include <limits>

namespace uwaga {

class ExactSum {
 public:
  // `x`: a float32 number, or a double that is a sum of a few, such as those of one block: a multiple of 2^-149. The sum with one
  // that is below 0, at least 2^30, or NaN is NaN.
  void add(double x) {
    if (x == 0.0 || words_[2] >= kNan) return;
    if (!(x > 0.0 && x < kLargest)) {
      words_[2] = kNan;
      return;
    }
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int place = static_cast<int>(bits >> 52) - (1023 + 52 - kUnit);  // of the last bit of the fraction
    const uint64_t whole = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
    // Bits below the unit are 0, and so is whole >> -place then.
    if (place < 0) return add_words(whole >> -place, 0, 0);
    const int low = place & 63;
    add_words(whole << low, low ? whole >> (64 - low) : 0, place >> 6);
  }
  void add(const ExactSum& other) {
    if (words_[2] >= kNan) return;
    if (other.words_[2] >= kNan) {
      words_[2] = kNan;
      return;
    }
    add_words(other.words_[0], other.words_[1], 0);
    words_[2] += other.words_[2];
  }
  double value() const {
    if (words_[2] >= kNan) return std::numeric_limits<double>::quiet_NaN();
    double x = 0.0;
    for (int n = 2; n >= 0; --n) {
      x = x * 4294967296.0 + static_cast<double>(words_[n] >> 32);
      x = x * 4294967296.0 + static_cast<double>(words_[n] & 0xFFFFFFFF);
    }
    return x * 0x1p-149;
  }

 private:
  static constexpr int kUnit = 149;  // 2^-149 is the smallest float32 number
  static constexpr double kLargest = 0x1p30;
  static constexpr uint64_t kNan = uint64_t{1} << 63;

  void add_words(uint64_t low, uint64_t high, int at) {
    bool carry = __builtin_add_overflow(words_[at], low, &words_[at]);
    for (int n = at + 1; n < 3; ++n) {
      const bool first = __builtin_add_overflow(words_[n], n == at + 1 ? high : 0, &words_[n]);
      carry = __builtin_add_overflow(words_[n], uint64_t{carry}, &words_[n]) || first;
    }
  }

  uint64_t words_[3] = {};
};

static_assert(sizeof(ExactSum) == 3 * sizeof(uint64_t), "as uwaga_exact_sums has them");

}  // namespace uwaga
#endif  // UWAGA_BASE_EXACT_SUM_H_
