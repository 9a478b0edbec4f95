// What a warp adds up for all taps: 16 channels of the rimmed tile times SIDE of the other one.

// Adds the products of N rows of a strip, from row0 on. `then` may change the other tile's pixels,
// which come two by two, channel lane / 4 of every eight.
template <int N, class Then>
__device__ __forceinline__ void add_taps(
    float (*sums)[SIDE / 8][4], const u16* tile, const u16* other, int strip, int row0, int lane, Then then) {
  const int p = lane % 8 + lane / 8 % 2 * 8, q = lane % 8 + lane / 16 * 8;
  const u16* right = other + lane / 16 * 8
      + ((image_of(strip, p) * ROWS + row0) * GW + column_of(strip, p)) * (K + 8);
  const u16* left = tile + lane / 8 % 2 * 8
      + ((image_of(strip, q) * RIM + row0 * STRIDE) * SPAN + column_of(strip, q) * STRIDE) * PITCH;
  u32 b[N][SIDE / 16][4];
#pragma unroll
  for (int row = 0; row < STEPS(N); row++) {
    if (row % STRIDE == 0 && row / STRIDE < N)
#pragma unroll
      for (int n = 0; n < SIDE / 16; n++) {
        u32* pixels = b[row / STRIDE < N ? row / STRIDE : 0][n];
        read4_across(pixels, right, row / STRIDE * GW * (K + 8) + n * 16);
        then(pixels);
      }
#pragma unroll
    for (int column = 0; column < 3; column++) {
      if (!used(row, column, N)) continue;
      u32 a[4];
      read4_across(a, left, (row * SPAN + column) * PITCH);
#pragma unroll
      for (int tap = 0; tap < 9; tap++)
        if (uses(tap, row, column, N))
#pragma unroll
          for (int n = 0; n < SIDE / 16; n++) {
            const u32* with = b[(row - tap / 3) / STRIDE][n];
            multiply(sums[TAPS == 9 ? tap : 0][2 * n], a, with[0], with[1]);
            multiply(sums[TAPS == 9 ? tap : 0][2 * n + 1], a, with[2], with[3]);
          }
    }
  }
}
