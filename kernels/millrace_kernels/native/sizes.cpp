// The sizes of memory and structures that Python must use, in the order of abi.py. Loading a library compares them.
#include "../exchange/exchange.h"
#include "../linear/quantized.h"
#include "../paged_attention/cache.h"
#include "../sampling/sampling.h"
#include "program.h"

using namespace MILLRACE_ISA;

extern "C" __attribute__((visibility("default"))) void millrace_sizes(int32_t* sizes) {
  const int32_t all[] = {sizeof(Matrix),     sizeof(Op),       sizeof(Step), sizeof(Exchange), sizeof(Program),
                         sizeof(Sampling),   sizeof(Group),    sizeof(Parameters),
                         sizeof(Arrivals),   LANES,            GROUP,        BLOCK,
                         SLACK,              TASK_ROWS,        TILE,         SPAN,             SUMS,
                         EXPERT_ROWS,        (int32_t)WIDE_BYTES};
  memcpy(sizes, all, sizeof(all));
}
