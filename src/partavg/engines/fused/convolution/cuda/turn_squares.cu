// The sum of so many gradients [m, 9, C, K] as [m, K, C, 9]: 32 x 32 weights at a time.

extern "C" __global__ void __launch_bounds__(THREADS) turn_squares(
    const float* parts, float* out, int splits, int workers) {
  extern __shared__ uint4 memory[];
  float* some = (float*)memory;  // [32 outputs][32 inputs][9], outputs 289 apart
  const int k = blockIdx.x % (K / 32) * 32, c = blockIdx.x / (K / 32) * 32;
  parts += ((size_t)blockIdx.y * 9 * C + c) * K + k;
  for (int first = threadIdx.x; first < 9 * 32 * 8; first += 3 * THREADS) {
    float4 sums[3] = {};
    for (int split = 0; split < splits; split++)
#pragma unroll
      for (int j = 0; j < 3; j++) {  // on their way together
        const int i = first + j * THREADS;
        const float4 part = *(const float4*)(parts + ((size_t)split * workers * 9 + i / 256) * C * K
                                             + i / 8 % 32 * K + i % 8 * 4);
        sums[j].x += part.x, sums[j].y += part.y, sums[j].z += part.z, sums[j].w += part.w;
      }
#pragma unroll
    for (int j = 0; j < 3; j++) {
      const int i = first + j * THREADS;
      float* to = some + i % 8 * 4 * 289 + i / 8 % 32 * 9 + i / 256;
      to[0] = sums[j].x, to[289] = sums[j].y, to[578] = sums[j].z, to[867] = sums[j].w;
    }
  }
  __syncthreads();
  out += ((size_t)blockIdx.y * K + k) * C * 9 + c * 9;
  for (int i = threadIdx.x; i < 32 * 288; i += THREADS) out[(size_t)(i / 288) * C * 9 + i % 288] = some[i / 288 * 289 + i % 288];
}
