// Evaluation of mask programs: whether a block of queries and keys is empty, full or partial, and which keys a query sees.
#ifndef UWAGA_DRIVERS_MASK_H_
#define UWAGA_DRIVERS_MASK_H_

#include <stdint.h>

#include <vector>

#include "drivers/problem.h"

namespace uwaga {

enum class Visibility { kEmpty = 0, kPartial = 1, kFull = 2 };

struct KeyRange {
  int64_t first, last;
};

class Mask {
 public:
  explicit Mask(const uwaga_problem& problem);

  bool sees_all() const { return problem_.mask_operations == 0; }
  // Of queries [i0, i1) against keys [j0, j1) of one sequence, for every head.
  Visibility block(const Sequence& s, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const;
  // A range of keys outside which queries [i0, i1) see none; it need not be the smallest one.
  KeyRange key_range(const Sequence& s, int64_t i0, int64_t i1) const;
  // Bit n: whether query i sees key j0 + n, for n < count <= 64.
  uint64_t bits(const Sequence& s, int64_t h, int64_t i, int64_t j0, int count) const;
  // The same for some grouped rows.
  void bits_of_rows(const Sequence& s, const GroupedRow* rows, int row_count, int64_t j0, int count,
                    uint64_t* bits) const;

 private:
  // Smallest and largest document id of each 64 positions: blocks of different documents are found empty without reading ids.
  struct IdRange {
    int64_t low, high;
  };
  struct IdBlocks {
    std::vector<int64_t> first_block;  // per sequence
    std::vector<IdRange> ranges;
    void append(const int64_t* ids, int64_t count);
    // The range of ids of all 64-position blocks that overlap positions [first, last) of a sequence.
    IdRange cover(int64_t sequence, int64_t first, int64_t last) const;
  };
  struct Documents {
    IdBlocks keys, queries;  // queries stay empty where their ids are the keys'
  };

  IdRange query_cover(const Documents& documents, const Sequence& s, int64_t i0, int64_t i1) const;
  Visibility documents_block(const Documents& documents, const Sequence& s, IdRange queries, int64_t j0,
                             int64_t j1) const;
  KeyRange documents_key_range(const Documents& documents, const Sequence& s, IdRange queries) const;

  const uwaga_problem& problem_;
  std::vector<Documents> documents_;  // one per operation, empty where it is of another kind
};

}  // namespace uwaga
#endif  // UWAGA_DRIVERS_MASK_H_
