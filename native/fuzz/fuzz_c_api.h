// What the fuzzer did, function by function.
#ifndef UWAGA_FUZZ_FUZZ_C_API_H_
#define UWAGA_FUZZ_FUZZ_C_API_H_

#include <stddef.h>
#include <stdint.h>

namespace uwaga_fuzz {

constexpr int kFunctions = 19;
constexpr const char* kNames[kFunctions] = {
    "forward",   "backward",      "linear_forward", "rows",      "weights",           "mass",          "received",
    "pool",      "mask_block",    "mask_bits",      "matmul",    "forward_part",      "backward_part", "received_part",
    "rows_part", "diagonal_sums", "mass_part",      "pool_part", "diagonal_sums_part"};
constexpr int kMatmul = 10, kForwardPart = 11, kBackwardPart = 12, kReceivedPart = 13, kRowsPart = 14,
              kDiagonalSums = 15, kMassPart = 16, kPoolPart = 17, kDiagonalSumsPart = 18;

struct Counts {
  int64_t tried[kFunctions], served[kFunctions], skipped[kFunctions];  // skipped: more work than kMostWork
};
const Counts& counts();

}  // namespace uwaga_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
#endif  // UWAGA_FUZZ_FUZZ_C_API_H_
