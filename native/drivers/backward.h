#ifndef UWAGA_DRIVERS_BACKWARD_H_
#define UWAGA_DRIVERS_BACKWARD_H_

#include "uwaga/c_api.h"

namespace uwaga {

// Gradients of attention with respect to everything that `args` has room for. Throws std::bad_alloc.
void backward(const uwaga_problem& problem, const uwaga_backward_args& args);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_BACKWARD_H_
