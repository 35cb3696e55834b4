// One head of one sequence as a dense problem of its own: what looks at weights head by head works on these.
#ifndef UWAGA_DRIVERS_HEAD_H_
#define UWAGA_DRIVERS_HEAD_H_

#include <stdint.h>

#include <vector>

#include "drivers/problem.h"

namespace uwaga {

class Head {
 public:
  Head(const uwaga_problem& whole, int64_t b, int64_t h);
  Head(const Head&) = delete;  // the problem points at the mask
  const uwaga_problem& problem() const { return problem_; }
  // The same head under another mask; it must outlive the result's use.
  uwaga_problem under(const std::vector<uwaga_mask_operation>& mask) const;
  // A start of the whole problem as this head sees it.
  uwaga_start start_of_sequence(const uwaga_start& start) const;
  // The operations of a mask of the whole problem as this head sees them.
  std::vector<uwaga_mask_operation> mask_of(const uwaga_mask_operation* operations, int64_t count) const;
  // A (B, H, Q, ...) or (B, H, K, ...) tensor of the whole problem from this head's first query or key on.
  uwaga_tensor query_rows(const uwaga_tensor& t, int64_t entry_size) const;
  uwaga_tensor key_rows(const uwaga_tensor& t, int64_t entry_size) const;

 private:
  uwaga_tensor rows(uwaga_tensor t, bool packed, int64_t offset, int64_t entry_size) const;
  const uwaga_problem& whole_;
  const Sequence s_;
  const int64_t h_;
  std::vector<uwaga_mask_operation> mask_;
  uwaga_problem problem_;
};

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_HEAD_H_
