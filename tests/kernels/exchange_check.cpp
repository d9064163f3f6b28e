// Workers, here threads with a pool each, whose steps exchange numbers that each of them can foresee.
#include <stdio.h>

#include "exchange/cpu.cpp"
#include "native/pool.cpp"

namespace MILLRACE_ISA {

constexpr int MOST_WORKERS = 4, NUM_ROWS = 3, WIDTH = 20, NUM_PARTS = 3, NUM_STEPS = 3000;
constexpr int64_t STRIDE = 128, PART = NUM_ROWS * STRIDE;
constexpr int FIRST_COLUMN[] = {0, 5, 12, 25, 30};  // of each worker's in what is gathered: uneven shares

static int failures;

// What a worker writes: different in each step and for each operation.
static float number(int64_t step, const Op& op, int worker) { return step % 1000 * 64 + op.layer * 8 + worker; }

// Every product and look-up fills its part with its number. The step's number stands where a position would.
static void fill(const Program& p, const Op& op, int num_rows, const Worker& w, int64_t step) {
  Share mine = share(num_rows, w);
  for (int r = mine.begin; r < mine.end; r++)
    for (int i = 0; i < op.y.width; i++) row<float>(p, op.y, r)[i] = number(step, op, p.exchange->index);
}

struct Numbered {
  Program program;
  int64_t step;
};
INLINE int64_t step_of(const Program& p) { return ((const Numbered*)&p)->step; }

void embed(const Program& p, const Step& step, const Op& op, const Worker& w) {
  fill(p, op, step.num_tokens, w, step_of(p));
}
void linear(const Program& p, const Op& op, int num_rows, const Worker& w) { fill(p, op, num_rows, w, step_of(p)); }
void rms_norm(const Program&, const Op&, int, const Worker&) {}
void quantize(const Program&, const Op&, int, const Worker&) {}
void rotary_kv_write(const Program&, const Step&, const Op&, const Worker&) {}
void attention(const Program&, const Step&, const Op&, const Worker&) {}
void route(const Program&, const Op&, int, const Worker&) {}
void experts(const Program&, const Op&, int, const Worker&) {}
void select(const Program&, const Step&, const Op&, const Worker&) {}
void add_rows(const Program&, const Op&, int, const Worker&) {}
void sample(Sampling&, const Worker&) {}

struct Team {
  int count, num_threads;
  char* memory;
  Arrivals* arrivals;
};
struct Member {
  Team* team;
  int index;
};

static float sum_of(const Team& team, int64_t step, const Op& op) {
  float total = 0;
  for (int worker = 0; worker < team.count; worker++) total += number(step, op, worker);
  return total;
}

static void expect(bool is_so) {
  if (!is_so) __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
}

static void* run_worker(void* argument) {
  Member self = *(Member*)argument;
  const Team& team = *self.team;
  Exchange exchange = {team.memory, NUM_PARTS * PART, team.arrivals, self.index, team.count};
  alignas(64) char workspace[2][PART];
  char* mine = team.memory + self.index * exchange.worker_bytes;
  int width = FIRST_COLUMN[self.index + 1] - FIRST_COLUMN[self.index];
  auto part = [&](int place, int columns) { return Rows{mine - workspace[0] + place * PART, STRIDE, columns, FLOAT32}; };
  auto read = [&](int place, int columns) { return Rows{place * PART, STRIDE, columns, FLOAT32}; };
  Rows sums = {0, STRIDE, WIDTH, FLOAT32}, gathered = {PART, STRIDE, FIRST_COLUMN[team.count], FLOAT32};
  Op ops[8] = {};
  int kinds[] = {EMBED, SUM, LINEAR, SUM_ADD, LINEAR, SUM_ADD, LINEAR, GATHER}, places[] = {2, 0, 1, 0};
  for (int i = 0; i < 8; i++) {
    int columns = i < 6 ? WIDTH : width;
    ops[i].kind = kinds[i], ops[i].layer = i / 2, ops[i].weight = FIRST_COLUMN;
    ops[i].x = i % 2 ? read(places[i / 2], columns) : part(places[i / 2], columns);
    ops[i].y = i % 2 == 0 ? part(places[i / 2], columns) : i < 6 ? sums : gathered;
  }
  Numbered numbered = {};
  Program& program = numbered.program;
  program.ops = ops, program.num_ops = 8, program.num_forward_ops = 6;
  program.workspace = workspace[0], program.exchange = &exchange;
  void* pool = millrace_pool_new(team.num_threads, 64);
  for (int i = 0; i < NUM_STEPS; i++) {
    numbered.step = i;
    Step step = {};
    step.num_tokens = NUM_ROWS, step.num_emits = i % 3 ? 0 : NUM_ROWS;
    if ((i * 7 + self.index * 3) % 11 == 0) usleep(50);  // now this one is behind, now another
    millrace_run(pool, &program, &step);
    float total = sum_of(team, i, ops[1]) + sum_of(team, i, ops[3]) + sum_of(team, i, ops[5]);
    for (int r = 0; r < NUM_ROWS; r++) expect(row<float>(program, sums, r)[WIDTH - 1] == total);
    for (int worker = 0; step.num_emits && worker < team.count; worker++)
      expect(row<float>(program, gathered, NUM_ROWS - 1)[FIRST_COLUMN[worker]] == number(i, ops[6], worker));
  }
  millrace_pool_free(pool);
  return nullptr;
}

static int run_team(int count, int num_threads) {
  Team team = {count, num_threads, nullptr, nullptr};
  team.memory = (char*)aligned_alloc(64, count * NUM_PARTS * PART);
  team.arrivals = (Arrivals*)aligned_alloc(64, count * sizeof(Arrivals));
  memset((void*)team.arrivals, 0, count * sizeof(Arrivals));
  for (int i = 0; i < count; i++) team.arrivals[i].count.value = UINT32_MAX - 100;  // it wraps around
  Member members[MOST_WORKERS];
  pthread_t threads[MOST_WORKERS];
  for (int i = 0; i < count; i++) {
    members[i] = {&team, i};
    pthread_create(&threads[i], nullptr, run_worker, &members[i]);
  }
  for (int i = 0; i < count; i++) pthread_join(threads[i], nullptr);
  free(team.memory), free(team.arrivals);
  return failures;
}

}  // namespace MILLRACE_ISA

int main() {
  for (int count = 2; count <= MOST_WORKERS; count++)
    for (int num_threads = 1; num_threads <= 2; num_threads++)
      if (int found = run_team(count, num_threads))
        return printf("%d workers of %d threads: %d failures\n", count, num_threads, found), 1;
  return printf("clean\n"), 0;
}
