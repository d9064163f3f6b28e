// Threads of our own, and the one call that runs a step.
//
// A thread that waits spins for 50 microseconds at most and then sleeps: a step has some hundred barriers, so sleeping
// at each costs milliseconds (a futex wake is 10 to 50 µs). While it spins it offers its core to whoever waits for one,
// every microsecond: what it waits for may be just that. Without the offer two replicas on the same cores were
// together 0.6 times as fast as one alone.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../sampling/sampling.h"
#include "program.h"

namespace MILLRACE_ISA {

constexpr int64_t SPIN_NANOSECONDS = 50000;
constexpr int PAUSES_BETWEEN_OFFERS = 64;

INLINE int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

INLINE void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A number that others wait for to change.
struct Signal {
  uint32_t value = 0, num_asleep = 0;

  uint32_t read() { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }

  void change() {
    __atomic_add_fetch(&value, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&num_asleep, __ATOMIC_SEQ_CST))
      syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }

  void wait_past(uint32_t old) {
    int64_t until = 0;
    for (int turn = 1; read() == old; turn++) {
      pause();
      if (turn % PAUSES_BETWEEN_OFFERS) continue;
      sched_yield();
      if (until == 0) until = now() + SPIN_NANOSECONDS;
      else if (now() > until) break;
    }
    __atomic_add_fetch(&num_asleep, 1, __ATOMIC_SEQ_CST);
    while (read() == old) syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    __atomic_sub_fetch(&num_asleep, 1, __ATOMIC_SEQ_CST);
  }
};

struct Job {
  Program* program;
  const Step* step;
};

struct alignas(64) Pool {
  int count;
  bool is_ending;
  Job job;
  alignas(64) Signal begun;
  alignas(64) Signal passed;
  alignas(64) uint32_t num_arrived;
  pthread_t* threads;
  char** scratch;
};

static void barrier(Pool& pool) {
  if (pool.count == 1) return;
  uint32_t old = pool.passed.read();
  if (__atomic_add_fetch(&pool.num_arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)pool.count) {
    __atomic_store_n(&pool.num_arrived, 0, __ATOMIC_RELAXED);
    pool.passed.change();
  } else {
    pool.passed.wait_past(old);
  }
}

static void run_op(const Program& p, const Step& step, const Op& op, const Worker& w, bool is_forward) {
  int num_rows = is_forward ? step.num_tokens : step.num_emits;
  switch (op.kind) {
    case EMBED: return embed(p, step, op, w);
    case RMS_NORM: return rms_norm(p, op, num_rows, w);
    case LINEAR:
    case LINEAR_ADD:
    case LINEAR_SILU_MUL: return linear(p, op, num_rows, w);
    case ROTARY_KV_WRITE: return rotary_kv_write(p, step, op, w);
    case ATTENTION: return attention(p, step, op, w);
    case SELECT: return select(p, step, op, w);
    case QUANTIZE: return quantize(p, op, num_rows, w);
    case SAMPLE: return sample(*(Sampling*)op.weight, w);
  }
}

static void run_job(Pool& pool, const Worker& w) {
  Program& program = *pool.job.program;
  const Step& step = *pool.job.step;
  int num_ops = step.num_emits ? program.num_ops : program.num_forward_ops;
  for (int i = 0; i < num_ops; i++) {
    run_op(program, step, program.ops[i], w, i < program.num_forward_ops);
    barrier(pool);
    if (w.index == 0) program.progress = program.progress + 1;
  }
}

struct Start {
  Pool* pool;
  int index;
};

static void* serve(void* argument) {
  Start start = *(Start*)argument;
  free(argument);
  Pool& pool = *start.pool;
  Worker w = {start.index, pool.count, pool.scratch[start.index]};
  for (uint32_t seen = 0;; seen++) {
    pool.begun.wait_past(seen);
    if (pool.is_ending) return nullptr;
    run_job(pool, w);
  }
}

}  // namespace MILLRACE_ISA

using namespace MILLRACE_ISA;

#define EXPORT extern "C" __attribute__((visibility("default")))

// End the first `count` threads, and give back all memory.
static void end_threads(Pool* pool, int count) {
  pool->is_ending = true;
  pool->begun.change();
  for (int i = 1; i < count; i++) pthread_join(pool->threads[i], nullptr);
  for (int i = 0; i < pool->count; i++) free(pool->scratch[i]);
  free(pool->scratch), free(pool->threads), free(pool);
}

// Return a pool of `count` threads, the caller's included, with so much scratch memory for each; null without room.
EXPORT void* millrace_pool_new(int count, int64_t scratch_bytes) {
  Pool* pool = (Pool*)aligned_alloc(64, sizeof(Pool));
  memset((void*)pool, 0, sizeof(Pool));
  pool->count = count;
  pool->scratch = (char**)calloc(count, sizeof(char*));
  pool->threads = (pthread_t*)calloc(count, sizeof(pthread_t));
  for (int i = 0; i < count; i++) pool->scratch[i] = (char*)aligned_alloc(64, (scratch_bytes + 63) / 64 * 64);
  for (int i = 1; i < count; i++) {
    Start* start = (Start*)malloc(sizeof(Start));
    *start = {pool, i};
    if (pthread_create(&pool->threads[i], nullptr, serve, start) != 0) {
      free(start);
      end_threads(pool, i);
      return nullptr;
    }
  }
  return pool;
}

EXPORT void millrace_pool_free(void* handle) {
  Pool* pool = (Pool*)handle;
  end_threads(pool, pool->count);
}

// Run a program's step on all threads; the caller is one of them.
EXPORT void millrace_run(void* handle, Program* program, const Step* step) {
  Pool& pool = *(Pool*)handle;
  pool.job = {program, step};
  pool.begun.change();
  run_job(pool, {0, pool.count, pool.scratch[0]});
}
