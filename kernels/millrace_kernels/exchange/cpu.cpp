// Combines all workers' parts: their sum in the order of the workers, or their columns side by side.
#include "exchange.h"

namespace MILLRACE_ISA {

// Wait until all workers have written their parts of this worker's present exchange.
static void await_others(const Exchange& e) {
  uint32_t mine = e.arrivals[e.index].count.read();
  for (int worker = 0; worker < e.count; worker++) {
    Signal<true>& theirs = e.arrivals[worker].count;
    for (uint32_t seen = theirs.read(); (int32_t)(seen - mine) < 0; seen = theirs.read()) theirs.wait_past(seen);
  }
}

INLINE const float* part(const Exchange& e, int worker, const Rows& rows, int64_t r) {
  return (const float*)(e.memory + worker * e.worker_bytes + rows.offset + r * rows.stride);
}

static void sum_row(const Exchange& e, const Op& op, int64_t r, float* y) {
  for (int i = 0; i < op.y.width; i += LANES) {
    int n = op.y.width - i;
    Floats total = load(part(e, 0, op.x, r) + i, n);
    for (int worker = 1; worker < e.count; worker++) total = add(total, load(part(e, worker, op.x, r) + i, n));
    store(y + i, op.kind == SUM_ADD ? add(load(y + i, n), total) : total, n);
  }
}

void sum_parts(const Program& p, const Op& op, int num_rows, const Worker& w) {
  await_others(*p.exchange);
  Share mine = share(num_rows, w);
  for (int r = mine.begin; r < mine.end; r++) sum_row(*p.exchange, op, r, row<float>(p, op.y, r));
}

void gather_parts(const Program& p, const Op& op, int num_rows, const Worker& w) {
  const Exchange& e = *p.exchange;
  const int32_t* first = (const int32_t*)op.weight;
  await_others(e);
  Share mine = share(num_rows, w);
  for (int r = mine.begin; r < mine.end; r++)
    for (int worker = 0; worker < e.count; worker++)
      memcpy(row<float>(p, op.y, r) + first[worker], part(e, worker, op.x, r),
             sizeof(float) * (first[worker + 1] - first[worker]));
}

}  // namespace MILLRACE_ISA
