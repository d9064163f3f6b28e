// The pool with operations that only keep books: every unit is done once, after all of the operation before.
#include <stdio.h>

#include <initializer_list>

#include "native/pool.cpp"

namespace MILLRACE_ISA {

constexpr int MOST_UNITS = 64;
static int num_units;  // of an operation that is shared
static int times_done[MOST_UNITS];
static int failures;

// Even layers count themselves unit by unit; odd ones, of one unit, look at what the layer before left behind.
static void keep_books(const Op& op, const Worker& w) {
  w.scratch[0]++;
  if (op.layer % 2 == 0) {
    times_done[w.index]++;
    sched_yield();  // else one thread does all before another comes
    return;
  }
  for (int i = 0; i < MOST_UNITS; i++) {
    failures += times_done[i] != (i < num_units);
    times_done[i] = 0;
  }
}

void embed(const Program&, const Step&, const Op& op, const Worker& w) { keep_books(op, w); }
void rms_norm(const Program&, const Op& op, int, const Worker& w) { keep_books(op, w); }
void linear(const Program&, const Op& op, int, const Worker& w) { keep_books(op, w); }
void quantize(const Program&, const Op& op, int, const Worker& w) { keep_books(op, w); }
void rotary_kv_write(const Program&, const Step&, const Op& op, const Worker& w) { keep_books(op, w); }
void attention(const Program&, const Step&, const Op& op, const Worker& w) { keep_books(op, w); }
void route(const Program&, const Op& op, int, const Worker& w) { keep_books(op, w); }
void experts(const Program&, const Op& op, int, const Worker& w) { keep_books(op, w); }
void select(const Program&, const Step&, const Op& op, const Worker& w) { keep_books(op, w); }
void sum_parts(const Program&, const Op& op, int, const Worker& w) { keep_books(op, w); }
void gather_parts(const Program&, const Op& op, int, const Worker& w) { keep_books(op, w); }
void add_rows(const Program&, const Op& op, int, const Worker& w) { keep_books(op, w); }
void sample(Sampling&, const Worker&) {}

// Run steps of six operations, of which only the emitting ones run the last two; return the failures.
static int run_steps(int num_threads, int num_steps) {
  void* pool = millrace_pool_new(num_threads, 64);
  num_units = num_threads == 1 ? 1 : UNITS_PER_THREAD * num_threads;
  Op ops[6] = {};
  for (int i = 0; i < 6; i++) ops[i].kind = i % 2 ? RMS_NORM : LINEAR, ops[i].layer = i;
  Program program = {ops, 6, 4, nullptr, nullptr, 0, 0};
  int64_t expected = 0;
  for (int i = 0; i < num_steps; i++) {
    Step step = {};
    step.num_tokens = 1, step.num_emits = i % 3 == 0;
    millrace_run(pool, &program, &step);
    expected += step.num_emits ? 6 : 4;
    failures += program.progress != expected;
    if (i % 50 == 0) usleep(200);  // long enough for the threads to sleep
  }
  millrace_pool_free(pool);
  return failures;
}

}  // namespace MILLRACE_ISA

int main() {
  for (int num_threads : {1, 2, 3, 5})
    if (int found = run_steps(num_threads, 1000)) return printf("%d threads: %d failures\n", num_threads, found), 1;
  return printf("clean\n"), 0;
}
