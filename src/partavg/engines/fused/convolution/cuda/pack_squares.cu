// Weights [m, K, C, 3, 3] as [m, 9, C / 8, K, 8] in bf16: 8 outputs' taps of 32 inputs at a time.

extern "C" __global__ void __launch_bounds__(THREADS) pack_squares(
    const float* weight, u16* packed, int apart) {
  extern __shared__ uint4 memory[];
  float* some = (float*)memory;
  const int k = blockIdx.x / (C / 32) * 8, c = blockIdx.x % (C / 32) * 32;
  weight += (size_t)blockIdx.y * apart + (k * C + c) * 9;
  packed += (size_t)blockIdx.y * 9 * C * K;
  for (int i = threadIdx.x; i < 8 * 288; i += THREADS) some[i] = weight[i / 288 * C * 9 + i % 288];
  __syncthreads();
  for (int i = threadIdx.x; i < 9 * 4 * 8; i += THREADS) {
    const int tap = i / 32, part = i / 8 % 4, own = i % 8;
    const float* from = some + own * 288 + part * 72 + tap;
    const uint4 found = {round2(from[0], from[9]), round2(from[18], from[27]),
                         round2(from[36], from[45]), round2(from[54], from[63])};
    *(uint4*)(packed + ((size_t)(tap * (C / 8) + c / 8 + part) * K + k + own) * 8) = found;
  }
}
