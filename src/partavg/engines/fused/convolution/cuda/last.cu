// Sums over all blocks of a worker, by the last of them to come here: in the blocks' order, so that they
// are the same every time, and without a kernel of their own.

// Whether this block is the last one; what the others wrote before they came can then be read.
__device__ __forceinline__ bool comes_last(u32* ticket, void* shared) {
  if (gridDim.x > 1) __threadfence();
  __syncthreads();
  if (gridDim.x == 1) return true;
  u32* last = (u32*)shared;
  if (threadIdx.x == 0) *last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;  // and 0 again
  __syncthreads();
  if (*last) __threadfence();
  return *last;
}

// Adds up what lies `apart` from block to block, four numbers at a time.
__device__ __forceinline__ void add_blocks(float* to, const float* parts, int count, size_t apart) {
  for (int i = threadIdx.x * 4; i < count; i += THREADS * 4) {
    float4 sum = __ldcg((const float4*)(parts + i));
#pragma unroll 4
    for (int block = 1; block < gridDim.x; block++) {
      const float4 more = __ldcg((const float4*)(parts + block * apart + i));
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    to[i] = sum.x, to[i + 1] = sum.y, to[i + 2] = sum.z, to[i + 3] = sum.w;
  }
}

// The gradients of a BatchNorm's weight and bias, from partial sums [blocks, 2, K].
__device__ __forceinline__ void add_affine(float* gamma, float* beta, const float* partial) {
  for (int k = threadIdx.x; k < K; k += THREADS) {
    float total = 0, along = 0;
    for (int block = 0; block < gridDim.x; block++)
      total += __ldcg(partial + block * 2 * K + k), along += __ldcg(partial + (block * 2 + 1) * K + k);
    gamma[k] = along, beta[k] = total;
  }
}
