// The functions of c_api.h: each checks its arguments, calls a driver, and turns exceptions into a status and a message.
#include "uwaga/c_api.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/parallel.h"
#include "drivers/checked_problem.h"
#include "drivers/checked_rows.h"
#include "drivers/drivers.h"
#include "drivers/mask.h"

namespace {

thread_local char g_last_error[sizeof(uwaga::InvalidArgument)] = "";

int fail(int status, const char* message) {
  snprintf(g_last_error, sizeof g_last_error, "%s", message);
  return status;
}

// Runs work(), and turns what it throws into a status and a message.
template <class Work>
int run(const Work& work) {
  try {
    work();
  } catch (const uwaga::InvalidArgument& error) {
    return fail(UWAGA_BAD_ARGUMENT, error.message);
  } catch (const std::bad_alloc&) {
    return fail(UWAGA_OUT_OF_MEMORY, "out of memory");
  } catch (const std::length_error&) {
    return fail(UWAGA_OUT_OF_MEMORY, "out of memory");
  }
  return UWAGA_OK;
}

// Checks the problem, then runs work(CheckedProblem&).
template <class Work>
int run_checked(const uwaga_problem& problem, const Work& work, bool reads_values = true) {
  return run([&] {
    uwaga::CheckedProblem checked(problem, reads_values);
    work(checked);
  });
}

// The same for functions of the attention weights, which need a softmax and read neither values nor dropout.
template <class Work>
int run_without_values(const uwaga_problem& problem, const Work& work) {
  if (!problem.normalize) return fail(UWAGA_BAD_ARGUMENT, "attention weights need a softmax, and normalize is 0");
  uwaga_problem p = problem;
  p.dropout = 0.0f;
  return run_checked(p, work, false);
}

// The same for statistics of rows, which read values where an output is wanted.
template <class Work>
int run_rows(const uwaga_problem& problem, const uwaga_forward_result& result, const Work& work) {
  if (!result.output.data) return run_without_values(problem, work);
  if (!problem.normalize) return fail(UWAGA_BAD_ARGUMENT, "attention weights need a softmax, and normalize is 0");
  return run_checked(problem, work);
}

}  // namespace

extern "C" {

int uwaga_forward(const uwaga_problem* problem, const uwaga_forward_result* result) {
  return run_checked(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*result);
    uwaga::forward(checked.problem(), *result);
  });
}

int uwaga_backward(const uwaga_problem* problem, const uwaga_backward_args* args) {
  return run_checked(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*args);
    uwaga::backward(checked.problem(), *args);
  });
}

int uwaga_forward_part(const uwaga_problem* problem, const uwaga_forward_result* result,
                       const uwaga_forward_sums* sums) {
  return run_checked(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*sums);
    if (result->output.data) checked.check(*result);
    if (result->lse.data && !result->output.data) uwaga::invalid_argument("lse: there is none without an output");
    uwaga::forward(checked.problem(), *result, nullptr, sums);
  });
}

int uwaga_backward_part(const uwaga_problem* problem, const uwaga_backward_args* args,
                        const uwaga_backward_sums* sums) {
  return run_checked(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*args);
    checked.check(*sums);
    uwaga::backward(checked.problem(), *args, *sums);
  });
}

int uwaga_linear_forward(const uwaga_problem* problem, const uwaga_forward_result* result) {
  return run_checked(*problem, [&](uwaga::CheckedProblem& checked) {
    if (const char* reason = uwaga::reason_to_refuse_linear(checked.problem())) uwaga::invalid_argument("%s", reason);
    checked.check(*result);
    uwaga::linear_forward(checked.problem(), *result);
  });
}

int uwaga_rows(const uwaga_problem* problem, const uwaga_forward_result* result, const uwaga_row_statistics* statistics,
               const uwaga_selection* selection) {
  return run_rows(*problem, *result, [&](uwaga::CheckedProblem& checked) {
    checked.check(*result);
    const uwaga_row_statistics wanted = checked.checked(*statistics);
    if (selection) return uwaga::selected_rows(checked.problem(), *result, wanted, checked.checked(*selection));
    uwaga::forward(checked.problem(), *result, &wanted);
  });
}

int uwaga_weights(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_selection* selection,
                  const uwaga_integers* keys, const uwaga_tensor* out) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    const uwaga_selection chosen = checked.checked(*selection);
    const uwaga_integers rising = checked.checked_keys(*keys);
    checked.check_entries(*out, chosen, rising);
    uwaga::weights(checked.problem(), *softmax, chosen, rising, *out);
  });
}

int uwaga_mass(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_mask_operation* other,
               int64_t other_operations, const uwaga_tensor* out) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    checked.check_per_query("mass", *out);
    uwaga::mass(checked.problem(), *softmax, checked.checked_mask(other, other_operations), *out);
  });
}

int uwaga_received(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_tensor* row_weights,
                   const uwaga_tensor* out) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    if (row_weights->data) checked.check_per_query("weights of the rows", *row_weights);
    checked.check_per_key("received weights", *out);
    uwaga::received(checked.problem(), *softmax, *row_weights, *out);
  });
}

int uwaga_diagonal_sums(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_tensor* out) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    checked.check_per_diagonal("sums of the diagonals", *out);
    uwaga::diagonal_sums(checked.problem(), *softmax, *out);
  });
}

int uwaga_rows_part(const uwaga_problem* problem, const uwaga_forward_result* result,
                    const uwaga_row_statistics* statistics, const uwaga_row_sums* sums) {
  return run_rows(*problem, *result, [&](uwaga::CheckedProblem& checked) {
    checked.check(*result);
    const uwaga_row_statistics wanted = checked.checked(*statistics);
    checked.check(*sums, wanted.top);
    uwaga::rows_part(checked.problem(), *result, wanted, *sums);
  });
}

int uwaga_mass_part(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_mask_operation* other,
                    int64_t other_operations, const uwaga_tensor* out, const uwaga_weight_sums* sums) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    checked.check(*sums, checked.problem().queries);
    if (out->data) checked.check_per_query("mass", *out);
    uwaga::mass(checked.problem(), *softmax, checked.checked_mask(other, other_operations), *out, *sums);
  });
}

int uwaga_received_part(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_tensor* row_weights,
                        const uwaga_tensor* out, const uwaga_weight_sums* sums) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    checked.check(*sums, checked.problem().keys);
    if (row_weights->data) checked.check_per_query("weights of the rows", *row_weights);
    if (out->data) checked.check_per_key("received weights", *out);
    uwaga::received(checked.problem(), *softmax, *row_weights, *out, *sums);
  });
}

int uwaga_pool(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_pool_args* args) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    uwaga::pool(checked.problem(), *softmax, checked.checked(*args));
  });
}

int uwaga_diagonal_sums_part(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_exact_sums* sums) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    const uwaga_problem& p = checked.problem();
    checked.check(*sums, std::max<int64_t>(p.queries + p.keys - 1, 0));
    uwaga::diagonal_sums(p, *softmax, {}, sums);
  });
}

int uwaga_pool_part(const uwaga_problem* problem, const uwaga_softmax* softmax, const uwaga_pool_args* args,
                    const uwaga_exact_sums* sums) {
  return run_without_values(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check(*softmax);
    if (args->how != UWAGA_POOL_MASS) uwaga::invalid_argument("exact sums are those of UWAGA_POOL_MASS");
    const uwaga_pool_args given = checked.checked(*args, false);
    checked.check(*sums, given.rows * given.columns);
    uwaga::pool(checked.problem(), *softmax, given, sums);
  });
}

int uwaga_matmul(const uwaga_matmul_args* args) {
  return run([&] {
    uwaga::check(*args);
    uwaga::matmul(*args);
  });
}

int uwaga_activation_backward(const uwaga_activation_backward_args* args) {
  return run([&] {
    uwaga::check(*args);
    uwaga::activation_backward(*args);
  });
}

int uwaga_norm_forward(const uwaga_norm_args* args, const uwaga_norm_result* result) {
  return run([&] {
    uwaga::check(*args, *result);
    uwaga::norm_forward(*args, *result);
  });
}

int uwaga_norm_backward(const uwaga_norm_args* args, const uwaga_norm_backward_args* backward) {
  return run([&] {
    uwaga::check(*args, *backward);
    uwaga::norm_backward(*args, *backward);
  });
}

int uwaga_embed(const uwaga_embed_args* args) {
  return run([&] {
    uwaga::check(*args);
    uwaga::embed(*args);
  });
}

int uwaga_rotate(const uwaga_rotate_args* args) {
  return run([&] {
    uwaga::check(*args);
    uwaga::rotate(*args);
  });
}

const char* uwaga_last_error(void) { return g_last_error; }

int uwaga_mask_block(const uwaga_problem* problem, int64_t b, int64_t h, int64_t i0, int64_t i1, int64_t j0,
                     int64_t j1) {
  int found = -1;
  run_checked(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check_block(b, h, i0, i1, j0, j1);
    const uwaga::Mask mask(checked.problem());
    found = static_cast<int>(mask.block(uwaga::sequence_of(checked.problem(), b), i0, i1, j0, j1));
  });
  return found;
}

uint64_t uwaga_mask_bits(const uwaga_problem* problem, int64_t b, int64_t h, int64_t i, int64_t j0) {
  uint64_t bits = 0;
  run_checked(*problem, [&](uwaga::CheckedProblem& checked) {
    checked.check_block(b, h, i, i + 1, j0, j0 + 1);
    const uwaga::Mask mask(checked.problem());
    const uwaga::Sequence s = uwaga::sequence_of(checked.problem(), b);
    bits = mask.bits(s, h, i, j0, static_cast<int>(s.keys - j0 < 64 ? s.keys - j0 : 64));
  });
  return bits;
}

int uwaga_abi_version(void) { return UWAGA_ABI_VERSION; }

const int64_t* uwaga_struct_layout(const char* name) {
#define AT(field) static_cast<int64_t>(offsetof(T, field))
#define LAYOUT(type, ...)                                                               \
  {                                                                                     \
    using T = type;                                                                     \
    static const int64_t layout[] = {static_cast<int64_t>(sizeof(T)), __VA_ARGS__, -1}; \
    if (strcmp(name, #type) == 0) return layout;                                        \
  }
  LAYOUT(uwaga_integers, AT(data), AT(count))
  LAYOUT(uwaga_floats, AT(data), AT(count))
  LAYOUT(uwaga_tensor, AT(data), AT(bytes), AT(batch), AT(head), AT(row), AT(column), AT(dtype), AT(reserved))
  LAYOUT(uwaga_start, AT(mode), AT(reserved), AT(value), AT(starts))
  LAYOUT(uwaga_mask_operation, AT(operation), AT(reserved), AT(start), AT(low), AT(high), AT(ids), AT(query_ids),
         AT(id_batch), AT(query_id_batch), AT(bits), AT(bytes), AT(batch), AT(head), AT(row), AT(column))
  LAYOUT(uwaga_pages, AT(table), AT(row_of_table), AT(rows), AT(count))
  LAYOUT(uwaga_problem, AT(sequences), AT(query_heads), AT(key_heads), AT(queries), AT(keys), AT(query_width),
         AT(value_width), AT(query_tokens), AT(key_tokens), AT(query_offsets), AT(key_offsets), AT(query), AT(key),
         AT(value), AT(mask), AT(mask_operations), AT(scale), AT(softcap), AT(relative), AT(relative_head),
         AT(relative_zero), AT(relative_start), AT(bias), AT(sinks), AT(normalize), AT(threads), AT(dropout),
         AT(reserved), AT(seed), AT(rows), AT(dropout_query), AT(dropout_key), AT(key_pages))
  LAYOUT(uwaga_forward_result, AT(output), AT(lse))
  LAYOUT(uwaga_softmax, AT(maximum), AT(sum))
  LAYOUT(uwaga_row_statistics, AT(softmax), AT(entropy), AT(squares), AT(distance), AT(distance_start), AT(top),
         AT(top_weights), AT(top_positions))
  LAYOUT(uwaga_selection, AT(sequences), AT(heads), AT(queries))
  LAYOUT(uwaga_pool_args, AT(how), AT(reserved), AT(query_edges), AT(key_edges), AT(rows), AT(columns), AT(cells),
         AT(positions), AT(position_count))
  LAYOUT(uwaga_backward_args, AT(output), AT(grad_output), AT(lse), AT(grad_lse), AT(grad_query), AT(grad_key),
         AT(grad_value), AT(grad_relative), AT(grad_sinks), AT(grad_bias))
  LAYOUT(uwaga_forward_sums, AT(sums), AT(continues), AT(reserved))
  LAYOUT(uwaga_backward_sums, AT(grad_query), AT(grad_key), AT(grad_value), AT(continues_queries), AT(continues_keys))
  LAYOUT(uwaga_row_sums, AT(sums), AT(continues), AT(is_last))
  LAYOUT(uwaga_weight_sums, AT(data), AT(count), AT(continues), AT(reserved))
  LAYOUT(uwaga_exact_sums, AT(data), AT(count), AT(head))
  LAYOUT(uwaga_matmul_args, AT(rows), AT(columns), AT(depth), AT(a), AT(b), AT(bias), AT(residual), AT(preactivation),
         AT(out), AT(activation), AT(threads))
  LAYOUT(uwaga_activation_backward_args, AT(rows), AT(width), AT(activation), AT(threads), AT(input), AT(grad_output),
         AT(grad_input))
  LAYOUT(uwaga_norm_args, AT(rows), AT(width), AT(x), AT(added), AT(weight), AT(bias), AT(dtype), AT(kind), AT(epsilon),
         AT(dropout), AT(seed), AT(threads), AT(reserved))
  LAYOUT(uwaga_norm_result, AT(output), AT(sum))
  LAYOUT(uwaga_norm_backward_args, AT(grad_output), AT(grad_sum), AT(grad_x), AT(grad_added), AT(grad_weight),
         AT(grad_bias))
  LAYOUT(uwaga_lookup, AT(table), AT(table_rows), AT(indices))
  LAYOUT(uwaga_embed_args, AT(rows), AT(width), AT(tokens), AT(types), AT(positions), AT(weight), AT(bias), AT(output),
         AT(epsilon), AT(threads))
  LAYOUT(uwaga_rotate_args, AT(rows), AT(heads), AT(width), AT(pairs), AT(positions), AT(x), AT(out), AT(cos), AT(sin),
         AT(threads), AT(reserved))
#undef LAYOUT
#undef AT
  return nullptr;
}

const char* uwaga_level_name(int index) {
  const uwaga::Kernels* level = uwaga::level_at(index);
  return level ? level->name : nullptr;
}
int uwaga_level_supported(int index) { return uwaga::level_supported(index); }
const char* uwaga_level(void) { return uwaga::active_level()->name; }
int uwaga_set_level(const char* name) {
  return uwaga::set_level(name)
             ? UWAGA_OK
             : fail(UWAGA_BAD_ARGUMENT, "this processor supports no instruction-set level of that name");
}

void uwaga_set_gomp_parallel(uwaga_gomp_parallel function) { uwaga::set_gomp_parallel(function); }

double uwaga_measure_peak(int threads, double seconds) {
  const uwaga::Kernels& kernels = *uwaga::active_level();
  using clock = std::chrono::steady_clock;
  std::vector<double> rates(threads > 0 ? threads : 0, 0.0);
  uwaga::parallel_for(threads, threads, [&](int64_t n, int) {
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
