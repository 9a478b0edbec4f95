// What a warp adds up for pixels: RW rows of a strip, 8 * NT outputs of K.

#define SETS (UP ? 4 : 1)              // outputs of a pixel
#define NT (K / 8 / WN)                // tiles of 8 outputs of a warp
#define GROUPS (STRIPS * (ROWS / RW))  // warps side by side along the pixels
#define OWN (NT * 2)                   // outputs of a lane, side by side
#define PLACES (RW * SETS * 2)         // pixels of a lane

// Where the m-th pixel of a lane has its outputs.
__device__ __forceinline__ size_t place_of(int m, int strip, int first, int top, int lane) {
  const int p = m % 2 * 8 + lane / 4, set = m / 2 % SETS, row = top + m / 2 / SETS;
  const int image = first + image_of(strip, p), column = column_of(strip, p);
  const int pixel = UP ? (image * GH * 2 + 2 * row + set / 2) * GW * 2 + 2 * column + set % 2
                       : (image * GH + row) * GW + column;
  return (size_t)pixel * K;
}

// Multiplies the rows from row0 on by the weights of all taps: those `held` in registers, or else `own`.
__device__ __forceinline__ void add_products(
    float (*sums)[SETS][NT][4], const u16* tile, const uint4 (*held)[NT / 2], const uint4* own, int strip,
    int row0, int side, int lane) {
  const u16* from = tile + lane / 16 * 8
      + ((image_of(strip, lane % 16) * RIM + row0 * STRIDE) * SPAN
         + column_of(strip, lane % 16) * STRIDE) * PITCH;
#pragma unroll
  for (int c = 0; c < C / 16; c++)
#pragma unroll
    for (int column = 0; column < 3; column++) {
      uint4 b[9][NT / 2];
#pragma unroll
      for (int tap = 0; tap < 9; tap++)
#pragma unroll
        for (int n = 0; n < NT / 2; n++)
          if ((TAPS == 9 || tap == 4) && tap_column(tap) == column)
            b[tap][n] = HELD ? held[HELD ? tap : 0][n]
                             : own[((tap * (C / 16) + c) * (K / 16) + side * NT / 2 + n) * 32 + lane];
#pragma unroll
      for (int row = 0; row < STEPS(RW); row++) {
        if (!used(row, column, RW)) continue;
        u32 a[4];
        read4(a, from, (row * SPAN + column) * PITCH + c * 16);
#pragma unroll
        for (int tap = 0; tap < 9; tap++)
          if (uses(tap, row, column, RW)) {
            float (*into)[4] = sums[(row - tap_row(tap)) / STRIDE][tap_set(tap)];
#pragma unroll
            for (int n = 0; n < NT / 2; n++) {
              multiply(into[2 * n], a, b[tap][n].x, b[tap][n].y);
              multiply(into[2 * n + 1], a, b[tap][n].z, b[tap][n].w);
            }
          }
      }
    }
}

// What a BatchNorm, and perhaps a ReLU, makes of two numbers.
__device__ __forceinline__ u32 normalized(u32 both, const float* factor, const float* shift) {
  const float one = low(both) * factor[0] + shift[0], two = high(both) * factor[1] + shift[1];
  return RELU ? round2(fmaxf(one, 0), fmaxf(two, 0)) : round2(one, two);
}

// Writes the sums of a warp's lanes to found [2][groups][K].
__device__ __forceinline__ void write_sums(
    float* found, float* total, float* along, int side, int group, int lane) {
#pragma unroll
  for (int i = 0; i < OWN; i++) {
#pragma unroll
    for (int across = 4; across < 32; across *= 2) {
      total[i] += __shfl_xor_sync(0xffffffffu, total[i], across);
      along[i] += __shfl_xor_sync(0xffffffffu, along[i], across);
    }
    if (lane < 4) {
      const int k = side * NT * 8 + lane * OWN + i;
      found[group * K + k] = total[i];
      found[(GROUPS + group) * K + k] = along[i];
    }
  }
}
