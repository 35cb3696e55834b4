#include "base/parallel.h"

#include <system_error>
#include <thread>
#include <vector>

namespace uwaga {
namespace {

std::atomic<GompParallel> g_gomp_parallel{nullptr};

struct Team {
  void (*function)(void*, int);
  void* context;
  std::atomic<int> joined{0};
};

void join_team(void* raw) {
  Team& team = *static_cast<Team*>(raw);
  team.function(team.context, team.joined.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

void set_gomp_parallel(GompParallel function) { g_gomp_parallel.store(function); }

void run_on_threads(int threads, void (*function)(void*, int), void* context) {
  if (threads <= 1) return function(context, 0);
  Team team{function, context};
  if (const GompParallel gomp_parallel = g_gomp_parallel.load()) {
    return gomp_parallel(join_team, &team, static_cast<unsigned>(threads), 0);
  }
  std::vector<std::thread> others;
  for (int n = 1; n < threads; ++n) {
    try {
      others.emplace_back(join_team, &team);
    } catch (const std::system_error&) {
      break;  // the system gives no more: fewer threads do the same work
    }
  }
  join_team(&team);
  for (std::thread& other : others) other.join();
}

}  // namespace uwaga
