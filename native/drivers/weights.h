// The attention weights as an array that is never stored: entries, and sums over parts of it. See c_api.h.
#ifndef UWAGA_DRIVERS_WEIGHTS_H_
#define UWAGA_DRIVERS_WEIGHTS_H_

#include <vector>

#include "uwaga/c_api.h"

namespace uwaga {

// All throw std::bad_alloc.
void selected_rows(const uwaga_problem& problem, const uwaga_forward_result& result,
                   const uwaga_row_statistics& statistics, const uwaga_selection& selection);
void weights(const uwaga_problem& problem, const uwaga_softmax& softmax, const uwaga_selection& selection,
             const uwaga_integers& keys, const uwaga_tensor& out);
void mass(const uwaga_problem& problem, const uwaga_softmax& softmax, const std::vector<uwaga_mask_operation>& other,
          const uwaga_tensor& out);
void received(const uwaga_problem& problem, const uwaga_softmax& softmax, const uwaga_tensor& row_weights,
              const uwaga_tensor& out);
void pool(const uwaga_problem& problem, const uwaga_softmax& softmax, const uwaga_pool_args& args);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_WEIGHTS_H_
