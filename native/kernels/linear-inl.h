// The products of linear attention: states k^T v, and queries times states. Included inside the level's
// namespace.

// Packed rows give the left operand too: within a strip, entry r of row n lies at n * kStrip + r.
inline void add_outer_product(float* state, const float* a, const float* b, int count, int depth, int rows_width,
                              int width) {
  const int64_t room = (int64_t{rows_width} + kStrip - 1) / kStrip * kStrip;
  for_strips(width, [&](auto v, int w) {
    for (int d0 = 0; d0 < rows_width; d0 += kStrip) {
      for (int r = 0; r < kStrip && d0 + r < rows_width; r += kTileRows) {
        const int left = kStrip - r < kTileRows ? kStrip - r : kTileRows;
        with_row_count(left, [&](auto rows) {
          product_strip<FloatProduct, rows.value, v.value, 1, kStrip>(a + int64_t{d0} * depth + r,
                                                                      b + int64_t{w} * depth, count, nullptr,
                                                                      state + w * room + (d0 + r) * kStrip, kStrip);
        });
      }
    }
  });
}

inline void add_tile_product(float* out, int64_t out_row, const float* tile, const float* state, int rows, int depth,
                             int width) {
  const int64_t room = (int64_t{depth} + kStrip - 1) / kStrip * kStrip;
  with_row_count(rows, [&](auto r) {
    for_strips(width, [&](auto v, int w) {
      product_strip<FloatProduct, r.value, v.value, 1, kTileRows>(tile, state + w * room, depth, nullptr, out + w,
                                                                  out_row);
    });
  });
}
