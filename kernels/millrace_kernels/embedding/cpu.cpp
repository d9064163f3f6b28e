// Tokens to vectors, read from a matrix packed for products (so a tied head is stored once), and the choice of rows.
#include "../linear/quantized.h"
#include "../native/program.h"

namespace MILLRACE_ISA {

// Copy row `column` of W to float32: a column of the packed strips.
static void unpack(const Matrix& m, int64_t column, float* to) {
  int64_t strip = column / LANES, lane = column % LANES;
  if (m.format == INT8) {
    const uint8_t* from = (const uint8_t*)m.data + strip * num_groups(m.inputs) * GROUP * LANES + lane * 4;
    float scale = m.scales[column];
    for (int k = 0; k < m.inputs; k++) to[k] = (from[k / 4 * 4 * LANES + k % 4] - 128) * scale;
    return;
  }
  if (m.format == DENSE_FLOAT32) {
    const float* from = (const float*)m.data + strip * m.inputs * LANES + lane;
    for (int k = 0; k < m.inputs; k++) to[k] = from[k * LANES];
  } else {
    const bf16* from = (const bf16*)m.data + strip * m.inputs * LANES + lane * 2;
    for (int k = 0; k < m.inputs; k++) to[k] = widen(from[k / 2 * 2 * LANES + k % 2]);
  }
}

void embed(const Program& p, const Step& step, const Op& op, const Worker& w) {
  Share mine = share(step.num_tokens, w);
  for (int t = mine.begin; t < mine.end; t++) {
    int64_t token = step.tokens[step.slot[step.row_of[t]] * step.tokens_stride + step.position[t]] - op.length;
    float* to = row<float>(p, op.y, t);
    if (token >= 0 && token < op.matrix->outputs) unpack(*op.matrix, token, to);
    else memset(to, 0, sizeof(float) * op.y.width);  // another worker has its row
  }
}

void select(const Program& p, const Step& step, const Op& op, const Worker& w) {
  Share mine = share(step.num_emits, w);
  for (int e = mine.begin; e < mine.end; e++)
    memcpy(row<char>(p, op.y, e), row<char>(p, op.x, step.emits[e]), op.x.width * (op.x.type == FLOAT32 ? 4 : 2));
}

}  // namespace MILLRACE_ISA
