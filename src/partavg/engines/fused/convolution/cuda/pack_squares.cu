// Weights [m, K, C, 3, 3] as [m, 9, C / 8, K, 8] in bf16, and, for input gradients, mirrored as
// [m, 9, K / 8, C, 8]: 8 outputs' taps of 32 inputs at a time, a number of each output for a thread.

#define APART (THREADS + 1)  // in shared memory: then those of eight outputs lie in different banks

extern "C" __global__ void __launch_bounds__(THREADS) pack_squares(
    const float* weight, u16* ahead, u16* back, int apart) {
  extern __shared__ uint4 memory[];
  float* some = (float*)memory;
  const int k = blockIdx.x / (C / 32) * 8, c = blockIdx.x % (C / 32) * 32, i = threadIdx.x;
  weight += (size_t)blockIdx.y * apart + (k * C + c) * 9;
  ahead += (size_t)blockIdx.y * 9 * C * K;
  back += (size_t)blockIdx.y * 9 * C * K;
#pragma unroll
  for (int output = 0; output < 8; output++) some[output * APART + i] = weight[output * C * 9 + i];
  __syncthreads();
  auto pack = [&](u16* to, const float* from, int step) {  // eight numbers, so far apart
    const uint4 found = {round2(from[0], from[step]), round2(from[2 * step], from[3 * step]),
                         round2(from[4 * step], from[5 * step]), round2(from[6 * step], from[7 * step])};
    *(uint4*)to = found;
  };
  const int tap = i / 32, part = i / 8 % 4, output = i % 8, input = i % 32;
  pack(ahead + ((tap * (C / 8) + c / 8 + part) * K + k + output) * 8, some + output * APART + part * 72 + tap, 9);
  pack(back + (((8 - tap) * (K / 8) + k / 8) * C + c + input) * 8, some + input * 9 + tap, APART);
}
