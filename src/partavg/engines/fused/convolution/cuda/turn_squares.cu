// The sum of so many gradients [m, 9, C, K] as [m, K, C, 9]: 32 x 32 weights at a time.

extern "C" __global__ void __launch_bounds__(THREADS) turn_squares(
    const float* parts, float* out, int splits, int workers) {
  extern __shared__ uint4 memory[];
  float* some = (float*)memory;  // [32 outputs][32 inputs][9], outputs 289 apart
  const int k = blockIdx.x % (K / 32) * 32, c = blockIdx.x / (K / 32) * 32;
  for (int i = threadIdx.x; i < 9 * 32 * 32; i += THREADS) {
    const int tap = i / 1024, input = i / 32 % 32, output = i % 32;
    float sum = 0;
    for (int split = 0; split < splits; split++)
      sum += parts[((size_t)((size_t)split * workers + blockIdx.y) * 9 + tap) * C * K + (c + input) * K + k + output];
    some[output * 289 + input * 9 + tap] = sum;
  }
  __syncthreads();
  out += ((size_t)blockIdx.y * K + k) * C * 9 + c * 9;
  for (int i = threadIdx.x; i < 32 * 288; i += THREADS) out[(size_t)(i / 288) * C * 9 + i % 288] = some[i / 288 * 289 + i % 288];
}
