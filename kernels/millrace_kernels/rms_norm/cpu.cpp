// y = x / sqrt(mean(x²) + epsilon) · weight, row by row, from float32 rows.
#include "../native/program.h"

namespace MILLRACE_ISA {

INLINE Floats weight_at(const Op& op, int i, int n) {
  return op.weight_type == FLOAT32 ? load((const float*)op.weight + i, n) : load((const bf16*)op.weight + i, n);
}

static void normalise(const Op& op, const float* x, char* y) {
  Floats squares = splat(0.0f);
  for (int i = 0; i < op.x.width; i += LANES) {
    Floats part = load(x + i, op.x.width - i);
    squares = fma(part, part, squares);
  }
  float mean = sum(squares) / op.x.width;
  Floats inverse = splat(1.0f / __builtin_sqrtf(mean + op.number));
  for (int i = 0; i < op.x.width; i += LANES) {
    int n = op.x.width - i;
    Floats value = mul(mul(load(x + i, n), inverse), weight_at(op, i, n));
    op.y.type == FLOAT32 ? store((float*)y + i, value, n) : store((bf16*)y + i, value, n);
  }
}

void rms_norm(const Program& p, const Op& op, int num_rows, const Worker& w) {
  Share mine = share(num_rows, w);
  for (int r = mine.begin; r < mine.end; r++) normalise(op, row<float>(p, op.x, r), row<char>(p, op.y, r));
}

}  // namespace MILLRACE_ISA
