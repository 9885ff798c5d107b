#pragma once

#include <string_view>

namespace unimem::detail::cuda {

/// One warp for each part, a part being three words of the table: where to, where from, and how many bytes. Parts that
/// lie alike to 16 bytes on both sides move 16 bytes a thread at a time, eight of them on their way at once, which is
/// what keeps the bus busy; others in what alignment they share.
inline constexpr std::string_view piece_kernel = R"(
struct alignas(16) unimem_16 { unimem_u64 a, b; };

template <class unimem_w>
__device__ __forceinline__ void unimem_move_words(char* to, const char* from, unimem_u64 bytes, unimem_u64 lane) {
  unimem_w* target = (unimem_w*)to;
  const unimem_w* source = (const unimem_w*)from;
  const unimem_u64 words = bytes / sizeof(unimem_w);
  unimem_u64 i = lane;
  for (; i + 7 * 32 < words; i += 8 * 32) {
    unimem_w some[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) some[k] = source[i + 32 * k];
#pragma unroll
    for (int k = 0; k < 8; ++k) target[i + 32 * k] = some[k];
  }
  for (; i < words; i += 32) target[i] = source[i];
  for (i = words * sizeof(unimem_w) + lane; i < bytes; i += 32) to[i] = from[i];
}

extern "C" __global__ void unimem_move_pieces(const unimem_u64* table, unimem_u64 count, char* to, const char* from) {
  const unimem_u64 thread = blockIdx.x * (unimem_u64)blockDim.x + threadIdx.x;
  const unimem_u64 part = thread / 32, lane = thread % 32;
  if (part >= count) return;
  char* target = to + table[3 * part];
  const char* source = from + table[3 * part + 1];
  unimem_u64 bytes = table[3 * part + 2];
  const unimem_u64 apart = ((unimem_u64)target ^ (unimem_u64)source) & 15;
  unimem_u64 lead = (16 - ((unimem_u64)target & 15)) & 15;
  if (lead > bytes) lead = bytes;
  if (lane < lead) target[lane] = source[lane];
  target += lead;
  source += lead;
  bytes -= lead;
  if (apart == 0) unimem_move_words<unimem_16>(target, source, bytes, lane);
  else if ((apart & 7) == 0) unimem_move_words<unimem_u64>(target, source, bytes, lane);
  else if ((apart & 3) == 0) unimem_move_words<unimem_u32>(target, source, bytes, lane);
  else unimem_move_words<char>(target, source, bytes, lane);
}
)";

}  // namespace unimem::detail::cuda
