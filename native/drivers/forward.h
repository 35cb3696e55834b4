#ifndef UWAGA_DRIVERS_FORWARD_H_
#define UWAGA_DRIVERS_FORWARD_H_

#include "uwaga/c_api.h"

namespace uwaga {

// Attention of every sequence and head of `problem`, which has been found servable, and what its rows come to where
// `wanted` is not null; without an output, problem.value_width is 0. Throws std::bad_alloc.
void forward(const uwaga_problem& problem, const uwaga_forward_result& result,
             const uwaga_row_statistics* wanted = nullptr);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_FORWARD_H_
