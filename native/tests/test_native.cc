// The native tests: every kernel of every level against loops in double precision, the drivers against attention as it
// is written down. One line per group of checks; the exit status says whether all passed.
#include "tests/check.h"

#include <stdarg.h>
#include <stdio.h>

#include <chrono>

namespace uwaga_tests {
namespace {

constexpr int kShownFailures = 5;
int g_passed_groups = 0, g_failed_groups = 0;
int64_t g_checks = 0, g_failures = 0;

}  // namespace

bool expect(bool holds, const char* format, ...) {
  ++g_checks;
  if (holds) return true;
  if (++g_failures <= kShownFailures) {
    va_list arguments;
    va_start(arguments, format);
    printf("    ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
  }
  return false;
}

void group(const std::string& name, const std::function<void()>& body) {
  g_checks = g_failures = 0;
  const auto begin = std::chrono::steady_clock::now();
  body();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const bool passed = g_failures == 0 && g_checks > 0;
  ++(passed ? g_passed_groups : g_failed_groups);
  printf("%s %-58s %9lld checks, %lld failed, %.2f s\n", passed ? "ok  " : "FAIL", name.c_str(),
         static_cast<long long>(g_checks), static_cast<long long>(g_failures), seconds);
  fflush(stdout);
}

int failed_groups() { return g_failed_groups; }
int passed_groups() { return g_passed_groups; }

}  // namespace uwaga_tests

int main() {
  using namespace uwaga_tests;
  test_kernels();
  test_masks();
  test_forward();
  test_backward();
  test_bits();
  test_weights();
  printf("%d passed, %d failed\n", passed_groups(), failed_groups());
  return failed_groups() == 0 ? 0 : 1;
}
