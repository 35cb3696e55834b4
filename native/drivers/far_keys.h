// Skips blocks of keys whose weights underflow. Where a bias decreases with the distance, as ALiBi's does, most keys of a long
// sequence have weights so small beside that of the row's own key that adding them changes no bit.
//
// The largest score of a row is at least that of its own key; by Cauchy-Schwarz, none is above the product of the norms:
//
//     q.k scale + bias <= |q| max |k| scale + bias        q.k_own scale + bias_own >= -|q| max |k| scale + bias_own
//
// A block is skipped where the first bound lies so far below the second one that weight times value is below 2^-150 of the
// row's sum. None is skipped where a key or a value is NaN or infinite, since a weight of zero times NaN is NaN.
#ifndef UWAGA_DRIVERS_FAR_KEYS_H_
#define UWAGA_DRIVERS_FAR_KEYS_H_

#include <stdint.h>

#include <vector>

#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/tiles.h"

namespace uwaga {

class FarKeys {
 public:
  // Reads all keys and values once for their norms, unless no block could be skipped.
  FarKeys(const uwaga_problem& p, const Mask& mask, const Kernels& kernels, int threads);

  // Blocks of keys whose largest bias is below this are skipped for all rows of `rows`; -inf: none is.
  float skip_below(const Sequence& s, const RowBlock& rows) const;
  // The largest bias between queries [i0, i1) and keys [j0, j1).
  float largest_bias(const Sequence& s, int64_t head, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const;

 private:
  struct Norms {
    float key, value;  // the largest ones; NaN or infinite where an entry is
  };
  Norms norms_of(const Sequence& s, int64_t head) const;
  bool sees_its_own_key(const Sequence& s, int64_t head, int64_t query) const;

  const uwaga_problem& p_;
  const Mask& mask_;
  const Kernels& kernels_;
  int64_t distances_ = 0;     // how many a head has
  std::vector<float> peaks_;  // of each head, the largest bias of every 64 distances
  std::vector<Norms> norms_;  // of each sequence and head
};

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_FAR_KEYS_H_
