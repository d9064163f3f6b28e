// Memory that the workers of one machine share, in which each writes and all read. README.md says why one wait is
// enough for each exchange.
#pragma once

#include "../native/program.h"
#include "../native/signal.h"

namespace MILLRACE_ISA {

// How many exchanges a worker has arrived at, on a cache line of its own.
struct alignas(64) Arrivals {
  Signal<true> count;
};

// Field for field as in `native/abi.py`.
struct Exchange {
  char* memory;          // the workers', one after the other
  int64_t worker_bytes;
  Arrivals* arrivals;    // by worker
  int32_t index, count;  // which worker this is, of how many
};

INLINE bool is_exchange(const Op& op) { return op.kind == SUM || op.kind == SUM_ADD || op.kind == GATHER; }

// Tell the others that this worker's part of an exchange is written.
INLINE void arrive(const Program& p) { p.exchange->arrivals[p.exchange->index].count.change(); }

}  // namespace MILLRACE_ISA
