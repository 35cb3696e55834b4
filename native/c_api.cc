// The C boundary: checks, calls the drivers, turns what they throw into a status and a sentence.
#include "uwaga/c_api.h"

#include <chrono>
#include <new>
#include <vector>

#include "base/parallel.h"
#include "drivers/backward.h"
#include "drivers/forward.h"
#include "drivers/linear.h"
#include "drivers/mask.h"
#include "drivers/problem.h"
#include "drivers/weights.h"

namespace {

thread_local const char* g_last_error = "";

int fail(int status, const char* sentence) {
  g_last_error = sentence;
  return status;
}

template <class Work>
int serve(const uwaga_problem& problem, const Work& work, bool reads_values = true) {
  if (const char* reason = uwaga::reason_to_refuse(problem, reads_values)) return fail(UWAGA_BAD_ARGUMENT, reason);
  try {
    work();
  } catch (const std::bad_alloc&) {
    return fail(UWAGA_OUT_OF_MEMORY, "out of memory");
  }
  return UWAGA_OK;
}

// Work on weights, which reads no value.
template <class Work>
int serve_weights(const uwaga_problem& problem, const char* reason, const Work& work) {
  if (reason) return fail(UWAGA_BAD_ARGUMENT, reason);
  if (!problem.normalize) return fail(UWAGA_BAD_ARGUMENT, "there are no attention weights without softmax");
  uwaga_problem p = problem;
  p.value_width = 0;
  p.value = {};
  p.dropout = 0.0f;
  return serve(p, [&] { work(p); }, false);
}

}  // namespace

extern "C" {

int uwaga_forward(const uwaga_problem* problem, const uwaga_forward_result* result) {
  return serve(*problem, [&] { uwaga::forward(*problem, *result); });
}

int uwaga_backward(const uwaga_problem* problem, const uwaga_backward_args* args) {
  if (problem->rows) return fail(UWAGA_BAD_ARGUMENT, "the backward pass takes all rows");
  return serve(*problem, [&] { uwaga::backward(*problem, *args); });
}

int uwaga_linear_forward(const uwaga_problem* problem, const uwaga_forward_result* result) {
  if (const char* reason = uwaga::reason_to_refuse(*problem)) return fail(UWAGA_BAD_ARGUMENT, reason);
  if (const char* reason = uwaga::reason_to_refuse_linear(*problem)) return fail(UWAGA_BAD_ARGUMENT, reason);
  return serve(*problem, [&] { uwaga::linear_forward(*problem, *result); });
}

int uwaga_rows(const uwaga_problem* problem, const uwaga_forward_result* result,
               const uwaga_row_statistics* statistics, const uwaga_selection* selection) {
  if (!problem->normalize) return fail(UWAGA_BAD_ARGUMENT, "there are no attention weights without softmax");
  if (statistics->top < 0 || statistics->top > INT32_MAX) return fail(UWAGA_BAD_ARGUMENT, "a number of largest weights is negative");
  const char* reason = selection ? uwaga::reason_to_refuse_selection(*problem, *selection) : nullptr;
  const auto work = [&](const uwaga_problem& p) {
    if (selection) return uwaga::selected_rows(p, *result, *statistics, *selection);
    uwaga::forward(p, *result, statistics);
  };
  if (!result->output.data) return serve_weights(*problem, reason, work);
  if (reason) return fail(UWAGA_BAD_ARGUMENT, reason);
  return serve(*problem, [&] { work(*problem); });
}

int uwaga_weights(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_selection* selection,
                  const int64_t* keys, int64_t key_count, const uwaga_tensor* out) {
  const char* reason = uwaga::reason_to_refuse_selection(*problem, *selection);
  if (!reason) reason = uwaga::reason_to_refuse_keys(*problem, keys, key_count);
  return serve_weights(*problem, reason, [&](const uwaga_problem& p) {
    uwaga::weights(p, *softmax, *selection, keys, key_count, *out);
  });
}

int uwaga_mass(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_mask_operation* other,
               int64_t other_operations, const uwaga_tensor* out) {
  uwaga_problem under_other = *problem;
  under_other.mask = other;
  under_other.mask_operations = other_operations;
  const char* reason = uwaga::reason_to_refuse(under_other, false);
  return serve_weights(*problem, reason, [&](const uwaga_problem& p) {
    uwaga::mass(p, *softmax, other, other_operations, *out);
  });
}

int uwaga_received(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_tensor* row_weights,
                   const uwaga_tensor* out) {
  return serve_weights(*problem, nullptr,
                       [&](const uwaga_problem& p) { uwaga::received(p, *softmax, *row_weights, *out); });
}

int uwaga_pool(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_pool_args* args) {
  const char* reason = uwaga::reason_to_refuse(*problem, false);
  if (!reason) reason = uwaga::reason_to_refuse_pool(*problem, *args);
  return serve_weights(*problem, reason, [&](const uwaga_problem& p) { uwaga::pool(p, *softmax, *args); });
}

const char* uwaga_last_error(void) { return g_last_error; }

int uwaga_mask_block(const uwaga_problem* problem, int64_t b, int64_t, int64_t i0, int64_t i1, int64_t j0,
                     int64_t j1) {
  int found = -1;
  serve(*problem, [&] {
    const uwaga::Mask mask(*problem);
    found = static_cast<int>(mask.block(uwaga::sequence_of(*problem, b), i0, i1, j0, j1));
  });
  return found;
}

uint64_t uwaga_mask_bits(const uwaga_problem* problem, int64_t b, int64_t h, int64_t i, int64_t j0) {
  uint64_t bits = 0;
  serve(*problem, [&] {
    const uwaga::Mask mask(*problem);
    const uwaga::Sequence s = uwaga::sequence_of(*problem, b);
    const int64_t count = s.keys - j0 < 64 ? s.keys - j0 : 64;
    if (count > 0) bits = mask.bits(s, h, i, j0, static_cast<int>(count));
  });
  return bits;
}

int uwaga_abi_version(void) { return UWAGA_ABI_VERSION; }
int64_t uwaga_problem_size(void) { return sizeof(uwaga_problem); }

const char* uwaga_level_name(int index) {
  const uwaga::Kernels* level = uwaga::level_at(index);
  return level ? level->name : nullptr;
}
int uwaga_level_possible(int index) { return uwaga::level_possible(index); }
const char* uwaga_level(void) { return uwaga::active_level()->name; }
int uwaga_set_level(const char* name) {
  return uwaga::set_level(name) ? UWAGA_OK : fail(UWAGA_BAD_ARGUMENT, "this machine has no such instruction-set level");
}

void uwaga_set_gomp_parallel(uwaga_gomp_parallel function) { uwaga::set_gomp_parallel(function); }

double uwaga_measure_peak(int threads, double seconds) {
  const uwaga::Kernels& kernels = *uwaga::active_level();
  using clock = std::chrono::steady_clock;
  std::vector<double> rates(threads > 0 ? threads : 0, 0.0);
  uwaga::for_pieces(threads, threads, [&](int64_t n, int) {
    const auto begin = clock::now();
    double flops = 0.0, passed = 0.0;
    do {
      flops += kernels.peak_flops(100000);
      passed = std::chrono::duration<double>(clock::now() - begin).count();
    } while (passed < seconds);
    rates[n] = flops / passed;
  });
  double total = 0.0;
  for (const double rate : rates) total += rate;
  return total / 1e9;
}

}  // extern "C"
