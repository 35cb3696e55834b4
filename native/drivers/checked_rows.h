// Validation of the functions of c_api.h on rows of numbers, which are no attention: as checked_problem.h does it.
#ifndef UWAGA_DRIVERS_CHECKED_ROWS_H_
#define UWAGA_DRIVERS_CHECKED_ROWS_H_

#include "uwaga/c_api.h"

namespace uwaga {

// All throw InvalidArgument.
void check(const uwaga_activation_backward_args& args);
void check(const uwaga_norm_args& args, const uwaga_norm_result& result);
void check(const uwaga_norm_args& args, const uwaga_norm_backward_args& backward);
// Indices are checked when they are read.
void check(const uwaga_embed_args& args);
void check(const uwaga_rotate_args& args);

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_CHECKED_ROWS_H_
