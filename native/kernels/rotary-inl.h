// Rotary positions: pairs of numbers of each head, rotated. Included inside the level's namespace.
//
// Two products and a sum, each rounded: the bits of the same operations one after another, wherever a number stands.

template <class T>
inline void rotate_row_of(const RotateRow& row) {
  const T* x = static_cast<const T*>(row.x);
  T* out = static_cast<T*>(row.out);
  for (int64_t head = 0; head < row.heads; ++head, x += row.width, out += row.width) {
    for (int64_t w = 0; w < row.pairs; w += kLanes) {
      const int64_t left = row.pairs - w;
      const F a = load_up_to(x + w, left), b = load_up_to(x + row.pairs + w, left);
      const F cos = load_up_to(row.cos + w, left), sin = load_up_to(row.sin + w, left);
      store_up_to(out + w, sub(mul(a, cos), mul(b, sin)), left);
      store_up_to(out + row.pairs + w, add(mul(b, cos), mul(a, sin)), left);
    }
    for (int64_t w = 2 * row.pairs; w < row.width; ++w) out[w] = x[w];
  }
}

inline void rotate_row(const RotateRow& row) {
  with_type(row.dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    rotate_row_of<T>(row);
  });
}
