// y += x, row by row: y is float32, and x float32 or bfloat16.
#include "../native/program.h"

namespace MILLRACE_ISA {

template <typename T>
static void add_row(const T* x, float* y, int width) {
  for (int i = 0; i < width; i += LANES) {
    int n = width - i;
    store(y + i, add(load(y + i, n), load(x + i, n)), n);
  }
}

void add_rows(const Program& p, const Op& op, int num_rows, const Worker& w) {
  Share mine = share(num_rows, w);
  for (int r = mine.begin; r < mine.end; r++) {
    float* y = row<float>(p, op.y, r);
    if (op.x.type == FLOAT32) add_row(row<const float>(p, op.x, r), y, op.y.width);
    else add_row(row<const bf16>(p, op.x, r), y, op.y.width);
  }
}

}  // namespace MILLRACE_ISA
