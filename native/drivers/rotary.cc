// Rotary positions of the heads of each token.
#include "drivers/drivers.h"
#include "drivers/rows.h"
#include "kernels/kernels.h"

namespace uwaga {

void rotate(const uwaga_rotate_args& args) {
  const Kernels& kernels = *active_level();
  for_row_ranges(args.threads, args.rows, rows_per_task(args.heads * args.width), [&](int64_t first, int64_t last) {
    RotateRow row{};
    row.heads = args.heads, row.width = args.width, row.pairs = args.pairs, row.dtype = args.x.dtype;
    for (int64_t n = first; n < last; ++n) {
      const int64_t position = n % args.positions;
      row.x = row_of(args.x, n), row.out = row_of(args.out, n);
      row.cos = reinterpret_cast<const float*>(row_of(args.cos, position));
      row.sin = reinterpret_cast<const float*>(row_of(args.sin, position));
      kernels.rotate_row(row);
    }
  });
}

}  // namespace uwaga
