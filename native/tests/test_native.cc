// The native tests: kernels of every level compared with loops in double precision, the drivers with the oracle (oracle.h).
//
//     native_tests [--list] [--filter SUBSTRING]
//
// One line per group of checks, named SUITE/GROUP; --filter runs the groups whose name has the substring, --list only names
// them. The exit status is 0 where at least one group ran and all of them passed.
#include "tests/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <chrono>

namespace uwaga_tests {
namespace {

constexpr int kShownFailures = 5;
int g_passed_groups = 0, g_failed_groups = 0;
int64_t g_checks = 0, g_failures = 0;
bool g_only_list = false;
std::string g_suite, g_filter;

struct Suite {
  const char* name;
  void (*run)();
};
const Suite kSuites[] = {{"kernels", test_kernels},   {"masks", test_masks}, {"forward", test_forward},
                         {"backward", test_backward}, {"bits", test_bits},   {"matmul", test_matmul},
                         {"weights", test_weights},   {"norms", test_norms}, {"rotary", test_rotary},
                         {"pages", test_pages}};

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

void group(const std::string& group_name, const std::function<void()>& body) {
  const std::string name = g_suite + "/" + group_name;
  if (name.find(g_filter) == std::string::npos) return;
  if (g_only_list) {
    ++g_passed_groups;
    printf("%s\n", name.c_str());
    return;
  }
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

int run_suites(int count, char** arguments) {
  for (int n = 1; n < count; ++n) {
    if (!strcmp(arguments[n], "--list")) {
      g_only_list = true;
    } else if (!strcmp(arguments[n], "--filter") && n + 1 < count) {
      g_filter = arguments[++n];
    } else {
      fprintf(stderr, "usage: native_tests [--list] [--filter SUBSTRING]\n");
      return 2;
    }
  }
  for (const Suite& suite : kSuites) {
    g_suite = suite.name;
    suite.run();
  }
  if (!g_only_list) printf("%d passed, %d failed\n", g_passed_groups, g_failed_groups);
  if (g_passed_groups + g_failed_groups == 0) fprintf(stderr, "no group's name has '%s'\n", g_filter.c_str());
  return g_failed_groups == 0 && g_passed_groups > 0 ? 0 : 1;
}

}  // namespace uwaga_tests

int main(int count, char** arguments) { return uwaga_tests::run_suites(count, arguments); }
