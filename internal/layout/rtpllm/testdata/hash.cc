// Prints what libstdc++ computes, for hash_test.go: g++ -O2 -fwrapv hash.cc && ./a.out
// For each line of standard input: std::hash of the line, then the keys of its bytes as
// tokens, four to a block.
#include <cstdint>
#include <functional>
#include <iostream>
#include <string>

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << std::hash<std::string>()(line);
    std::int64_t key = 0;
    for (std::size_t i = 0; i < line.size(); i++) {
      const std::int32_t token = static_cast<std::int32_t>(static_cast<unsigned char>(line[i])) * 7919;
      const std::int64_t one = static_cast<std::int64_t>(std::hash<std::int32_t>()(token));
      key ^= one + 0x9e3779b97f4a7c15 + (key << 12) + (key >> 32);
      if (i % 4 == 3) std::cout << ' ' << key;
    }
    std::cout << '\n';
  }
}
