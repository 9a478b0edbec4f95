// Sums over all blocks of a worker, by the last of them to come here: in the blocks' order, so that they
// are the same every time, and without a kernel of their own. Never inlined: kernels that need all
// registers would be cut in another way, and some then take a quarter longer.

// Whether this block is the last one; what the others wrote before they came can then be read.
__device__ __noinline__ bool comes_last(u32* ticket, void* shared) {
  if (gridDim.x > 1) __threadfence();
  __syncthreads();
  if (gridDim.x == 1) return true;
  u32* last = (u32*)shared;
  if (threadIdx.x == 0) *last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;  // and 0 again
  __syncthreads();
  if (*last) __threadfence();
  return *last;
}

// Adds up what lies `apart` from block to block, with many numbers on their way at a time.
__device__ __noinline__ void add_blocks(float* to, const float* parts, int count, size_t apart) {
  const int step = THREADS * 4;
  for (int first = threadIdx.x * 4; first < count; first += 4 * step) {
    float4 sums[4];
#pragma unroll
    for (int n = 0; n < 4; n++) sums[n] = {0, 0, 0, 0};
#pragma unroll 2
    for (int block = 0; block < gridDim.x; block++)
#pragma unroll
      for (int n = 0; n < 4; n++) {
        if (first + n * step >= count) continue;
        const float4 more = __ldcg((const float4*)(parts + block * apart + first + n * step));
        sums[n].x += more.x, sums[n].y += more.y, sums[n].z += more.z, sums[n].w += more.w;
      }
#pragma unroll
    for (int n = 0; n < 4; n++) {
      float* at = to + first + n * step;
      if (first + n * step < count) at[0] = sums[n].x, at[1] = sums[n].y, at[2] = sums[n].z, at[3] = sums[n].w;
    }
  }
}

// The gradients of a BatchNorm's weight and bias, from partial sums [blocks, 2, K].
__device__ __noinline__ void add_affine(float* gamma, float* beta, const float* partial) {
  for (int k = threadIdx.x; k < K; k += THREADS) {
    float total = 0, along = 0;
    for (int block = 0; block < gridDim.x; block++)
      total += __ldcg(partial + block * 2 * K + k), along += __ldcg(partial + (block * 2 + 1) * K + k);
    gamma[k] = along, beta[k] = total;
  }
}
