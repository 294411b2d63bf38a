// Prints RTP-LLM's ids of the blocks of 1000 tokens, 64 to a block, for rtpllm_test.go. The
// formula is that of rtp_llm/cpp/utils/HashUtil.h: g++ -fwrapv rtpllm.cc && ./a.out
#include <cstdint>
#include <functional>
#include <iostream>

int main() {
  std::int64_t id = 0;
  std::uint32_t token = 1;
  for (int i = 0; i < 1000; i++) {
    const std::int64_t one = static_cast<std::int64_t>(std::hash<std::int32_t>()(static_cast<std::int32_t>(token)));
    id ^= static_cast<std::int64_t>(one + 0x9e3779b97f4a7c15 + (id << 12) + (id >> 32));
    if (i % 64 == 63) std::cout << id << '\n';
    token = token * 1664525 + 1013904223;
  }
}
