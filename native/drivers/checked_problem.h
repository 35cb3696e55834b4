// Validation of the arguments of c_api.h: every size, stride, offset and position is checked against the memory that its
// operand has. Small arrays of int64 are copied first, so that another thread cannot change them after the check.
//
// The drivers rely on it: no file below checks a size, a stride, an offset or a position again.
#ifndef UWAGA_DRIVERS_CHECKED_PROBLEM_H_
#define UWAGA_DRIVERS_CHECKED_PROBLEM_H_

#include <stdint.h>

#include <deque>
#include <vector>

#include "drivers/problem.h"

namespace uwaga {

// Thrown by every check: what is wrong with the call, for uwaga_last_error().
struct InvalidArgument {
  char message[160];
};
[[noreturn]] __attribute__((format(printf, 1, 2))) void invalid_argument(const char* format, ...);

class CheckedProblem {
 public:
  // Checks and copies. All functions of this class throw InvalidArgument, and those that copy std::bad_alloc.
  // `reads_values`: whether the call reads `given.value`; otherwise it is not checked and problem() has none.
  CheckedProblem(const uwaga_problem& given, bool reads_values);
  CheckedProblem(const CheckedProblem&) = delete;  // the problem points into the copies

  // The problem, with pointers to the copies of its offsets, lengths, starts and selected rows.
  const uwaga_problem& problem() const { return p_; }

  // A float32 tensor (B, H, Q) or (B, H, K), packed if the problem's operands are, fits into its memory.
  void check_per_query(const char* name, const uwaga_tensor& t) const;
  void check_per_key(const char* name, const uwaga_tensor& t) const;
  // Of a dense problem: a float32 tensor (B, H, Q + K - 1) fits into its memory.
  void check_per_diagonal(const char* name, const uwaga_tensor& t) const;

  void check(const uwaga_forward_result& result) const;
  void check(const uwaga_softmax& softmax) const;
  void check(const uwaga_backward_args& args) const;
  void check(const uwaga_forward_sums& sums) const;
  void check(const uwaga_backward_sums& sums) const;
  void check(const uwaga_row_sums& sums, int64_t top) const;
  // So many sums of each head.
  void check(const uwaga_weight_sums& sums, int64_t of_head) const;
  void check(const uwaga_exact_sums& sums, int64_t of_head) const;
  // These return copies.
  uwaga_row_statistics checked(const uwaga_row_statistics& statistics);
  uwaga_selection checked(const uwaga_selection& selection);
  uwaga_pool_args checked(const uwaga_pool_args& args, bool writes_cells = true);
  uwaga_integers checked_keys(const uwaga_integers& keys);
  std::vector<uwaga_mask_operation> checked_mask(const uwaga_mask_operation* operations, int64_t count);
  // A float32 tensor (selected sequences, heads, queries, keys) fits into its memory.
  void check_entries(const uwaga_tensor& out, const uwaga_selection& selection, const uwaga_integers& keys) const;

  // Sequence b, head h, queries [i0, i1) and keys [j0, j1) exist, and there is at least one of each.
  void check_block(int64_t b, int64_t h, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const;

 private:
  // The problem can be one part of several, which the sums of `name` go through.
  void check_part(const char* name) const;
  // A (B, H, Q, columns) or (B, heads, K, columns) tensor fits into its memory.
  void check_query_rows(const char* name, const uwaga_tensor& t, int64_t columns, int entry_size) const;
  void check_key_rows(const char* name, const uwaga_tensor& t, int64_t heads, int64_t columns, int entry_size) const;
  uwaga_integers copy_of(const char* name, const uwaga_integers& numbers, int64_t count);
  uwaga_integers checked_offsets(const char* name, const uwaga_integers& offsets, int64_t tokens, int64_t longest);
  uwaga_integers checked_edges(const char* name, const uwaga_integers& edges, int64_t bins, bool of_queries);
  uwaga_integers checked_increasing(const char* name, const uwaga_integers& numbers, int64_t size);
  uwaga_start checked_start(const char* name, const uwaga_start& start);
  void check_sizes(bool reads_values) const;
  void check_relative() const;
  void check_documents(const uwaga_mask_operation& op) const;
  void check_pages(bool reads_values);

  uwaga_problem p_;
  int64_t max_queries_ = 0, max_keys_ = 0;  // of any sequence
  std::vector<uwaga_mask_operation> mask_;
  std::deque<std::vector<int64_t>> copies_;
};

// Throws InvalidArgument.
void check(const uwaga_matmul_args& args);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_CHECKED_PROBLEM_H_
