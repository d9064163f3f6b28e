// Memory shared by the workers of one machine: each writes its part, all read. README.md explains why one wait for
// each exchange is enough.
#pragma once

#include "../native/program.h"
#include "../native/spin_wait.h"

namespace MILLRACE_ISA {

// The number of exchanges that a worker has reached, on a cache line of its own.
struct alignas(64) Arrivals {
  Signal<true> count;
};

// Field for field as in `native/abi.py`.
struct Exchange {
  char* memory;          // of the workers, one after the other
  int64_t worker_bytes;
  Arrivals* arrivals;    // by worker
  int32_t index, count;  // this worker's number, and the number of workers
};

INLINE bool is_exchange(const Op& op) { return op.kind == SUM || op.kind == SUM_ADD || op.kind == GATHER; }

// Signal that this worker's part of an exchange is written.
INLINE void arrive(const Program& p) { p.exchange->arrivals[p.exchange->index].count.change(); }

}  // namespace MILLRACE_ISA
