// Keys too far away to matter. Where a bias falls with the distance, as ALiBi's does, most keys of a long sequence get
// weights that are lost beside the row's own: they underflow, and what they would add rounds away.
//
// A row's largest score is at least that of its own key, and none is larger than the norms allow:
//
//     q.k scale + bias <= |q| max |k| scale + bias        q.k_own scale + bias_own >= -|q| max |k| scale + bias_own
//
// A block of keys is left out where the first lies so far below the second that weight times value is below 2^-150 of the
// row's sum. Nothing is left out where a key or value is not finite, since a weight of zero times NaN is NaN.
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
  // Looks at all keys and values once, unless no block could be left out.
  FarKeys(const uwaga_problem& p, const Mask& mask, const Kernels& kernels, int threads);

  // The bias below which a block of keys is lost to all rows of `rows`; -inf where none is.
  float lost_below(const Sequence& s, const RowBlock& rows) const;
  // The largest bias between queries [i0, i1) and keys [j0, j1).
  float largest_bias(const Sequence& s, int64_t head, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const;

 private:
  struct Sizes {
    float key, value;  // the largest norms; not finite where an entry is not
  };
  Sizes sizes_of(const Sequence& s, int64_t head) const;
  bool sees_its_own_key(const Sequence& s, int64_t head, int64_t query) const;

  const uwaga_problem& p_;
  const Mask& mask_;
  const Kernels& kernels_;
  int64_t distances_ = 0;     // how many a head has
  std::vector<float> peaks_;  // of each head, the largest bias of every 64 distances
  std::vector<Sizes> sizes_;  // of each sequence and head
};

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_FAR_KEYS_H_
