// The backward pass: five products per pair of a row block and a key block, in one pass.
//
// A unit is a sequence and a key head, with all query rows that attend to it. Its queries and output gradients are packed once;
// then each block of 64 keys is packed and multiplied with every row block that sees it, which completes its dK and dV. dQ is
// summed in float32. Keys are grouped into segments of 512: each segment's dQ starts from zero, and segments are added in
// order. So dQ associates in the same way whether one thread ran all segments (many units) or several threads did (few units).
#include "drivers/drivers.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "base/scratch.h"
#include "drivers/backward_unit.h"

namespace uwaga {
namespace {

// Gradients that several units add to: summed per unit first, then over the units in order.
struct SharedSums {
  float* relative;  // [heads of the unit][relative_head], or null
  float* sinks;     // [heads of the unit], or null
};

class Backward {
 public:
  Backward(const uwaga_problem& p, const uwaga_backward_args& args, const uwaga_backward_sums& sums)
      : p_(p),
        args_(args),
        sums_(sums),
        mask_(p),
        kernels_(*active_level()),
        threads_(useful_threads(p)),
        group_(p.query_heads / p.key_heads) {
    for (int64_t b = 0; b < p.sequences; ++b) {
      for (int64_t g = 0; g < p.key_heads; ++g) units_.push_back({b, g});
    }
    if (p.query_offsets.data ||
        p.key_offsets.data) {  // longest first: a long task at the end leaves other threads idle
      std::stable_sort(units_.begin(), units_.end(), [&](Unit a, Unit b) {
        const Sequence x = sequence_of(p, a.sequence), y = sequence_of(p, b.sequence);
        return x.queries * x.keys > y.queries * y.keys;
      });
    }
    if (args.grad_relative.data) relative_size_ = group_ * p.relative_head;
    if (args.grad_sinks.data) sinks_size_ = group_;
    shared_.assign(units_.size() * (relative_size_ + sinks_size_), 0.0f);
  }

  void run() {
    const int64_t units = static_cast<int64_t>(units_.size());
    if (units >= 4 * threads_ || units % threads_ == 0 || p_.keys <= kSegmentKeys) {
      parallel_for(threads_, units, [&](int64_t n, int) { run_unit(n); });
    } else {
      for (int64_t n = 0; n < units; ++n) run_split(n);
    }
    for (int64_t n = 0; n < units; ++n) add_shared(n);
  }

 private:
  SharedSums shared_sums(int64_t unit) {
    float* base = shared_.data() + unit * (relative_size_ + sinks_size_);
    return {relative_size_ ? base : nullptr, sinks_size_ ? base + relative_size_ : nullptr};
  }

  // One unit on one thread.
  void run_unit(int64_t unit) {
    UnitPass pass(p_, args_, sums_, mask_, kernels_, units_[unit]);
    const int64_t packed = pass.packed_size(), grads = rounded_up(pass.grad_query_size(), 16);
    thread_local Scratch scratch;
    const int64_t parts = pass.segments() > 1 || pass.continues_grad_query() ? grads : 0;
    float* base = scratch.reserve(packed + grads + parts + relative_size_);
    float *own = base + packed, *part = own + grads, *relative = relative_size_ ? part + parts : nullptr;
    float* total = pass.grad_query_sums() ? pass.grad_query_sums() : own;
    pass.set_memory(base);
    for (int64_t n = 0; n < pass.row_blocks(); ++n) pass.pack(n);
    const bool continues = pass.continues_grad_query();
    if (pass.segments() == 0 && !continues) std::fill(total, total + pass.grad_query_size(), 0.0f);
    for (int64_t n = 0; n < pass.segments(); ++n) {
      // The first segment is written to the total itself: zero plus it is the same.
      const bool is_first = n == 0 && !continues;
      run_segment(pass, n, is_first ? total : part, relative);
      if (!is_first) kernels_.add_to(total, part, pass.grad_query_size());
      add_relative(unit, relative);
    }
    if (args_.grad_sinks.data) pass.add_grad_sinks(shared_sums(unit).sinks);
    if (args_.grad_query.data) pass.write_grad_query(total, 0, pass.rows());
  }

  // One unit on all threads: as many segments at a time as there are threads, added in order.
  void run_split(int64_t unit) {
    UnitPass pass(p_, args_, sums_, mask_, kernels_, units_[unit]);
    const int64_t packed = pass.packed_size(), grads = rounded_up(pass.grad_query_size(), 16);
    const int64_t width = std::min<int64_t>(threads_, pass.segments());
    Scratch scratch;
    float* base = scratch.reserve(packed + grads + width * (grads + relative_size_) + 1);
    float *own = base + packed, *parts = own + grads, *relatives = parts + width * grads;
    float* total = pass.grad_query_sums() ? pass.grad_query_sums() : own;
    const auto relative_of = [&](int64_t k) { return relative_size_ ? relatives + k * relative_size_ : nullptr; };
    pass.set_memory(base);
    parallel_for(threads_, pass.row_blocks(), [&](int64_t n, int) { pass.pack(n); });
    if (!pass.continues_grad_query()) std::fill(total, total + pass.grad_query_size(), 0.0f);
    for (int64_t n = 0; n < pass.segments(); n += width) {
      const int64_t wave = std::min(width, pass.segments() - n);
      parallel_for(threads_, wave,
                   [&](int64_t k, int) { run_segment(pass, n + k, parts + k * grads, relative_of(k)); });
      for (int64_t k = 0; k < wave; ++k) {
        kernels_.add_to(total, parts + k * grads, pass.grad_query_size());
        add_relative(unit, relative_of(k));
      }
    }
    if (args_.grad_sinks.data) pass.add_grad_sinks(shared_sums(unit).sinks);
    if (!args_.grad_query.data) return;
    parallel_for(threads_, pass.row_blocks(), [&](int64_t n, int) {
      pass.write_grad_query(total, n * pass.block_rows(), std::min(pass.rows(), (n + 1) * pass.block_rows()));
    });
  }

  void run_segment(const UnitPass& pass, int64_t n, float* grad_query, float* relative) const {
    if (relative) std::fill(relative, relative + relative_size_, 0.0f);
    pass.run_segment(n, grad_query, relative);
  }

  void add_relative(int64_t unit, const float* relative) {
    float* sum = shared_sums(unit).relative;
    for (int64_t m = 0; relative && m < relative_size_; ++m) sum[m] += relative[m];
  }

  void add_shared(int64_t unit) {
    const SharedSums sums = shared_sums(unit);
    const int64_t head = units_[unit].key_head * group_;
    for (int64_t m = 0; m < relative_size_; ++m)
      args_.grad_relative.data[head * p_.relative_head + m] += sums.relative[m];
    for (int64_t m = 0; m < sinks_size_; ++m) args_.grad_sinks.data[head + m] += sums.sinks[m];
  }

  const uwaga_problem& p_;
  const uwaga_backward_args& args_;
  const uwaga_backward_sums& sums_;
  const Mask mask_;
  const Kernels& kernels_;
  const int threads_;
  const int64_t group_;  // query heads of a unit
  int64_t relative_size_ = 0, sinks_size_ = 0;
  std::vector<Unit> units_;
  std::vector<float> shared_;  // of each unit: relative, then sinks
};

}  // namespace

void backward(const uwaga_problem& problem, const uwaga_backward_args& args, const uwaga_backward_sums& sums) {
  Backward(problem, args, sums).run();
}

}  // namespace uwaga
