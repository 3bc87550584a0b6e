// numpy.random.default_rng(seed): PCG64 and the ziggurats of its float32 values, so that codes are equal.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

// Tables of 256 layers of one area under a density that falls from 1, for integers of 23 bits
struct Ziggurat {
  Ziggurat(double end, double area, double density(double), double inverse(double)) : radius(end) {
    double width = area / density(end), inner = end, height = 1;  // layer 0 has the tail
    for (int i = 256; i > 0; --i) {
      heights[i % 256] = height;
      widths[i % 256] = width / (1 << 23);
      integers[i % 256] = std::lround(inner / width * (1 << 23));
      width = inner;
      height = density(width);
      inner = i > 2 ? inverse(height + area / width) : 0;
    }
  }

  float radius;
  std::array<float, 256> heights, widths;
  std::array<uint32_t, 256> integers;
};

class Generator {
 public:
  // The seed is spread as by NumPy's SeedSequence.
  explicit Generator(uint64_t seed) {
    uint32_t constant = 0x43b0d7e5;
    const auto mix = [](uint32_t value) { return value ^ value >> 16; };
    const auto hash = [&](uint32_t value, uint32_t factor) {
      value ^= constant;
      return mix(value * (constant *= factor));
    };
    std::array<uint32_t, 4> pool{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
    for (uint32_t& word : pool) word = hash(word, 0x931e8875);
    for (int i = 0; i < 16; ++i) {
      uint32_t &from = pool[i / 4], &to = pool[i % 4];
      if (&from != &to) to = mix(0xca01f9dd * to - 0x4973f715 * hash(from, 0x931e8875));
    }
    constant = 0x8b51f9dd;
    std::array<uint64_t, 4> words{};
    for (int i = 0; i < 8; ++i) words[i / 2] |= uint64_t{hash(pool[i % 4], 0x58f38ded)} << 32 * (i % 2);
    increment_ = join(words[2], words[3]) << 1 | 1;
    state_ = increment_ + join(words[0], words[1]);
    step();
  }

  // standard_normal(dtype=float32)
  float normal() {
    static const Ziggurat table(3.6541528853610088, 0.00492867323399,
                                [](double x) { return std::exp(-0.5 * x * x); },
                                [](double y) { return std::sqrt(-2 * std::log(y)); });
    while (true) {
      const uint32_t random = bits(), layer = random & 255, integer = random >> 9;
      const float size = integer * table.widths[layer], x = random & 256 ? -size : size;
      if (integer < table.integers[layer]) return x;
      if (layer == 0) return integer & 256 ? -tail(table.radius) : tail(table.radius);
      if (height(table, layer) < std::exp(-0.5 * x * x)) return x;
    }
  }

  // standard_exponential(dtype=float32)
  float exponential() {
    static const Ziggurat table(7.69711747013105, 0.003949659822581557, [](double x) { return std::exp(-x); },
                                [](double y) { return -std::log(y); });
    static const float width226 = std::nextafter(table.widths[226], 1.0f);  // the number of NumPy's table
    while (true) {
      const uint32_t random = bits() >> 1, layer = random & 255, integer = random >> 8;
      const float x = integer * (layer == 226 ? width226 : table.widths[layer]);
      if (integer < table.integers[layer]) return x;
      if (layer == 0) return table.radius - std::log1p(-uniform());
      if (height(table, layer) < std::exp(-x)) return x;
    }
  }

 private:
  __extension__ typedef unsigned __int128 uint128;
  static uint128 join(uint64_t high, uint64_t low) { return static_cast<uint128>(high) << 64 | low; }
  float uniform() { return (bits() >> 8) * 0x1p-24f; }
  void step() { state_ = state_ * join(0x2360ed051fc65da4, 0x4385df649fccf645) + increment_; }

  // The lower half of a 64-bit output, then the upper half
  uint32_t bits() {
    has_upper_ = !has_upper_;
    if (!has_upper_) return output_ >> 32;
    step();
    const uint64_t word = state_ >> 64 ^ state_, turns = state_ >> 122;
    output_ = word >> turns | word << (-turns & 63);
    return output_;
  }

  // The height of a random point between the edges of a layer
  float height(const Ziggurat& table, uint32_t layer) {
    return (table.heights[layer - 1] - table.heights[layer]) * uniform() + table.heights[layer];
  }

  // A normal beyond the radius
  float tail(float radius) {
    while (true) {
      const float x = -1 / radius * std::log1p(-uniform()), y = -std::log1p(-uniform());
      if (y + y > x * x) return radius + x;
    }
  }

  uint128 increment_, state_;
  uint64_t output_;
  bool has_upper_ = false;  // whether the upper half of the output is next
};
