#ifndef UWAGA_DRIVERS_LINEAR_H_
#define UWAGA_DRIVERS_LINEAR_H_

#include "uwaga/c_api.h"

namespace uwaga {

// Why normalize = 0 cannot be reassociated for this problem, or null where it can.
const char* reason_to_refuse_linear(const uwaga_problem& problem);

// (Q K^T) V as Q (K^T V). Throws std::bad_alloc.
void linear_forward(const uwaga_problem& problem, const uwaga_forward_result& result);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_LINEAR_H_
