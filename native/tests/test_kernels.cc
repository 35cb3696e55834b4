// Every kernel of every level, each compared with a loop in double precision.
#include "tests/kernels/fixture.h"

namespace uwaga_tests {

void test_kernels() {
  for_levels([](const Kernels& k) {
    test_activations(k);
    test_packing(k);
    test_forward_tiles(k);
    test_backward_tiles(k);
    test_products(k);
    test_rows(k);
    test_weights_tiles(k);
  });
}

}  // namespace uwaga_tests
