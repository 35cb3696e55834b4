inline void backward_tile(const BackwardTile&, const Block&, const ScoreRule&) {}
inline void product_rows(const Product&) {}
inline void product_columns(const Product&) {}
inline void add_to(float*, const float*, int64_t) {}
