// The hash that dropout's masks are made of (docs/contributors/kernels.md), as far as it is computed per row.
#ifndef UWAGA_DRIVERS_DROPOUT_HASH_H_
#define UWAGA_DRIVERS_DROPOUT_HASH_H_

#include <stdint.h>

#include <algorithm>
#include <cmath>

namespace uwaga {

inline uint64_t splitmix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// An entry is kept where its hash is not below this.
inline uint32_t drop_threshold(float probability) {
  return static_cast<uint32_t>(std::min(std::floor(static_cast<double>(probability) * 4294967296.0), 4294967295.0));
}

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_DROPOUT_HASH_H_
