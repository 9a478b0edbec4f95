"""The 3 x 3 convolutions of small residual networks, in CUDA: bf16, 16 to 64 channels, stride 1.

With so few channels a matrix product is limited by how often pixels are read. These kernels keep a
tile of pixels and its rim in shared memory and read all nine taps from there.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

_COMMON = r"""
typedef unsigned short u16;
typedef unsigned int u32;
#define PIXELS (IMAGES * ROWS * W)
#define PITCH (C + 8)   // so that eight pixels lie in different banks
#define SPAN (W + 2)
#define RIM (ROWS + 2)

__device__ __forceinline__ u32 place(const u16* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void read4(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void read4_across(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void multiply(float* d, const u32* a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Copies 16 bytes, or zeros, to shared memory without waiting for them.
__device__ __forceinline__ void copy16(u16* to, const u16* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
    :: "r"(place(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
}
// Where pixel q of the tile lies in the rimmed tile, for the tap at the upper left.
__device__ __forceinline__ int rimmed(int q) {
  return ((q / (ROWS * W) * RIM + q / W % ROWS) * SPAN + q % W) * PITCH;
}
__device__ __forceinline__ void load_rimmed(
    u16* tile, const u16* x, int first, int top, int count, int H) {
  for (int i = threadIdx.x; i < IMAGES * RIM * SPAN * (C / 8); i += THREADS) {
    int part = i % (C / 8), q = i / (C / 8);
    int col = q % SPAN - 1, row = top + q / SPAN % RIM - 1, image = first + q / (SPAN * RIM);
    bool inside = row >= 0 && row < H && col >= 0 && col < W && image < count;
    copy16(tile + q * PITCH + part * 8,
           inside ? x + ((size_t)(image * H + row) * W + col) * C + part * 8 : x, inside);
  }
}
"""

_CONV = r"""
#define PER_WARP (PIXELS / (THREADS / 2))
extern "C" __global__ void __launch_bounds__(THREADS) conv(
    const u16* x, const uint4* weight, const u16* added, u16* y,
    int count, int H, int flip, int add) {
  extern __shared__ uint4 memory[];
  u16* tile = (u16*)memory;
  const int bands = H / ROWS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = blockIdx.x / bands * IMAGES, top = blockIdx.x % bands * ROWS;
  const size_t before = (size_t)blockIdx.y * count * H * W;
  load_rimmed(tile, x + before * C, first, top, count, H);
  weight += (size_t)blockIdx.y * 9 * (C / 16) * (K / 16) * 32;
  float sums[PER_WARP][K / 8][4];
  u32 from[PER_WARP];
#pragma unroll
  for (int m = 0; m < PER_WARP; m++) {
    from[m] = place(tile + rimmed((warp * PER_WARP + m) * 16 + lane % 16) + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < K / 8; n++)
      sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
  }
  wait();
  __syncthreads();
#pragma unroll
  for (int tap = 0; tap < 9; tap++) {
#pragma unroll
    for (int c = 0; c < C / 16; c++) {
      uint4 b[K / 16];
      const uint4* own = weight + ((flip ? 8 - tap : tap) * (C / 16) + c) * (K / 16) * 32 + lane;
#pragma unroll
      for (int n = 0; n < K / 16; n++) b[n] = __ldg(own + n * 32);
#pragma unroll
      for (int m = 0; m < PER_WARP; m++) {
        u32 a[4];
        read4(a, from[m] + 2 * ((tap / 3 * SPAN + tap % 3) * PITCH + c * 16));
#pragma unroll
        for (int n = 0; n < K / 16; n++) {
          multiply(sums[m][2 * n], a, b[n].x, b[n].y);
          multiply(sums[m][2 * n + 1], a, b[n].z, b[n].w);
        }
      }
    }
  }
  y += before * K;
  added += before * K;
#pragma unroll
  for (int m = 0; m < PER_WARP; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int q = (warp * PER_WARP + m) * 16 + half * 8 + lane / 4;
      int image = first + q / (ROWS * W), row = top + q / W % ROWS;
      if (image >= count) continue;
      size_t at = ((size_t)(image * H + row) * W + q % W) * K + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < K / 8; n++) {
        float low = sums[m][n][2 * half], high = sums[m][n][2 * half + 1];
        if (add) {
          u32 other = *(const u32*)(added + at + n * 8);
          low += __uint_as_float(other << 16);
          high += __uint_as_float(other & 0xffff0000u);
        }
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        *(u32*)(y + at + n * 8) = both;
      }
    }
}
"""

_WEIGHT = r"""
#define INPUTS (C / 16)                  // warps side by side along the inputs,
#define OUTPUTS (K > 32 ? K / 32 : 1)    // along the outputs,
#define GROUPS (8 / (INPUTS * OUTPUTS))  // and along the pixels
#define TILES ((K > 32 ? 32 : K) / 8)
#define TAPS (C > 16 ? 3 : 9)            // of one block: more would need too many registers
extern "C" __global__ void __launch_bounds__(THREADS) weight(
    const u16* x, const u16* grad, float* out, int count, int H, int each, int workers) {
  extern __shared__ uint4 memory[];
  u16* tile = (u16*)memory;
  u16* other = tile + IMAGES * RIM * SPAN * PITCH;
  const int bands = H / ROWS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int input = warp % INPUTS, output = warp / INPUTS % OUTPUTS;
  const int group = warp / (INPUTS * OUTPUTS);
  const int all = (count + IMAGES - 1) / IMAGES * bands;
  const size_t before = (size_t)blockIdx.y * count * H * W;
  const int corner = blockIdx.z * SPAN * PITCH;
  float sums[TAPS][TILES][4];
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int n = 0; n < TILES; n++)
      sums[tap][n][0] = sums[tap][n][1] = sums[tap][n][2] = sums[tap][n][3] = 0;
  for (int t = blockIdx.x * each; t < blockIdx.x * each + each && t < all; t++) {
    const int first = t / bands * IMAGES, top = t % bands * ROWS;
    load_rimmed(tile, x + before * C, first, top, count, H);
    for (int i = threadIdx.x; i < PIXELS * (K / 8); i += THREADS) {
      int part = i % (K / 8), q = i / (K / 8);
      int image = first + q / (ROWS * W), row = top + q / W % ROWS;
      const u16* from = grad + (before + (size_t)(image * H + row) * W + q % W) * K + part * 8;
      copy16(other + q * (K + 8) + part * 8, image < count ? from : grad, image < count);
    }
    wait();
    __syncthreads();
    for (int k = group; k < PIXELS / 16; k += GROUPS) {
      u32 b[TILES / 2][4];
#pragma unroll
      for (int n = 0; n < TILES / 2; n++)
        read4_across(b[n], place(other + (k * 16 + lane % 8 + lane / 8 % 2 * 8) * (K + 8)
                                 + output * 32 + n * 16 + lane / 16 * 8));
      const u32 from = place(tile + rimmed(k * 16 + lane % 8 + lane / 16 * 8)
                             + input * 16 + lane / 8 % 2 * 8 + corner);
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++) {
        u32 a[4];
        read4_across(a, from + 2 * ((tap / 3 * SPAN + tap % 3) * PITCH));
#pragma unroll
        for (int n = 0; n < TILES / 2; n++) {
          multiply(sums[tap][2 * n], a, b[n][0], b[n][1]);
          multiply(sums[tap][2 * n + 1], a, b[n][2], b[n][3]);
        }
      }
    }
    __syncthreads();
  }
  float* total = (float*)memory;
  float* own = out + (((size_t)blockIdx.x * workers + blockIdx.y) * 9 + blockIdx.z * TAPS) * K * C;
  // One group after another, so that the sum is the same every time.
  for (int turn = 0; turn < GROUPS; turn++) {
    if (group == turn)
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            int c = input * 16 + i / 2 * 8 + lane / 4;
            int k = output * 32 + n * 8 + lane % 4 * 2 + i % 2;
            int at = (tap * K + k) * C + c;
            if (GROUPS == 1) own[at] = sums[tap][n][i];
            else total[at] = turn ? total[at] + sums[tap][n][i] : sums[tap][n][i];
          }
    __syncthreads();
  }
  if (GROUPS > 1)
    for (int i = threadIdx.x; i < TAPS * K * C; i += THREADS) own[i] = total[i];
}
"""


class Tiling(NamedTuple):
    """Channels in and out, the width of an image, and the rows and images of a tile."""

    inputs: int
    outputs: int
    width: int
    rows: int
    images: int

    @classmethod
    def of(cls, x: Tensor, outputs: int) -> "Tiling":
        """For x [m, n, h, w, c]."""
        _, _, height, width, inputs = x.shape
        rows = min(height, 256 // width)
        return cls(inputs, outputs, width, rows, 2 if width == 8 else 1)

    @property
    def rimmed(self) -> int:
        """Bytes of a tile with its rim."""
        return self.images * (self.rows + 2) * (self.width + 2) * (self.inputs + 8) * 2

    @property
    def both(self) -> int:
        """Bytes of a tile with its rim, and of one of outputs."""
        return self.rimmed + self.images * self.rows * self.width * (self.outputs + 8) * 2


def usable(x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> bool:
    """Whether the kernels can convolve x [m, n, h, w, c]."""
    outputs, inputs, *taps = weight.shape[1:]
    height, width = x.shape[2:4]
    tiling = Tiling.of(x, outputs)
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and inputs == outputs
        and inputs in (16, 32, 64)
        and (taps, stride, padding) == ([3, 3], 1, (1, 1))
        and (height, width) in ((32, 32), (16, 16), (8, 8))
        and tiling.both < 48 * 1024
    )


@cache
def _compiled(source: str, name: str, threads: int, tiling: Tiling) -> Any:
    names = ("THREADS", "C", "K", "W", "ROWS", "IMAGES")
    values = zip(names, (threads, *tiling), strict=True)
    sizes = "".join(f"#define {key} {value}\n" for key, value in values)
    return torch.cuda._compile_kernel(sizes + _COMMON + source, name)


def packed(weight: Tensor) -> Tensor:
    """Weights [m, k, c, 3, 3] in the order in which the lanes of a warp multiply them."""
    workers, outputs, inputs = weight.shape[:3]
    parts = weight.detach().reshape(workers, outputs // 16, 2, 8, inputs // 16, 2, 4, 2, 3, 3)
    ordered = parts.permute(0, 8, 9, 4, 1, 3, 6, 2, 5, 7)
    return torch.empty(ordered.shape, dtype=torch.bfloat16, device=weight.device).copy_(ordered)


def convolve(x: Tensor, weight: Tensor, added: Tensor | None = None, *, flip: bool) -> Tensor:
    """Convolve x [m, n, h, w, c] with packed weights, taps perhaps in reverse, plus `added`."""
    workers, count, height = x.shape[:3]
    outputs = weight.shape[4] * 16
    tiling = Tiling.of(x, outputs)
    y = x.new_empty(*x.shape[:4], outputs)
    tiles = -(-count // tiling.images) * (height // tiling.rows)
    _compiled(_CONV, "conv", 128, tiling)(
        (tiles, workers, 1),
        (128, 1, 1),
        [x, weight, x if added is None else added, y, count, height, int(flip), added is not None],
        tiling.rimmed,
    )
    return y


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """[m, k, c, 3, 3] from x [m, n, h, w, c] and the outputs' gradient [m, n, h, w, k]."""
    workers, count, height, _, inputs = x.shape
    outputs = grad.shape[4]
    tiling = Tiling.of(x, outputs)
    tiles = -(-count // tiling.images) * (height // tiling.rows)
    splits = min(tiles, max(1, (256 if inputs > 32 else 512) // workers))
    each = -(-tiles // splits)
    splits = -(-tiles // each)
    out = torch.empty((splits, workers, 9, outputs, inputs), device=x.device)
    _compiled(_WEIGHT, "weight", 256, tiling)(
        (splits, workers, 3 if inputs > 16 else 1),
        (256, 1, 1),
        [x, grad, out, count, height, each, workers],
        tiling.both,
    )
    total = out[0] if splits == 1 else out.sum(0)
    return total.permute(0, 2, 3, 1).view(workers, outputs, inputs, 3, 3)
