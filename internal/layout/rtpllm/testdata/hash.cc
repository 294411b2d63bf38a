// Prints std::hash of each line of its input, as libstdc++ computes it, for hash_test.go.
#include <functional>
#include <iostream>
#include <string>

int main() {
  std::string line;
  while (std::getline(std::cin, line)) std::cout << std::hash<std::string>()(line) << '\n';
}
