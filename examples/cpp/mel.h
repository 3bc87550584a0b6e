// Log-mel frames of sound that arrives.
#pragma once
#include <cmath>
#include <complex>
#include "engine.h"

class LogMel {
 public:
  explicit LogMel(const Json& json)
      : size_(json.at("window_size")), hop_(json.at("hop_length")),
        least_(json.at("log_mel_least")), circle_(size_), rest_(size_ / 2) {
    for (size_t i = 0; i < size_; ++i) circle_[i] = std::polar(1.0, 2 * M_PI * i / size_);
    const double rate = json.at("sample_rate"), bands = json.at("n_mels"), step = mel(rate / 2) / (bands + 1);
    for (int band = 0; band < bands; ++band) {
      const double low = hertz(band * step), peak = hertz((band + 1) * step), high = hertz((band + 2) * step);
      std::vector<double>& filter = filters_.emplace_back();
      for (size_t bin = 0; bin <= size_ / 2; ++bin) {
        const double f = bin * rate / size_;
        const double weight = std::min((f - low) / (peak - low), (high - f) / (high - peak));
        filter.push_back(2 * std::max(weight, 0.0) / (high - low));
      }
    }
  }

  // The frames that these samples complete, n_mels values each. The sound is zero before its first sample.
  Floats feed(const Floats& samples) {
    append(rest_, samples);
    Floats frames;
    size_t start = 0;
    for (; start + size_ <= rest_.size(); start += hop_) {
      const std::vector<double> spectrum = power(&rest_[start]);
      for (const std::vector<double>& filter : filters_) {
        const double sum = std::inner_product(filter.begin(), filter.end(), spectrum.begin(), 0.0);
        frames.push_back((std::max(std::log10(std::max(sum, 1e-10)), least_) + 4) / 4);
      }
    }
    rest_.erase(rest_.begin(), rest_.begin() + std::min(start, rest_.size()));
    return frames;
  }

 private:
  // Slaney's scale
  static double mel(double f) { return f < 1e3 ? f * 3 / 200 : 15 + 27 * std::log(f / 1e3) / std::log(6.4); }
  static double hertz(double m) { return m < 15 ? m * 200 / 3 : 1e3 * std::pow(6.4, (m - 15) / 27); }

  // |DFT|^2 under a Hann window
  std::vector<double> power(const float* samples) const {
    std::vector<double> windowed(size_), found(size_ / 2 + 1);
    for (size_t i = 0; i < size_; ++i) windowed[i] = samples[i] * (0.5 - 0.5 * circle_[i].real());
    for (size_t bin = 0; bin < found.size(); ++bin) {
      std::complex<double> sum;
      for (size_t i = 0; i < size_; ++i) sum += windowed[i] * circle_[i * bin % size_];
      found[bin] = std::norm(sum);
    }
    return found;
  }

  size_t size_, hop_;
  double least_;
  std::vector<std::complex<double>> circle_;  // one turn
  Floats rest_;                               // samples that later frames need
  std::vector<std::vector<double>> filters_;  // for each band, the weights of the bins
};
