// Gradients through activations, number by number.
#include "drivers/drivers.h"
#include "drivers/rows.h"
#include "kernels/kernels.h"

namespace uwaga {

void activation_backward(const uwaga_activation_backward_args& args) {
  const Kernels& kernels = *active_level();
  const int64_t width = args.width;
  const bool adjacent = args.input.row == width && args.grad_output.row == width && args.grad_input.row == width;
  for_row_ranges(args.threads, args.rows, rows_per_task(width), [&](int64_t first, int64_t last) {
    const int64_t step = adjacent ? last - first : 1;
    for (int64_t row = first; row < last; row += step) {
      kernels.activation_gradient(row_of(args.grad_input, row), row_of(args.input, row), row_of(args.grad_output, row),
                                  args.input.dtype, args.activation, step * width);
    }
  });
}

}  // namespace uwaga
