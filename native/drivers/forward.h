#ifndef UWAGA_DRIVERS_FORWARD_H_
#define UWAGA_DRIVERS_FORWARD_H_

#include "uwaga/c_api.h"

namespace uwaga {

// Attention of every sequence and head of `problem`, which has been found servable. Throws std::bad_alloc.
void forward(const uwaga_problem& problem, const uwaga_forward_result& result);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_FORWARD_H_
