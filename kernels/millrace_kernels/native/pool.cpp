// Threads of our own, and the one call that runs a step.
//
// An operation is divided into units, and each thread takes one after the other. The thread that finishes the last unit
// opens the next operation. So no thread waits for another thread, only for a started unit: a thread that another
// process keeps from its core delays nothing.
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "../exchange/exchange.h"
#include "../sampling/sampling.h"
#include "program.h"
#include "spin_wait.h"

namespace MILLRACE_ISA {

constexpr int UNITS_PER_THREAD = 2;
constexpr int NUMBERS_PER_UNIT = 4096;

struct Job {
  Program* program;
  const Step* step;
  uint32_t begin, end;  // the numbers of its first operation, and of the first one after it
};

// The open operation: its number among all operations of the pool, its units, and the next free unit. A thread needs
// nothing else to take a unit, so no thread reads a job without having a unit of it.
struct Ticket {
  uint32_t operation;
  uint16_t num_units, next_unit;
};

struct alignas(64) Pool {
  int count;
  bool is_ending;
  pid_t owner;
  Job job;
  alignas(64) uint64_t ticket;
  alignas(64) uint32_t num_done;  // units of the open operation
  alignas(64) Signal<false> opened;  // after each change of the ticket
  pthread_t* threads;
  char** scratch;
};

INLINE Ticket read_ticket(Pool& pool, uint64_t* word) {
  *word = __atomic_load_n(&pool.ticket, __ATOMIC_ACQUIRE);
  Ticket ticket;
  memcpy(&ticket, word, sizeof(ticket));
  return ticket;
}

// Take the ticket's unit, unless another thread was faster or the operation is finished.
INLINE bool take_unit(Pool& pool, Ticket ticket, uint64_t word) {
  uint64_t taken;
  ticket.next_unit++;
  memcpy(&taken, &ticket, sizeof(taken));
  return __atomic_compare_exchange_n(&pool.ticket, &word, taken, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void run_unit(const Program& p, const Step& step, const Op& op, const Worker& w, bool is_forward) {
  int num_rows = is_forward ? step.num_tokens : step.num_emits;
  switch (op.kind) {
    case EMBED: return embed(p, step, op, w);
    case RMS_NORM: return rms_norm(p, op, num_rows, w);
    case LINEAR:
    case LINEAR_ADD:
    case LINEAR_SILU_MUL:
    case LINEAR_GELU_MUL: return linear(p, op, num_rows, w);
    case ROTARY_KV_WRITE: return rotary_kv_write(p, step, op, w);
    case ATTENTION: return attention(p, step, op, w);
    case SELECT: return select(p, step, op, w);
    case QUANTIZE: return quantize(p, op, num_rows, w);
    case ROUTE: return route(p, op, num_rows, w);
    case EXPERTS_SILU_MUL:
    case EXPERTS_SUM:
    case EXPERTS_ADD: return experts(p, op, num_rows, w);
    case SUM:
    case SUM_ADD: return sum_parts(p, op, num_rows, w);
    case GATHER: return gather_parts(p, op, num_rows, w);
    case ADD: return add_rows(p, op, num_rows, w);
    case SAMPLE: return sample(*(Sampling*)op.weight, w);
  }
}

// Units of row-wise operations: none so small that taking it costs more than computing it.
INLINE int64_t count_row_units(const Op& op, int num_rows, int num_threads) {
  int64_t numbers = (int64_t)num_rows * (op.x.width > op.y.width ? op.x.width : op.y.width);
  int64_t most = num_rows < num_threads ? num_rows : num_threads;
  return numbers / NUMBERS_PER_UNIT < most ? numbers / NUMBERS_PER_UNIT : most;
}

static uint16_t count_units(const Job& job, uint32_t operation, int num_threads) {
  const Op& op = job.program->ops[operation - job.begin];
  bool is_forward = operation - job.begin < (uint32_t)job.program->num_forward_ops;
  int64_t units = num_threads;
  switch (op.kind) {
    case LINEAR:
    case LINEAR_ADD:
    case LINEAR_SILU_MUL:
    case LINEAR_GELU_MUL:
    case EXPERTS_SILU_MUL:
    case EXPERTS_SUM:
    case EXPERTS_ADD:
    case ATTENTION: units = num_threads == 1 ? 1 : num_threads * UNITS_PER_THREAD; break;
    case SAMPLE: break;  // it has scratch memory for each unit
    default: units = count_row_units(op, is_forward ? job.step->num_tokens : job.step->num_emits, num_threads);
  }
  return units < 1 ? 1 : units > UINT16_MAX ? UINT16_MAX : units;
}

// Open an operation's units; none if the job is finished.
static void open_operation(Pool& pool, uint32_t operation) {
  bool is_over = operation == pool.job.end;
  // The previous operation is finished, so the other workers' input is complete.
  if (!is_over && is_exchange(pool.job.program->ops[operation - pool.job.begin])) arrive(*pool.job.program);
  Ticket ticket = {operation, is_over ? (uint16_t)0 : count_units(pool.job, operation, pool.count), 0};
  uint64_t word;
  memcpy(&word, &ticket, sizeof(word));
  __atomic_store_n(&pool.num_done, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.ticket, word, __ATOMIC_RELEASE);
  pool.opened.change();
}

static void do_unit(Pool& pool, Ticket ticket, char* scratch) {
  Program& program = *pool.job.program;
  uint32_t place = ticket.operation - pool.job.begin;
  Worker worker = {ticket.next_unit, ticket.num_units, scratch};
  run_unit(program, *pool.job.step, program.ops[place], worker, place < (uint32_t)program.num_forward_ops);
  if (__atomic_add_fetch(&pool.num_done, 1, __ATOMIC_ACQ_REL) < ticket.num_units) return;
  program.progress = program.progress + 1;
  open_operation(pool, ticket.operation + 1);
}

// Compute units until the operation `end` is open. For the pool's own threads it never is: they run to its end.
static void work(Pool& pool, char* scratch, const uint32_t* end) {
  for (;;) {
    uint32_t seen = pool.opened.read();
    uint64_t word;
    Ticket ticket = read_ticket(pool, &word);
    if (end != nullptr ? ticket.operation == *end : __atomic_load_n(&pool.is_ending, __ATOMIC_ACQUIRE)) return;
    if (ticket.next_unit == ticket.num_units) pool.opened.wait_past(seen);
    else if (take_unit(pool, ticket, word)) do_unit(pool, ticket, scratch);
  }
}

struct Start {
  Pool* pool;
  int index;
};

static void* serve(void* argument) {
  Start start = *(Start*)argument;
  free(argument);
  work(*start.pool, start.pool->scratch[start.index], nullptr);
  return nullptr;
}

}  // namespace MILLRACE_ISA

using namespace MILLRACE_ISA;

#define EXPORT extern "C" __attribute__((visibility("default")))

// End the first `count` threads, and free all memory.
static void end_threads(Pool* pool, int count) {
  __atomic_store_n(&pool->is_ending, true, __ATOMIC_RELEASE);
  pool->opened.change();
  for (int i = 1; i < count; i++) pthread_join(pool->threads[i], nullptr);
  for (int i = 0; i < pool->count; i++) free(pool->scratch[i]);
  free(pool->scratch), free(pool->threads), free(pool);
}

static bool start_thread(Pool* pool, int index) {
  Start* start = (Start*)malloc(sizeof(Start));
  if (start == nullptr) return false;
  *start = {pool, index};
  if (pthread_create(&pool->threads[index], nullptr, serve, start) == 0) return true;
  free(start);
  return false;
}

// Return a pool of `count` threads with the caller's, each with scratch memory; null if memory or threads run out.
EXPORT void* millrace_pool_new(int count, int64_t scratch_bytes) {
  Pool* pool = (Pool*)aligned_alloc(64, sizeof(Pool));
  char** scratch = (char**)calloc(count, sizeof(char*));
  pthread_t* threads = (pthread_t*)calloc(count, sizeof(pthread_t));
  bool has_room = pool != nullptr && scratch != nullptr && threads != nullptr;
  for (int i = 0; has_room && i < count; i++) {
    scratch[i] = (char*)aligned_alloc(64, (scratch_bytes + 63) / 64 * 64);
    has_room = scratch[i] != nullptr;
  }
  if (!has_room) {
    for (int i = 0; scratch != nullptr && i < count; i++) free(scratch[i]);
    free(pool), free(scratch), free(threads);
    return nullptr;
  }
  memset((void*)pool, 0, sizeof(Pool));
  pool->count = count, pool->owner = getpid(), pool->scratch = scratch, pool->threads = threads;
  for (int i = 1; i < count; i++)
    if (!start_thread(pool, i)) {
      end_threads(pool, i);
      return nullptr;
    }
  return pool;
}

// Do nothing in a forked process: the pool's threads do not exist there.
EXPORT void millrace_pool_free(void* handle) {
  Pool* pool = (Pool*)handle;
  if (pool->owner == getpid()) end_threads(pool, pool->count);
}

// Run a program's step on all threads; the caller is one of them.
EXPORT void millrace_run(void* handle, Program* program, const Step* step) {
  Pool& pool = *(Pool*)handle;
  uint64_t word;
  uint32_t begin = read_ticket(pool, &word).operation;
  uint32_t end = begin + (step->num_emits ? program->num_ops : program->num_forward_ops);
  pool.job = {program, step, begin, end};
  if (begin == end) return;
  open_operation(pool, begin);
  work(pool, pool.scratch[0], &end);
}
