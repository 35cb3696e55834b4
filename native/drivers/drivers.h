// The drivers: one function per operation of c_api.h. Each takes a problem that CheckedProblem let pass, divides it into
// tiles, and runs the kernels of the active instruction-set level on the caller's threads. All throw std::bad_alloc.
#ifndef UWAGA_DRIVERS_DRIVERS_H_
#define UWAGA_DRIVERS_DRIVERS_H_

#include <vector>

#include "uwaga/c_api.h"

namespace uwaga {

// Attention of every sequence and head, and the statistics of its rows where `statistics` is not null. Without an output,
// problem.value_width is 0. `sums`: the keys are one part of several.
void forward(const uwaga_problem& problem, const uwaga_forward_result& result,
             const uwaga_row_statistics* statistics = nullptr, const uwaga_forward_sums* sums = nullptr);

// The outputs and statistics of rows whose keys come in parts.
void rows_part(const uwaga_problem& problem, const uwaga_forward_result& result, const uwaga_row_statistics& statistics,
               const uwaga_row_sums& sums);

// The gradients of attention with respect to every operand that has a tensor in `args`.
void backward(const uwaga_problem& problem, const uwaga_backward_args& args, const uwaga_backward_sums& sums = {});

// Attention without softmax as Q (K^T V) instead of (Q K^T) V.
void linear_forward(const uwaga_problem& problem, const uwaga_forward_result& result);
// Why linear_forward cannot compute this problem, or null where it can.
const char* reason_to_refuse_linear(const uwaga_problem& problem);

// Entries, statistics and sums of the attention weights, which are never stored; see c_api.h.
void selected_rows(const uwaga_problem& problem, const uwaga_forward_result& result,
                   const uwaga_row_statistics& statistics, const uwaga_selection& selection);
void weights(const uwaga_problem& problem, const uwaga_softmax& softmax, const uwaga_selection& selection,
             const uwaga_integers& keys, const uwaga_tensor& out);
void mass(const uwaga_problem& problem, const uwaga_softmax& softmax, const std::vector<uwaga_mask_operation>& other,
          const uwaga_tensor& out, const uwaga_weight_sums& sums = {});
void received(const uwaga_problem& problem, const uwaga_softmax& softmax, const uwaga_tensor& row_weights,
              const uwaga_tensor& out, const uwaga_weight_sums& sums = {});
// Dense problems only. `part` not null: what is added to in place of the results.
void diagonal_sums(const uwaga_problem& problem, const uwaga_softmax& softmax, const uwaga_tensor& out,
                   const uwaga_exact_sums* part = nullptr);
void pool(const uwaga_problem& problem, const uwaga_softmax& softmax, const uwaga_pool_args& args,
          const uwaga_exact_sums* part = nullptr);

// A product of matrices with bias, activation and residual.
void matmul(const uwaga_matmul_args& args);
// Sums of rows with dropout and their norms, and the norm of a sum of embeddings.
void norm_forward(const uwaga_norm_args& args, const uwaga_norm_result& result);
void norm_backward(const uwaga_norm_args& args, const uwaga_norm_backward_args& backward);
void embed(const uwaga_embed_args& args);  // throws InvalidArgument where an index is not a row of its table
// Rotary positions of the heads of each token.
void rotate(const uwaga_rotate_args& args);

// Gradients through an activation.
void activation_backward(const uwaga_activation_backward_args& args);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_DRIVERS_H_
