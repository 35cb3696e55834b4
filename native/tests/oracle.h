// The oracle: attention by its definition, in double precision, over the same structs that the library takes.
//
// A `Call` owns the operands of one problem, in any layout, and computes the weights and output of each row, together with a
// bound of the rounding error of float32 arithmetic.
#ifndef UWAGA_TESTS_ORACLE_H_
#define UWAGA_TESTS_ORACLE_H_

#include <deque>
#include <memory>
#include <vector>

#include "tests/check.h"

namespace uwaga_tests {

inline uwaga_integers integers(const std::vector<int64_t>& numbers) {
  return {numbers.data(), static_cast<int64_t>(numbers.size())};
}
// The library takes pointers to non-const; it writes to gradients alone.
inline uwaga_floats floats(const std::vector<float>& numbers) {
  return {const_cast<float*>(numbers.data()), static_cast<int64_t>(numbers.size())};
}

struct Shape {
  int64_t sequences = 1, query_heads = 1, key_heads = 1, query_width = 8, value_width = 8;
  bool ragged = false;
  std::vector<int64_t> queries, keys;  // per sequence; all equal where not ragged
  int64_t longest(const std::vector<int64_t>& lengths) const;
  static int64_t offset(const std::vector<int64_t>& lengths, int64_t b);
};
Shape dense_shape(int64_t b, int64_t h, int64_t g, int64_t q, int64_t k, int64_t d, int64_t e);
Shape ragged_shape(int64_t h, int64_t g, std::vector<int64_t> queries, std::vector<int64_t> keys, int64_t d, int64_t e);

// A mask program with the memory that it points to.
class MaskProgram {
 public:
  explicit MaskProgram(const Shape& shape) : shape_(shape) {}
  void band(int64_t low, int64_t high, int mode = UWAGA_START_LAST, int64_t value = 0);
  void band_per_row(int64_t low, int64_t high, std::vector<int64_t> starts);
  void lengths(std::vector<int64_t> lengths);
  void documents(Random& random, int64_t mean_length, bool own_query_ids, bool sorted);
  void dense(Random& random, double visible);
  void dense(const std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)>& sees);
  void join(int operation);
  // A program of up to `leaves` random atoms.
  void randomize(Random& random, int leaves);

  bool sees(int64_t b, int64_t h, int64_t i, int64_t j) const;
  const std::vector<uwaga_mask_operation>& operations() const { return operations_; }

 private:
  bool atom_sees(const uwaga_mask_operation& op, int64_t b, int64_t h, int64_t i, int64_t j) const;
  const Shape& shape_;
  std::vector<uwaga_mask_operation> operations_;
  std::deque<std::vector<int64_t>> numbers_;
  std::deque<std::vector<uint8_t>> bytes_;
};

struct Options {
  int dtype = UWAGA_FLOAT32;
  int value_dtype = -1;  // as dtype
  int layout = 0;        // 0: rows of a head together, 1: heads of a token together, 2: columns apart, 3: rows apart
  double scale = 0.3, softcap = 0.0, dropout = 0.0, spread = 1.0;  // spread: size of the entries
  bool softmax = true, relative = false, bias = false, sinks = false;
  int threads = 1;
  uint64_t seed = 1;
};

// A (B, H, rows, columns) operand in memory of its own; ragged: one batch, packed rows.
class Operand {
 public:
  Operand(int dtype, const Shape& shape, int64_t heads, const std::vector<int64_t>& rows, int64_t columns, int layout);
  uwaga_tensor tensor() const;
  double get(int64_t b, int64_t h, int64_t row, int64_t column) const { return array_.get(index(b, h, row, column)); }
  void set(int64_t b, int64_t h, int64_t row, int64_t column, double x) { array_.set(index(b, h, row, column), x); }
  Array& array() { return array_; }
  const Array& array() const { return array_; }

 private:
  int64_t index(int64_t b, int64_t h, int64_t row, int64_t column) const;
  bool ragged_;
  std::vector<int64_t> rows_;
  int64_t batch_, head_, row_, column_;
  Array array_;
};

// The softmax of one row, and bounds of its error in float32.
struct RowWeights {
  std::vector<double> weights;         // after softmax, before dropout; 0 where hidden
  std::vector<double> relative_error;  // of each weight
  std::vector<double> dropped;         // weights after dropout, which multiply the values
  std::vector<double> softcap_grad;    // derivative of the softcap at each score
  double lse, lse_error;
  bool sees_any;
};

class Call {
 public:
  Call(const Shape& shape, const Options& options);
  Call(const Call&) = delete;  // the mask program points at the shape

  uwaga_problem problem() const;
  // Both fill `output` and `lse`, or the gradients, and return the library's status.
  int forward();
  int backward();
  void randomize_grad_output();

  bool sees(int64_t b, int64_t h, int64_t i, int64_t j) const;
  RowWeights row_weights(int64_t b, int64_t h, int64_t i) const;
  // Compares the results of forward() (and then backward()) with the oracle.
  void check_forward(bool pairs = false) const;
  void check_linear() const;  // as check_forward, for sums in any order
  void check_backward() const;

  Shape shape;
  Options options;
  MaskProgram mask;
  Operand query, key, value, output, lse;
  Operand grad_output, grad_lse, grad_query, grad_key, grad_value;
  std::unique_ptr<Operand> bias, grad_bias;
  std::vector<float> relative, grad_relative, sinks, grad_sinks;
  int64_t relative_zero = 0, relative_length = 0;

 private:
  double raw_score(int64_t b, int64_t h, int64_t i, int64_t j, double* magnitude) const;
  bool keeps(int64_t b, int64_t h, int64_t i, int64_t j) const;
  int64_t relative_index(int64_t b, int64_t h, int64_t i, int64_t j) const;
  std::vector<int64_t> query_offsets_, key_offsets_;
};

// Calls f(b, h, i) for every query row.
template <class Function>
void for_rows(const Shape& shape, const Function& f) {
  for (int64_t b = 0; b < shape.sequences; ++b) {
    for (int64_t h = 0; h < shape.query_heads; ++h) {
      for (int64_t i = 0; i < shape.queries[b]; ++i) f(b, h, i);
    }
  }
}

}  // namespace uwaga_tests
#endif  // UWAGA_TESTS_ORACLE_H_
